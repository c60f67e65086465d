"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from ..generation.decoder import Decoder
from .constraint import Constraint
from .fields import Settings
from .refusal import Refusal

KEPT = 64  # compiled grammars
LONGEST = 1 << 16  # characters of a schema or grammar


class Grammars:
    """Compiles the grammars that clients send, and keeps the latest ones."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self._lock = decoder, Lock()
        self._compiler: Any = None
        self._compiled = lru_cache(KEPT)(self._compile)

    def wanted(self, body: Settings) -> Callable[[], Constraint] | None:
        """What makes a constraint for each text that a body asks for; None if it asks for none.

        Raises:
            Refusal: it asks for several, or for one that cannot be compiled.
        """
        kinds = [kind for kind in self._kinds(body) if kind is not None]
        if not kinds:
            return None
        if len(kinds) > 1:
            raise Refusal("response_format, grammar and regex exclude each other: give one", param="grammar")
        kind, source = kinds[0]
        if len(source) > LONGEST:
            raise Refusal(f"the {kind} has {len(source)} characters: give at most {LONGEST}", param=kind)
        with self._lock:
            compiled = self._compiled(kind, source)
        return partial(Constraint, compiled, self.decoder.loop.target.vocab_size)

    def _kinds(self, body: Settings) -> Sequence[tuple[str, str] | None]:
        asked = body.response_format
        form: tuple[str, str] | None = None
        if asked is not None and asked.type == "json_object":
            form = ("json", "")
        if asked is not None and asked.type == "json_schema":
            if asked.json_schema is None or asked.json_schema.schema_ is None:
                raise Refusal("response_format has no json_schema.schema: give one", param="response_format")
            form = ("schema", json.dumps(asked.json_schema.schema_))
        grammar = None if body.grammar is None else ("grammar", body.grammar)
        return form, grammar, None if body.regex is None else ("regex", body.regex)

    def _compile(self, kind: str, source: str) -> Any:
        compiler = self._own()
        try:
            if kind == "json":
                return compiler.compile_builtin_json_grammar()
            if kind == "schema":
                # With free spaces a model may write them without end.
                return compiler.compile_json_schema(source, any_whitespace=False)
            return compiler.compile_regex(source) if kind == "regex" else compiler.compile_grammar(source)
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise Refusal(f"the {kind} cannot be compiled: {said}", param=kind) from error

    def _own(self) -> Any:
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
            info = xgrammar.TokenizerInfo.from_huggingface(
                self.decoder.tokenizer, vocab_size=size, stop_token_ids=ends
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        return self._compiler
