"""What llguidance takes too long to read, or to write: it counts its steps, but a step may cost anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, isqrt, lcm
from typing import Any

from .schemas import FORMATS

MULTIPLE = 10_000  # of whose multiples it makes a machine with so many states
MEETING = 8  # patterns that one text must fit: what a step costs triples with each
PAIRED = 900  # pairs of patterns for the names of properties
WRITTEN = 20_000  # places of a schema whose references are written out where llguidance merges them
FIXED = ("const", "enum", "default", "examples", "example")
# Keywords that change nothing beside a reference, and those that add no pattern to what stands beside them.
SILENT = {
    "title",
    "description",
    "$schema",
    "$id",
    "id",
    "$defs",
    "definitions",
    "$comment",
    "default",
    "examples",
}
NOTES = (
    SILENT
    | {*FIXED}
    | {"type", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minimum", "maximum"}
)
MERGING = ("allOf", "anyOf", "oneOf", "$ref")


def dear(*schemas: Any) -> str:
    """What of some schemas makes them too expensive together; empty if there is nothing."""
    most, multiples, met, pairs = 1, 0, 0, 0
    for schema in schemas:
        places = [one for one in _places(schema) if isinstance(one, dict)]
        several = {n for one in places if (n := _multiple(one))}
        meeting = [_texts(schema, one) for one in places if _merges(one)]
        multiples += max(sum(several), lcm(*several) if meeting else 0)
        most = max(most, *several, 0)
        met += sum(3**n for n in meeting)
        pairs += sum(_named(one) ** 2 for one in places)
    if multiples > MULTIPLE:
        return f"multipleOf {most}: give {MULTIPLE} at most, for all together"
    if met > 3**MEETING:
        return f"patterns and formats below allOf, or beside anyOf or $ref: give {MEETING} at most"
    if any(count_places(schema) > WRITTEN for schema in schemas):
        return f"$ref below allOf, or beside other keywords: written out they have more than {WRITTEN} places"
    return f"patternProperties: give {isqrt(PAIRED)} patterns at most" if pairs > PAIRED else ""


def dear_grammar(source: str) -> str:
    """What of a grammar makes it too expensive; empty if there is nothing."""
    bare = re.sub(r'"(\\.|[^"\\\n])*"|/(\\.|[^/\\\n])+/', "", source)
    if "%json" in source:
        return "%json: give a schema as response_format"
    if bare.count("&") + bare.count("~") > MEETING:
        return f"more than {MEETING} operators & and ~"
    return ""


def _places(value: Any) -> Iterator[Any]:
    """All that may be a schema in a schema, and what is below it."""
    left = [value]
    while left:
        one = left.pop()
        yield one
        if isinstance(one, dict):
            left += [inner for word, inner in one.items() if word not in FIXED]
        elif isinstance(one, list):
            left += one


def count_places(schema: Any) -> int:
    """Return how many places a schema has once every reference that is merged is written out."""
    counts: dict[tuple[int, bool], int] = {}

    def count(one: Any, merged: bool) -> int:
        if (id(one), merged) not in counts:
            counts[id(one), merged] = 0  # what is met again within itself is not written out
            counts[id(one), merged] = 1 + sum(count(*inner) for inner in below(one, merged))
        return counts[id(one), merged]

    def below(one: Any, merged: bool) -> Iterator[tuple[Any, bool]]:
        if isinstance(one, list):
            yield from ((inner, merged) for inner in one)
        elif isinstance(one, dict):
            yield from ((inner, word == "allOf") for word, inner in one.items() if word not in FIXED)
            if isinstance(ref := one.get("$ref"), str) and (merged or one.keys() - SILENT != {"$ref"}):
                yield _target(schema, ref), True

    return count(schema, False)


def _merges(one: dict[str, Any]) -> bool:
    """Whether several schemas at a place make one."""
    return "allOf" in one or (any(word in one for word in MERGING) and len(one.keys() - NOTES) > 1)


def _multiple(one: dict[str, Any]) -> int:
    found = one.get("multipleOf")
    return int(abs(found)) if isinstance(found, int | float) and 1 <= abs(found) < inf else 0


def _named(one: dict[str, Any]) -> int:
    patterns = one.get("patternProperties")
    return len(patterns) if isinstance(patterns, dict) else 0


def _texts(schema: Any, place: Any) -> int:
    """The patterns and formats in a place, and in what it refers to; more than a few are not counted."""
    found, left, seen = 0, [place], set[str]()
    while left and found <= MEETING:
        for one in _places(left.pop()):
            if isinstance(one, dict):
                found += ("pattern" in one) + (str(one.get("format")) in FORMATS) + _named(one)
                if isinstance(ref := one.get("$ref"), str) and ref not in seen:
                    seen.add(ref)
                    left.append(_target(schema, ref))
    return found


def _target(schema: Any, ref: str) -> Any:
    """What a reference is to; the whole if that is not found."""
    one = schema
    for part in ref.removeprefix("#").strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        inner = one.get(name) if isinstance(one, dict) else None
        if inner is None:
            return schema
        one = inner
    return one
