"""The forms that clients ask for, as llguidance compiles them; `sandbox` imports this without torch."""

from __future__ import annotations

import json
from time import thread_time
from typing import Any

import numpy as np

from .constraint import PACE, SLOW, error_of
from .costs import dear, dear_grammar
from .schemas import read

STATES = 10_000  # of a grammar's lexer, each of 1 to 2 kB
SYMBOLS = 20_000  # of its rules
TRIALS, TRIED = 2, 24  # texts that are written by a grammar to try it, and their tokens
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A name that is written in codes would go around the schema of that name.
STRICT = SPACED | {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": 'bfnrt\\"'}
LOOSE = SPACED | {"lenient": True}
Form = tuple[str, str]  # a kind of grammar, and its source


def compile_form(tokens: Any, form: Form) -> str:
    """Return the grammar of a form in llguidance's own notation, after compiling and trying it.

    Raises:
        ValueError: it cannot be obeyed, or costs too much.
    """
    try:
        grammar = written(*form)
        wrong = tried(compile_grammar(tokens, grammar))
    except RecursionError:
        wrong = "it is nested too deeply"
    if wrong:
        raise ValueError(wrong)
    return grammar


def compile_grammar(tokens: Any, grammar: str) -> Any:
    """Return a matcher of a grammar in llguidance's own notation.

    Raises:
        ValueError: it cannot be compiled.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=STATES, max_grammar_size=SYMBOLS, verbose_errors=False)
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if wrong := error_of(matcher):
        raise ValueError(wrong)
    return matcher


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
        if wrong := error_of(copy):
            return wrong
    return ""


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
