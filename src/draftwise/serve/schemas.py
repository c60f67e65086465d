"""JSON schemas as llguidance is to read them: it refuses what it cannot obey, and names the keyword.

What it takes otherwise than JSON Schema does is settled here, before it reads them; and what it takes too
long to read, or to write, is found: it counts its steps, but a step may cost anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, isqrt, lcm
from typing import Any

# Keywords of schemas by names of their own, and of values.
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
VALUES = {"enum", "const", "default", "examples", "example"}
OLD = ("extends", "disallow", "divisibleBy", "$recursiveRef")  # of early drafts, which it reads over
# Formats of JSON Schema's own, all of strings; others, such as `int32`, do not bind a value.
_FORMATS = (
    "date-time date time duration email hostname ipv4 ipv6 uri uri-reference uri-template uuid json-pointer "
    "relative-json-pointer regex idn-email idn-hostname iri iri-reference"
)
FORMATS = frozenset(_FORMATS.split())
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][48]|[13579][26]|[2468]0)00)"  # years but 0
DAY = f"^([0-9]{{4}}-(0[13-9]|1[0-2])|[0-9]{{4}}-02-([01]|2[0-8])|{LEAP}-02-29)"
YEAR = "^([1-9]|0[1-9]|00[1-9]|000[1-9])"
NO_LEAP_SECOND = "[0-9]{2}:[0-9]{2}:[0-5]"
# What else texts of a format must have: llguidance knows the form of a date and not the calendar, allows the
# second 60 at any time, and reads no coded names of hosts.
PATTERNS = {
    "date": (DAY, YEAR),
    "date-time": (DAY, YEAR, f"[Tt]{NO_LEAP_SECOND}"),
    "time": (f"^{NO_LEAP_SECOND}",),
    "hostname": (r"^[^.]{1,63}(\.[^.]{1,63})*$", "^([^-]|-[^-])*$", "^.{0,253}$"),
}
FINEST = 1024  # of the fractions that are binary numbers, such as 0.5
# Characters that it would have to write as a code, and leaves out of a fixed text instead.
CODED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xuU]\{?([0-9a-fA-F]+)\}?|.)", re.DOTALL)

MAX_MULTIPLE = 10_000  # of whose multiples it makes a machine with so many states
MAX_MEETING = 8  # patterns that one text must fit: what a step costs triples with each
MAX_PAIRS = 900  # pairs of patterns for the names of properties
MAX_PLACES = 20_000  # of a schema whose references are written out where llguidance merges them
# Keywords that change nothing beside a reference, and those that add no pattern to what stands beside them.
_SILENT = "title description $schema $id id $defs definitions $comment default examples"
_NOTES = "type required minProperties maxProperties minItems maxItems minimum maximum"
SILENT = set(_SILENT.split())
NOTES = SILENT | VALUES | set(_NOTES.split())
MERGING = ("allOf", "anyOf", "oneOf", "$ref")


# -- what it would not obey ---------------------------------------------------------------------------


def narrow_schema(schema: Any, *, inner: bool = False) -> Any:
    """Return a copy in which the formats that bind a value are narrowed to it, and others left out.

    Raises:
        ValueError: a keyword that its grammar would not obey.
    """
    if isinstance(schema, list):
        return [narrow_schema(one, inner=True) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if problem := _find_unobeyed(schema, inner):
        raise ValueError(problem)
    narrowed: dict[str, Any] = {}
    for word, value in schema.items():
        if word in NAMED and isinstance(value, dict):
            narrowed[word] = {name: narrow_schema(one, inner=True) for name, one in value.items()}
        elif word != "format":
            narrowed[word] = value if word in VALUES else narrow_schema(value, inner=True)
    form, kinds = str(schema.get("format")), schema.get("type", "string")
    if form in FORMATS and "string" in (kinds if isinstance(kinds, list) else [kinds]):
        narrowed["format"] = form
        if form in PATTERNS and isinstance(both := narrowed.get("allOf", []), list):
            narrowed["allOf"] = [*both, *({"pattern": pattern} for pattern in PATTERNS[form])]
    return narrowed


def _find_unobeyed(schema: dict[str, Any], inner: bool) -> str:
    """Return what the grammar of one place of a schema would read over; empty if there is nothing."""
    if word := next((word for word in OLD if word in schema), ""):
        return f"the keyword {word!r}"
    if "$id" in schema and "$ref" in schema and (inner or not str(schema["$ref"]).startswith("#")):
        return "$id beside $ref, which drafts of JSON Schema read differently"
    if re.search("draft-0[1-3]", str(schema.get("$schema"))):
        return f"$schema {schema['$schema'][:60]!r}, which is older than draft 4"
    multiple = schema.get("multipleOf", 1)
    if isinstance(multiple, float) and not (multiple * FINEST).is_integer():
        return f"multipleOf {multiple:g}, of which few binary numbers are multiples"
    if _may_repeat(schema):
        return "minProperties, which one name written twice would meet"
    fixed = [word for word in ("const", "enum") if any(map(CODED.search, _strings(schema.get(word))))]
    named = schema.get("patternProperties")
    patterns = [*_strings(schema.get("pattern")), *(named if isinstance(named, dict) else ())]
    if fixed or any(map(_has_code, map(str, patterns))):
        return f"{fixed[0] if fixed else 'pattern'} with a control character"
    return ""


def _strings(value: Any) -> Iterator[str]:
    """The strings in a value, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value if isinstance(value, list) else [*value, *value.values()]:
            yield from _strings(inner)


