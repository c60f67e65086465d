"""JSON schemas as llguidance is to read them: it refuses what it cannot obey, and names the keyword.

What it takes otherwise than JSON Schema does is settled here, before it reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
