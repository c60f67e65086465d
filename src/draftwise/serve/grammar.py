"""Answers in a given form: a grammar says at every place which tokens may follow."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from time import thread_time
from typing import Any

import numpy as np

from ..generation.decoder import Decoder
from .constraint import PACE, SLOW, Constraint
from .costs import dear, dear_grammar
from .fields import Settings
from .refusal import Refusal
from .schemas import read

KEPT = 32  # grammars
STATES = 10_000  # of a grammar's lexer, each of 1 to 2 kB
SYMBOLS = 20_000  # of its rules
TRIALS, TRIED = 2, 24  # texts that are written by a grammar to try it, and their tokens
LONGEST = 1 << 16  # characters of a schema or grammar
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A name that is written in codes would go around the schema of that name.
STRICT = SPACED | {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": 'bfnrt\\"'}
LOOSE = SPACED | {"lenient": True}
Form = tuple[str, str]  # a kind of grammar, and its source


class Grammars:
    """Reads the grammars that clients send, and keeps the latest ones.

    llguidance bounds the work that a grammar takes, when it is read and for each token: a grammar beyond
    these bounds is refused, or ends its text.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._kept: OrderedDict[Form, Any] = OrderedDict()
        self._tokens: Any = None
        self._lock = Lock()

    def made(self, asked: Form) -> Callable[[], Constraint]:
        """What makes a constraint for each of several texts.

        Raises:
            Refusal: the grammar cannot be read.
        """
        with self._lock:
            if asked not in self._kept:
                self._kept[asked] = self._matcher(asked)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(asked)
            matcher = self._kept[asked]
        size, ends = self._tokens.vocab_size, self.decoder.eos
        return lambda: Constraint(matcher.deep_copy(), size, ends)

    def _matcher(self, asked: Form) -> Any:
        kind, source = asked
        tokens = self._own()
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=STATES, max_grammar_size=SYMBOLS, verbose_errors=False)
        try:
            matcher = LLMatcher(tokens, written(kind, source), log_level=0, limits=limits)
            wrong = matcher.get_error() or tried(matcher)
        except ValueError as error:
            wrong = str(error)
        except RecursionError:
            wrong = "it is nested too deeply"
        if wrong:
            said = f"the {kind.split()[-1]} cannot be obeyed: {' '.join(wrong.split())[:200]}"
            raise Refusal(said + SOFTER.get(kind, ""), param=FIELDS.get(kind, kind))
        return matcher

    def _own(self) -> Any:
        """The target's vocabulary as llguidance reads it.

        Raises:
            Refusal: llguidance is not installed, or cannot read the tokenizer.
        """
        if self._tokens is None:
            try:
                from llguidance.hf import from_tokenizer
            except ImportError:
                said = "answers in a given form need llguidance on the server: pip install 'draftwise[serve]'"
                raise Refusal(said, 501, param="response_format") from None
            size, ends = self.decoder.loop.target.vocab_size, sorted(self.decoder.eos) or None
            self._tokens = from_tokenizer(self.decoder.tokenizer, n_vocab=size, eos_token=ends)
        return self._tokens


def tried(matcher: Any) -> str:
    """What becomes of some texts by a grammar: an error, if it is too expensive from the beginning."""
    left = SLOW + thread_time()
    for seed in range(TRIALS):
        copy, draw = matcher.deep_copy(), np.random.default_rng(seed)
        for _ in range(TRIED):
            bits = np.unpackbits(np.frombuffer(copy.compute_bitmask(), np.uint8), bitorder="little")
            allowed, left = np.flatnonzero(bits), left + PACE
            if thread_time() > left:
                return f"it takes more than {PACE:g} seconds a token"
            if not len(allowed) or copy.is_stopped():
                break
            if not copy.try_consume_tokens([int(draw.choice(allowed))]):
                break
        if copy.is_error():
            return str(copy.get_error())
    return ""


FIELDS = dict.fromkeys(("json", "schema", "loose schema"), "response_format")  # that a kind comes from
SOFTER = {"schema": "; leave it out, or set strict to false"}


def written(kind: str, source: str) -> str:
    """A grammar in llguidance's own form.

    Raises:
        ValueError: it has something that no grammar obeys, or is not written well.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if kind in ("json", "schema", "loose schema"):
        schema = json.loads(source) if source else {"type": "object"}
        loose = kind == "loose schema"
        affordable(dear(schema))
        options: Any = LOOSE if loose else STRICT
        made = schema if loose else read(schema)
        return str(LLMatcher.grammar_from_json_schema(made, overrides=options))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(source))
    if kind == "grammar":
        affordable(dear_grammar(source))
        try:
            source = any_to_lark(source)
        except Exception as error:  # it has no kind of its own for most of what is wrong with a grammar
            raise ValueError(str(error) or type(error).__name__) from None
    return str(LLMatcher.grammar_from_lark(source))


def affordable(what: str) -> None:
    """See that there is nothing too expensive.

    Raises:
        ValueError: there is something.
    """
    if what:
        raise ValueError(f"it takes too long with {what}")


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
