"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

from ..generation.decoder import Decoder
from .compiler import Compiler
from .constraint import Constraint
from .fields import Settings
from .limits import Limits
from .refusal import Refusal
from .schemas import unobeyed

KEPT = 64  # compiled grammars, of so many bytes together
KEPT_BYTES = 256 << 20
LONGEST = 1 << 16  # characters of a schema or grammar
Form = tuple[str, str]  # a kind of grammar, and its source


class Grammars:
    """Compiles the grammars that clients send, in a process of its own, and keeps the latest ones."""

    def __init__(self, decoder: Decoder, limits: Limits | None = None) -> None:
        self.decoder, self.limits = decoder, limits or Limits()
        self._kept: OrderedDict[Form, Any] = OrderedDict()
        self._info: Any = None
        self._compiler: Compiler | None = None
        self._lock = Lock()

    def made(self, asked: Form) -> Callable[[], Constraint]:
        """What makes a constraint for each of several texts.

        Raises:
            Refusal: the grammar cannot be compiled.
        """
        with self._lock:
            if asked not in self._kept:
                self._keep(asked, self._compiled(asked))
            self._kept.move_to_end(asked)
            compiled = self._kept[asked]
        return partial(Constraint, compiled, self.decoder.loop.target.vocab_size)

    def close(self) -> None:
        """End the process that compiles."""
        if self._compiler is not None:
            self._compiler.close()

    def _keep(self, asked: Form, compiled: Any) -> None:
        self._kept[asked] = compiled
        while len(self._kept) > KEPT or (self._bytes() > KEPT_BYTES and len(self._kept) > 1):
            self._kept.popitem(last=False)

    def _bytes(self) -> int:
        return sum(int(compiled.memory_size_bytes) for compiled in self._kept.values())

    def _compiled(self, asked: Form) -> Any:
        compiler = self._own()
        from xgrammar import CompiledGrammar

        return CompiledGrammar.deserialize_json(compiler.compile(*asked), self._info)

    def _own(self) -> Compiler:
        """The compiler for the target's vocabulary.

        Raises:
            Refusal: XGrammar is not installed.
        """
        if self._compiler is None:
            try:
                import xgrammar
            except ImportError:
                said = "answers in a given form need XGrammar on the server: pip install 'draftwise[serve]'"
                raise Refusal(said, 501, param="response_format") from None
            size = self.decoder.loop.target.vocab_size
            ends = sorted(self.decoder.eos) or None
            self._info = xgrammar.TokenizerInfo.from_huggingface(
                self.decoder.tokenizer, vocab_size=size, stop_token_ids=ends
            )
            limits = self.limits
            self._compiler = Compiler(
                self._info.serialize_json(), seconds=limits.grammar_seconds, memory=limits.grammar_memory
            )
        return self._compiler


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
        raise Refusal(f"the {kind} has {len(source)} characters: give at most {LONGEST}", param=kind)
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
        if strict and (word := unobeyed(asked.json_schema.schema_)):
            said = (
                f"the schema has {word!r}, which no grammar obeys there: leave it out, or set strict to false"
            )
            raise Refusal(said, param="response_format")
        found = ("schema" if strict else "loose schema", json.dumps(asked.json_schema.schema_))
    grammar = None if body.grammar is None else ("grammar", body.grammar)
    return found, grammar, None if body.regex is None else ("regex", body.regex)
