"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import ctypes
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from ..errors import one_line
from ..generation.decoder import Decoder
from ..models.gguf.tokenizer import UNUSED, GgufTokenizer
from .constraint import Constraint
from .fields import Settings
from .forms import Form, compile_grammar
from .refusal import Refusal
from .sandbox import Connection, Sandbox

KEPT = 32  # grammars
SPECIAL = b"\xff"  # before the name of a special token
LONGEST = 1 << 16  # characters of a schema or grammar


class Grammars:
    """Reads the grammars that clients send, and keeps the latest ones.

    A grammar is compiled and tried in a process of its own before it is compiled here: one that costs too
    much is refused. llguidance bounds its work for each token: a grammar beyond these bounds ends its text.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._kept: OrderedDict[Form, Any] = OrderedDict()
        self.sandbox: Sandbox | None = None
        self._lock = Lock()

    def made(self, asked: Form, connection: Connection | None = None) -> Callable[[], Constraint]:
        """What makes a constraint for each of several texts; it is compiled first over `connection`.

        Raises:
            Refusal: the grammar cannot be read, or costs too much.
        """
        with self._lock:
            sandbox, matcher = self._opened(), self._kept.get(asked)
        if matcher is None:
            matcher = _matcher(sandbox, asked, connection or Connection())
        with self._lock:
            self._kept[asked] = matcher
            self._kept.move_to_end(asked)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        size, ends, special = sandbox.tokens.vocab_size, self.decoder.eos, sandbox.special
        return lambda: Constraint(matcher, size, ends, special)

    def close(self) -> None:
        """End the process that compiles."""
        if self.sandbox is not None:
            self.sandbox.close()

    def _opened(self) -> Sandbox:
        if self.sandbox is None:
            size, ends = self.decoder.loop.target.vocab_size, sorted(self.decoder.eos) or None
            self.sandbox = Sandbox(read_vocabulary(self.decoder.tokenizer, size, ends))
        return self.sandbox


def read_vocabulary(tokenizer: Any, size: int, ends: list[int] | None) -> Any:
    """Return the `LLTokenizer` of a tokenizer, of `size` tokens, of which `ends` end a text.

    Raises:
        Refusal: llguidance is not installed, or cannot read the tokenizer.
    """
    try:
        if isinstance(tokenizer, GgufTokenizer):
            return _read_gguf(tokenizer, size, ends)
        from llguidance.hf import from_tokenizer

        return from_tokenizer(tokenizer, n_vocab=size, eos_token=ends)
    except ImportError:
        said = "answers in a given form need llguidance on the server: pip install 'draftwise[serve]'"
        raise Refusal(said, 501, param="response_format") from None
    except ValueError as error:
        said = f"no answers in a given form: this model's tokenizer cannot be read ({one_line(error)[:120]})"
        raise Refusal(said, param="response_format") from None


def _read_gguf(tokenizer: GgufTokenizer, size: int, ends: list[int] | None) -> Any:
    """Return the `LLTokenizer` of llama.cpp's vocabulary.

    `llguidance.llamacpp` takes tokens such as `<think>` for special ones; they are text in Transformers.
    """
    from llguidance import LLTokenizer

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


def _matcher(sandbox: Sandbox, asked: Form, connection: Connection) -> Any:
    kind = asked[0]
    try:
        return compile_grammar(sandbox.tokens, sandbox.compile(asked, connection))
    except ValueError as error:
        said = f"the {kind.split()[-1]} cannot be obeyed: {' '.join(str(error).split())[:200]}"
        raise Refusal(said + SOFTER.get(kind, ""), param=FIELDS.get(kind, kind)) from None
    finally:
        connection.close()


FIELDS = dict.fromkeys(("json", "schema", "loose schema"), "response_format")  # that a kind comes from
SOFTER = {"schema": "; leave it out, or set strict to false"}


def form(body: Settings, more: Form | None = None) -> Form | None:
    """The form that the answer must have by a body, or by `more`, which its tools ask for.

    Raises:
        Refusal: it asks for several, or for one that is too long.
    """
    forms = [one for one in [*_forms(body), more] if one is not None]
    if len(forms) > 1:
        said = "response_format, grammar, regex and calls of tools exclude each other: give one"
        raise Refusal(said, param="grammar")
    if not forms:
        return None
    ((kind, source),) = forms
    if len(source) > LONGEST:
        said = f"the {kind.split()[-1]} has {len(source)} characters: give at most {LONGEST}"
        raise Refusal(said, param=FIELDS.get(kind, kind))
    return kind, source


def _forms(body: Settings) -> Sequence[Form | None]:
    asked = body.response_format
    found: Form | None = None
    if asked is not None and asked.type == "json_object":
        found = ("json", "")
    if asked is not None and asked.type == "json_schema":
        if asked.json_schema is None or asked.json_schema.schema_ is None:
            raise Refusal("response_format has no json_schema.schema: give one", param="response_format")
        strict = asked.json_schema.strict is not False
        found = ("schema" if strict else "loose schema", json.dumps(asked.json_schema.schema_))
    grammar = None if body.grammar is None else ("grammar", body.grammar)
    return found, grammar, None if body.regex is None else ("regex", body.regex)
