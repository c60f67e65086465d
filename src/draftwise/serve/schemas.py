"""JSON schemas as llguidance is to read them: it refuses what it cannot obey, and tells the keyword.

What it takes otherwise than JSON Schema does is settled here, before it reads them.
"""

from __future__ import annotations

from typing import Any

NAMED = {
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
}  # by names of their own
VALUES = {"enum", "const", "default", "examples", "example"}
# Formats of JSON Schema's own, all of strings; others, such as `int32`, do not bind a value.
OLD = ("extends", "disallow", "divisibleBy", "$recursiveRef")  # of early drafts, which it reads over
FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference"}
    | {"uri-template", "uuid", "json-pointer", "relative-json-pointer", "regex"}
    | {"idn-email", "idn-hostname", "iri", "iri-reference"}
)


def read(schema: Any) -> Any:
    """A copy without formats that bind no value.

    Raises:
        ValueError: a keyword that its grammar would not obey.
    """
    if isinstance(schema, list):
        return [read(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if found := next((word for word in OLD if word in schema), ""):
        raise ValueError(f"the keyword {found!r}")
    if _repeats(schema):
        raise ValueError("minProperties, which one name written twice would meet")
    made = {}
    for word, value in schema.items():
        if word == "format" and not (str(value) in FORMATS and _may_be_string(schema)):
            continue
        if word in NAMED and isinstance(value, dict):
            made[word] = {name: read(one) for name, one in value.items()}
        else:
            made[word] = value if word in VALUES else read(value)
    return made


def _may_be_string(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type", "string")
    return "string" in (kinds if isinstance(kinds, list) else [kinds])


def _repeats(schema: dict[str, Any]) -> bool:
    """Whether an object may have too few properties: no grammar sees that a free name comes twice."""
    least, required = schema.get("minProperties", 0), schema.get("required")
    sure = len(required) if isinstance(required, list) else 0
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return isinstance(least, int) and least > max(1, sure) and not closed
