"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import ctypes
import json
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer

from ..errors import one_line
from ..generation.decoder import Decoder
from ..models.gguf.model import UNUSED, GgufTokenizer
from .bodies import SamplingBody
from .constraint import Constraint
from .errors import APIError
from .sandbox import Connection, Form, Sandbox, compile_grammar

MAX_GRAMMARS = 32  # that are kept
SPECIAL = b"\xff"  # before the name of a special token
MAX_SOURCE = 1 << 16  # characters of a schema or grammar
PARAMS = dict.fromkeys(("json", "schema", "loose schema"), "response_format")  # the field of a kind
REMEDIES = {"schema": "; leave it out, or set strict to false"}
MakeConstraint = Callable[[], Constraint]


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

        Raises:
            APIError: the grammar cannot be read, or costs too much.
        """
        with self._lock:
            if self.sandbox is None:
                size, ends = self.decoder.loop.target.vocab_size, sorted(self.decoder.eos) or None
                self.sandbox = Sandbox(read_vocabulary(self.decoder.tokenizer, size, ends))
            sandbox, matcher = self.sandbox, self._matchers.get(form)
        if matcher is None:
            matcher = _compile(sandbox, form, connection or Connection())
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


def _compile(sandbox: Sandbox, form: Form, connection: Connection) -> Any:
    kind = form[0]
    try:
        return compile_grammar(sandbox.tokens, sandbox.compile(form, connection))
    except ValueError as error:
        message = f"the {kind.split()[-1]} cannot be obeyed: {' '.join(str(error).split())[:200]}"
        raise APIError(message + REMEDIES.get(kind, ""), param=PARAMS.get(kind, kind)) from None
    finally:
        connection.close()


def read_vocabulary(tokenizer: Any, size: int, ends: list[int] | None) -> Any:
    """Return the `LLTokenizer` of a tokenizer, of `size` tokens, of which `ends` end a text.

    Raises:
        APIError: llguidance cannot read the tokenizer.
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

    Raises:
        APIError: it asks for several, or for one that is too long.
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
