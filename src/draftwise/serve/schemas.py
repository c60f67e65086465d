"""Which JSON schemas the grammars of XGrammar obey in full.

`OBEYED` says which keywords hold for a value of each type; tests/serve/test_schemas.py sees that they do, and
that what is refused would not. XGrammar tells of some further combinations itself, when it compiles.
"""

from __future__ import annotations

import re
from typing import Any

NAMED = {"properties", "patternProperties", "$defs", "definitions"}  # hold schemas by names of their own
VALUES = {"enum", "const", "default", "examples", "example"}
OBEYED: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
        | {"minProperties", "maxProperties", "unevaluatedProperties"}
    ),
    "boolean": frozenset(),
    "null": frozenset(),
}
ALONE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")  # of these the first is all that is read
NEVER = frozenset(
    {"not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "uniqueItems"}
    | {"minContains", "maxContains", "$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"}
)
WORDS = NEVER.union(ALONE, *OBEYED.values())
# Formats of JSON Schema's own, all of strings; others, such as `int32`, do not bind a value.
FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference"}
    | {"uri-template", "uuid", "json-pointer", "relative-json-pointer"}
)
UNREAD = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex"})
PYTHON: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "boolean": bool,
    "null": type(None),
}


def unobeyed(schema: Any) -> str:
    """A keyword of a schema that its grammar would not obey; empty if there is none."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        if not isinstance(one, dict):
            continue
        if word := _unobeyed(one):
            return word
        for word, value in one.items():
            if word in NAMED and isinstance(value, dict):
                left += value.values()
            elif word not in VALUES:
                left.append(value)
    return ""


def _unobeyed(one: dict[str, Any]) -> str:
    """The same of one place of a schema alone."""
    words = [str(word) for word in one if word in WORDS and _binds(word, one)]
    if found := [word for word in words if word in NEVER or (word == "format" and str(one[word]) in UNREAD)]:
        return found[0]
    lone = next((word for word in ALONE if word in words), None)
    if lone is not None:
        if lone == "allOf" and isinstance(one["allOf"], list) and len(one["allOf"]) > 1:
            return lone
        beside = [word for word in words if word != lone]
        return beside[0] if beside else _type_beside(one, lone)
    held = frozenset[str]().union(*(OBEYED.get(kind, frozenset()) for kind in _types(one)))
    if "type" not in one and (found := [word for word in words if word not in held]):
        return found[0]  # with a type, those of other types do not bind
    return "format" if {"pattern", "format"} <= {*words} else _mixed(one)


def _binds(word: str, one: dict[str, Any]) -> bool:
    """Whether a keyword says something of any value."""
    if word == "format":
        return str(one[word]) in FORMATS | UNREAD and ("type" not in one or "string" in _types(one))
    return word != "uniqueItems" or bool(one[word])


def _types(one: dict[str, Any]) -> list[str]:
    """The types that a grammar gives to a value: without a word on it, it guesses by some keywords."""
    given = one.get("type")
    if given is None:
        guessed = {"object": ("properties", "additionalProperties"), "array": ("items", "prefixItems")}
        return [kind for kind, words in guessed.items() if any(word in one for word in words)][:1]
    return [str(kind) for kind in (given if isinstance(given, list) else [given])]


def _type_beside(one: dict[str, Any], lone: str) -> str:
    """`type` beside fixed values is obeyed by those that have it; beside all else it is read over."""
    if "type" not in one:
        return ""
    if lone not in ("const", "enum"):
        return "type"
    values = one["enum"] if lone == "enum" and isinstance(one["enum"], list) else [one[lone]]
    return "" if all(any(_is(value, kind) for kind in _types(one)) for value in values) else "type"


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, PYTHON.get(kind, ()))


def _mixed(one: dict[str, Any]) -> str:
    """A keyword that only some neighbours keep from being obeyed."""
    named, required = one.get("properties"), one.get("required")
    names = set(named) if isinstance(named, dict) else set[str]()
    if required is not None and not (isinstance(required, list) and names.issuperset(map(str, required))):
        return "required"
    least, sure = one.get("minProperties", 0), max(1, len(required or ()))
    free = any(
        one.get(word) not in (None, False) for word in ("additionalProperties", "unevaluatedProperties")
    )
    if isinstance(least, int) and least > sure and (free or "patternProperties" in one):
        return "minProperties"  # one name written twice counts as two
    patterns = one.get("patternProperties")
    for pattern in patterns if isinstance(patterns, dict) else ():
        try:
            if any(re.search(pattern, name) for name in names):
                return "patternProperties"
        except re.error:
            return "patternProperties"
    return ""