def _has_code(pattern: str) -> bool:
    """Return whether a regex names a character that would have to be written as a code."""
    for escape in ESCAPE.finditer(pattern):
        number = next((digits for digits in escape.groups() if digits), "")
        if escape[0] in (r"\a", r"\v") or (number and CODED.match(chr(min(int(number, 16), 0x80)))):
            return True
    return CODED.search(pattern) is not None


def _may_repeat(schema: dict[str, Any]) -> bool:
    """Return whether an object may have too few properties: no grammar sees that a free name comes twice."""
    least, required = schema.get("minProperties", 0), schema.get("required")
    certain = len(set(map(str, required))) if isinstance(required, list) else 0
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return isinstance(least, int) and least > max(1, certain) and not closed


# -- what costs too much ------------------------------------------------------------------------------


def find_cost(*schemas: Any) -> str:
    """Return what of some schemas makes them too expensive together; empty if there is nothing."""
    largest, multiples, meeting, pairs = 1, 0, 0, 0
    for schema in schemas:
        places = [place for place in _places(schema) if isinstance(place, dict)]
        numbers = {number for place in places if (number := _multiple(place))}
        merged = [_count_patterns(schema, place) for place in places if _merges(place)]
        multiples += max(sum(numbers), lcm(*numbers) if merged else 0)
        largest = max(largest, *numbers, 0)
        meeting += sum(3**count for count in merged)
        pairs += sum(_count_named(place) ** 2 for place in places)
    if multiples > MAX_MULTIPLE:
        return f"multipleOf {largest}: give {MAX_MULTIPLE} at most, for all together"
    if meeting > 3**MAX_MEETING:
        return f"patterns and formats below allOf, or beside anyOf or $ref: give {MAX_MEETING} at most"
    if any(count_places(schema) > MAX_PLACES for schema in schemas):
        return (
            f"$ref below allOf, or beside other keywords: written out they have more than {MAX_PLACES} places"
        )
    return f"patternProperties: give {isqrt(MAX_PAIRS)} patterns at most" if pairs > MAX_PAIRS else ""


def find_grammar_cost(source: str) -> str:
    """Return what of a grammar makes it too expensive; empty if there is nothing."""
    bare = re.sub(r'"(\\.|[^"\\\n])*"|/(\\.|[^/\\\n])+/', "", source)
    if "%json" in source:
        return "%json: give a schema as response_format"
    if bare.count("&") + bare.count("~") > MAX_MEETING:
        return f"more than {MAX_MEETING} operators & and ~"
    return ""


def _places(schema: Any) -> Iterator[Any]:
    """All that may be a schema in a schema, and what is below it."""
    left = [schema]
    while left:
        place = left.pop()
        yield place
        if isinstance(place, dict):
            left += [inner for word, inner in place.items() if word not in VALUES]
        elif isinstance(place, list):
            left += place


def count_places(schema: Any) -> int:
    """Return how many places a schema has once every reference that is merged is written out."""
    counts: dict[tuple[int, bool], int] = {}

    def count(place: Any, merged: bool) -> int:
        if (id(place), merged) not in counts:
            counts[id(place), merged] = 0  # what is met again within itself is not written out
            counts[id(place), merged] = 1 + sum(count(*inner) for inner in below(place, merged))
        return counts[id(place), merged]

    def below(place: Any, merged: bool) -> Iterator[tuple[Any, bool]]:
        if isinstance(place, list):
            yield from ((inner, merged) for inner in place)
        elif isinstance(place, dict):
            yield from ((inner, word == "allOf") for word, inner in place.items() if word not in VALUES)
            if isinstance(ref := place.get("$ref"), str) and (merged or place.keys() - SILENT != {"$ref"}):
                yield _resolve(schema, ref), True

    return count(schema, False)


def _merges(place: dict[str, Any]) -> bool:
    """Return whether several schemas at a place make one."""
    return "allOf" in place or (any(word in place for word in MERGING) and len(place.keys() - NOTES) > 1)


def _multiple(place: dict[str, Any]) -> int:
    number = place.get("multipleOf")
    return int(abs(number)) if isinstance(number, int | float) and 1 <= abs(number) < inf else 0


def _count_named(place: dict[str, Any]) -> int:
    patterns = place.get("patternProperties")
    return len(patterns) if isinstance(patterns, dict) else 0


def _count_patterns(schema: Any, start: Any) -> int:
    """Return how many patterns and formats a place and its references have, up to more than a few."""
    total, left, visited = 0, [start], set[str]()
    while left and total <= MAX_MEETING:
        for place in _places(left.pop()):
            if isinstance(place, dict):
                total += ("pattern" in place) + (str(place.get("format")) in FORMATS) + _count_named(place)
                if isinstance(ref := place.get("$ref"), str) and ref not in visited:
                    visited.add(ref)
                    left.append(_resolve(schema, ref))
    return total


def _resolve(schema: Any, ref: str) -> Any:
    """Return the schema that a reference names; the whole one if it is not found."""
    place = schema
    for part in ref.removeprefix("#").strip("/").split("/"):
        inner = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        if inner is None:
            return schema
        place = inner
    return place
