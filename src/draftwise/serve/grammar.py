"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import ctypes
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from math import inf
from threading import Lock
from time import thread_time
from typing import Any

import numpy as np
from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer
from numpy.typing import NDArray

from ..errors import UserError, one_line
from ..generation.decoder import Decoder
from ..models.gguf.model import UNUSED, GgufTokenizer
from .bodies import SamplingBody
from .errors import APIError
from .sandbox import SECONDS_PER_TOKEN, SPARE_SECONDS, Connection, Form, Sandbox, compile_grammar, error_of

MAX_GRAMMARS = 32  # that are kept
SPECIAL = b"\xff"  # before the name of a special token
MAX_SOURCE = 1 << 16  # characters of a schema or grammar
PARAMS = dict.fromkeys(("json", "schema", "loose schema"), "response_format")  # the field of a kind
REMEDIES = {"schema": "; leave it out, or set strict to false"}
MakeConstraint = Callable[[], "Constraint"]


class Grammars:
    """Compiles the grammars that clients send, and keeps the latest ones.

    A grammar is compiled and tried in a process of its own before it is compiled here: one that costs too
    much is refused. llguidance bounds its work for each token: a grammar beyond these bounds ends its text.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.sandbox: Sandbox | None = None
        self._matchers: OrderedDict[Form, Any] = OrderedDict()
        self._lock = Lock()

    def compile(self, form: Form, connection: Connection | None = None) -> MakeConstraint:
        """Return a function that makes a constraint for a sequence; it is compiled first over `connection`.

        An `APIError` says that the grammar cannot be read, or costs too much.
        """
        with self._lock:
            if self.sandbox is None:
                size, ends = self.decoder.loop.target.vocab_size, sorted(self.decoder.eos) or None
                self.sandbox = Sandbox(read_vocabulary(self.decoder.tokenizer, size, ends))
            sandbox, matcher = self.sandbox, self._matchers.get(form)
        if matcher is None:
            kind, connection = form[0], connection or Connection()
            try:
                matcher = compile_grammar(sandbox.tokens, sandbox.compile(form, connection))
            except ValueError as error:
                message = f"the {kind.split()[-1]} cannot be obeyed: {' '.join(str(error).split())[:200]}"
                raise APIError(message + REMEDIES.get(kind, ""), param=PARAMS.get(kind, kind)) from None
            finally:
                connection.close()
        with self._lock:
            self._matchers[form] = matcher
            self._matchers.move_to_end(form)
            while len(self._matchers) > MAX_GRAMMARS:
                self._matchers.popitem(last=False)
        return lambda: Constraint(matcher, sandbox.tokens.vocab_size, self.decoder.eos, sandbox.special)

    def close(self) -> None:
        """End the process that compiles."""
        if self.sandbox is not None:
            self.sandbox.close()


def read_vocabulary(tokenizer: Any, size: int, ends: list[int] | None) -> Any:
    """Return the `LLTokenizer` of a tokenizer, of `size` tokens, of which `ends` end a text.

    An `APIError` says that llguidance cannot read the tokenizer.
    """
    try:
        if isinstance(tokenizer, GgufTokenizer):
            return _read_gguf(tokenizer, size, ends)
        return from_tokenizer(tokenizer, n_vocab=size, eos_token=ends)
    except ValueError as error:
        reason = one_line(error)[:120]
        message = f"no answers in a given form: this model's tokenizer cannot be read ({reason})"
        raise APIError(message, param="response_format") from None


def _read_gguf(tokenizer: GgufTokenizer, size: int, ends: list[int] | None) -> Any:
    """Return the `LLTokenizer` of llama.cpp's vocabulary.

    `llguidance.llamacpp` takes tokens such as `<think>` for special ones; they are text in Transformers.
    """
    make: Any = LLTokenizer
    function = ctypes.cast(tokenizer.lib.llama_cpp._lib.llama_tokenize, ctypes.c_void_p)
    special, marks = frozenset(tokenizer.all_special_ids), tokenizer.attributes
    pieces = [b"" if mark & UNUSED else tokenizer.piece(i) for i, mark in enumerate(marks)]
    named = [SPECIAL + piece if i in special else piece for i, piece in enumerate(pieces)]
    return make.from_llamacpp(
        tokens=named + [b""] * (size - len(named)),
        vocab_ptr=tokenizer.vocab,
        tokenize_fptr=function.value,
        eos_token=tokenizer.eos_token_id if ends is None else ends,
        slices=None,
    )


def requested_form(body: SamplingBody, calls: Form | None = None) -> Form | None:
    """Return the form that the answer must have by a body, or that of its `calls` of tools.

    An `APIError` says that it asks for several, or for one that is too long.
    """
    forms = [] if calls is None else [calls]
    response_format = body.response_format
    if response_format is not None and response_format.type == "json_object":
        forms.append(("json", ""))
    if response_format is not None and response_format.type == "json_schema":
        schema = response_format.json_schema
        if schema is None or schema.schema_ is None:
            raise APIError("response_format has no json_schema.schema: give one", param="response_format")
        kind = "loose schema" if schema.strict is False else "schema"
        forms.append((kind, json.dumps(schema.schema_)))
    forms += [(kind, text) for kind in ("grammar", "regex") if (text := getattr(body, kind)) is not None]
    if len(forms) > 1:
        message = "response_format, grammar, regex and calls of tools exclude each other: give one"
        raise APIError(message, param="grammar")
    for kind, source in forms:
        if len(source) > MAX_SOURCE:
            message = f"the {kind.split()[-1]} has {len(source)} characters: give at most {MAX_SOURCE}"
            raise APIError(message, param=PARAMS.get(kind, kind))
    return forms[0] if forms else None


# -- a grammar as a logits processor ---------------------------------------------------------------------


MAX_MASKS = 32  # places whose masks are kept: those of a draft are asked for again when it is verified
Bits = NDArray[np.bool_]


class Constraint:
    """A logits processor that allows what the grammar allows.

    As a processor it is called once for each committed token, with the text so far. As a `TokenMask` it is
    asked about drafted tokens too, and in any order: llguidance takes back what it has read. It never reads
    one of the tokens `ends`: these are allowed where the text may end, and anything goes after them.
    `special` are the tokens that are no text: where a grammar allows all but something, llguidance's masks
    have them too.
    """

    def __init__(
        self, matcher: Any, vocab_size: int, ends: Collection[int], special: Sequence[int] = ()
    ) -> None:
        self.origin, self.matcher, self.error = matcher, matcher.deep_copy(), ""
        self.vocab_size, self.ends, self.special = vocab_size, frozenset(ends), np.array(special, dtype=int)
        self.words = np.zeros((vocab_size + 31) // 32, dtype=np.int32)
        self.start = -1  # where the answer begins in the text
        self.tokens: list[int] = []  # those of the answer that were read
        self.committed = 0  # how many of them are
        self.masks: dict[int, tuple[Bits, int]] = {}  # what is barred after so many tokens, the only token
        self.seconds_left = SPARE_SECONDS

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with all other tokens at -inf, shape (1, vocabulary)."""
        text = input_ids[0]
        if self.start < 0:
            self.start = len(text)
        new = text[self.start + self.committed :].tolist()
        if not self._read(self.committed, new):
            if self.error:
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            token = new[len(self.tokens) - self.committed]
            raise ValueError(f"token {token} does not fit the grammar")
        self.committed = len(self.tokens)
        scores = self._bar(scores)
        if self.seconds_left < 0:  # the other texts wait for it
            raise UserError(
                f"the grammar takes more than {SECONDS_PER_TOKEN:g} seconds a token: make it simpler"
            )
        return scores

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        """The logits of a drafter, shape (vocabulary,), with -inf for what is not allowed."""
        return self._bar(scores) if self._read_text(text, start, ahead) else scores

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """The one token that is allowed; -1 if there are several, or anything is."""
        if not self._read_text(text, start, ahead) or self.is_over:
            return -1
        return self._mask()[1]

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Return whether a token is allowed."""
        return self._read_text(text, start, [*ahead, token])

    @property
    def is_over(self) -> bool:
        """True once the text has ended."""
        return bool(self.tokens) and self.tokens[-1] in self.ends

    def _read_text(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> bool:
        """Read as far as these tokens; False if one of them is not allowed."""
        if self.start < 0:
            self.start = start
        base = min(self.committed, len(text) - self.start)
        return self._read(base, [*text[self.start + base :], *ahead])

    def _read(self, base: int, tokens: Sequence[int]) -> bool:
        """Read the first `base` tokens and then these; after the end of the text anything goes."""
        same = base
        for token in tokens:
            if same == len(self.tokens) or self.tokens[same] != token:
                break
            same += 1
        self._truncate(same)
        for token in tokens[same - base :]:
            if self.is_over:
                break
            if not self._read_token(token):
                return False
            self.tokens.append(token)
        return True

    def _read_token(self, token: int) -> bool:
        if token in self.ends:
            return bool(self.matcher.is_accepting())
        if self.matcher.try_consume_tokens([token]):
            return True
        self._recover()
        return False

    def _recover(self) -> None:
        """Continue before a token that was too much, as llguidance does not: it may be a drafted one."""
        if self.matcher.is_error():
            self.error, self.matcher = error_of(self.matcher), self.origin.deep_copy()
            self.matcher.try_consume_tokens(self.tokens)

    def _truncate(self, length: int) -> None:
        if length < len(self.tokens):
            self.matcher.rollback(len(self.tokens) - length - self.is_over)
            del self.tokens[length:]
            self.committed = min(self.committed, length)
            self.masks = {n: mask for n, mask in self.masks.items() if n <= length}

    def _mask(self) -> tuple[Bits, int]:
        """Return what is barred now, shape (vocabulary,), and the only token that is not, else -1.

        A `UserError` says that the grammar takes more than its bounds allow.
        """
        at = len(self.tokens)
        if at not in self.masks:
            start_time = thread_time()
            self.matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
            left = self.seconds_left + SECONDS_PER_TOKEN - (thread_time() - start_time)
            self.seconds_left = min(SPARE_SECONDS, left)
            if self.matcher.is_error():
                self._recover()
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.vocab_size]
            for token in self.special[bits[self.special] == 1].tolist():
                ends = token in self.ends
                bits[token] = self.matcher.is_accepting() if ends else self.matcher.validate_tokens([token])
            allowed = np.flatnonzero(bits)
            if len(self.masks) >= MAX_MASKS:
                del self.masks[min(self.masks)]
            self.masks[at] = bits == 0, int(allowed[0]) if len(allowed) == 1 else -1
        return self.masks[at]

    def _bar(self, scores: Any) -> Any:
        """Return scores, shape (..., tokens), with -inf for what is barred now, and beyond the vocabulary."""
        if self.is_over:
            return scores
        barred, _ = self._mask()
        n = scores.shape[-1]
        if n > len(barred):
            barred = np.pad(barred, (0, n - len(barred)), constant_values=True)
        return scores.masked_fill(scores.new_tensor(barred[:n]) > 0, -inf)
