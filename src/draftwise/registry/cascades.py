"""How a drafter that consists of two others is written: `cascade:FIRST>SECOND?match=1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from . import Spec, parse


def parts_of(spec: Spec) -> tuple[str, ...]:
    """The names of a cascade's parts; `%`, `?` and `>` are written in them as in a URL."""
    return tuple(unquote(part.strip()) for part in spec.path.split(">"))


def takes_over(spec: Spec) -> bool:
    """Whether a drafter is a cascade whose second part takes over with a match."""
    return spec.name == "cascade" and spec.options.get("match", "0") != "0"


def with_lookup(models: Iterable[str], lookups: Sequence[str], beside: Iterable[str]) -> list[str]:
    """Cascades in which each model hands over to the first lookup.

    A model that begins one already, among the drafters `beside` it, gets no other.
    """
    begun = {parts_of(spec)[0] for spec in map(parse, beside) if takes_over(spec)}
    return [
        f"cascade:{_quoted(model)}>{_quoted(lookup)}?match=1"
        for lookup in lookups[:1]
        for model in models
        if model not in begun
    ]


def _quoted(name: str) -> str:
    for sign in "%?>":
        name = name.replace(sign, f"%{ord(sign):02X}")
    return name
