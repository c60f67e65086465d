"""Finds drafters, policies and targets by name, through entry points, for built-ins and plug-ins alike.

A component is written `name?key=value&key=value`, or `name:PATH` if it reads files. Its options are the
keyword-only parameters of the class or function behind the name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl

from ..errors import UserError

GROUPS = ("drafters", "policies", "targets")
NEAR = 0.75  # minimum difflib ratio of a suggested name
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

Idle = tuple[str, Callable[[Mapping[str, Any]], object], str]
"""An option, whether it does nothing beside all options, which are given by name, and the remedy."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed `name:path?options`."""

    name: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a number, in the `Annotated` of an option; both ends belong to it."""

    least: float
    most: float = math.inf

    def check(self, said: str, number: float) -> None:
        """Refuse a number outside the range.

        Raises:
            UserError: it is outside.
        """
        if not self.least <= number <= self.most:
            most = f" to {self.most:g}" if math.isfinite(self.most) else " or more"
            raise UserError(f"{said}: give {self.least:g}{most}")


@cache
def points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
    return {point.name: point for point in entry_points(group=f"draftwise.{group}")}


def names(group: str) -> list[str]:
    """The registered names of a group: `drafters`, `policies` or `targets`."""
    return sorted(points(group))


def load(group: str, name: str) -> Callable[..., Any]:
    """The class or function registered under a name.

    Raises:
        UserError: nothing is registered under it.
    """
    found: Callable[..., Any] = point(group, name).load()
    return found


def point(group: str, name: str) -> EntryPoint:
    """The entry point of a name.

    Raises:
        UserError: nothing is registered under it.
    """
    known = points(group)
    if name not in known:
        choices = ", ".join(names(group))
        raise UserError(f"unknown {_singular(group)} {name!r}: {meant(name, known)}choose from {choices}")
    return known[name]


def meant(name: str, known: Iterable[str]) -> str:
    """A suggestion of the known name closest to a mistyped one, as a question; empty if none is close.

    Of names that a short one begins, as `tapout` does five, the first is close.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=NEAR)
    near = near or sorted(one for one in known if name and one.startswith(f"{name}-"))
    return f"did you mean {near[0]}? Or " if near else ""


def parse(text: str) -> Spec:
    """Split `name:path?key=value&key=value`.

    Raises:
        UserError: an option has no `=` or is repeated, or the value is not a string.
    """
    if not isinstance(text, str):
        raise UserError(f"{text!r} is not a name: give a text such as name?key=value")
    head, _, query = text.strip().partition("?")
    name, _, path = head.partition(":")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UserError(
            f"cannot read the options of {text!r}: write them as name?key=value&key=value"
        ) from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise UserError(f"{text!r} repeats an option: give each once")
    return Spec(name, path, options)


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters that a user may set."""
    parameters = inspect.signature(factory).parameters.values()
    return {
        p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and isinstance(p.default, (int, float, str))
    }


def build(group: str, spec: Spec, *args: Any) -> Any:
    """Call the factory registered under `spec.name`, with the options converted to their declared types.

    Raises:
        UserError: an unknown name or option, or a value of the wrong type or out of its range.
    """
    factory, options = load(group, spec.name), read_options(group, spec)
    try:
        inspect.signature(factory).bind(*args, **options)
    except TypeError:
        remedy = f"no path: write {spec.name}" if spec.path else f"a path: write {spec.name}:PATH"
        raise UserError(f"{spec.name} takes {remedy}") from None
    return factory(*args, **options)


def read_options(group: str, spec: Spec) -> dict[str, Any]:
    """Return the options, converted to the types that the factory declares.

    Raises:
        UserError: as `build`.
    """
    factory = load(group, spec.name)
    known = options_of(factory)
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    options = {}
    for key, value in spec.options.items():
        if key not in known:
            choices = f"{meant(key, known)}choose from {', '.join(known)}" if known else "it has none"
            raise UserError(f"{spec.name} has no option {key!r}: {choices}")
        options[key] = _convert(spec.name, key, value, hints[key])
    return options


def refuse_idle(group: str, spec: Spec, text: str, rules: Iterable[Idle]) -> None:
    """Raise a UserError for an option that has no effect beside the others of `text`."""
    options = options_of(load(group, spec.name))
    given = {name: option.default for name, option in options.items()} | read_options(group, spec)
    for option, is_idle, remedy in rules:
        if option in spec.options and is_idle(given):
            raise UserError(f"{_singular(group)} {text}: {option} has no effect here: {remedy}")


def _singular(group: str) -> str:
    return group[:-1].replace("policie", "policy")


def _convert(name: str, key: str, text: str, hint: Any) -> Any:
    kind, *said = get_args(hint) or (hint,)
    if kind is bool:
        if text.lower() in YES + NO:
            return text.lower() in YES
        raise UserError(f"{name}?{key}={text}: write true or false")
    if kind not in (int, float):
        return text
    try:
        number = kind(text)
    except ValueError:
        raise UserError(
            f"{name}?{key}={text}: {text!r} is not {'a whole number' if kind is int else 'a number'}"
        ) from None
    if not math.isfinite(number):
        raise UserError(f"{name}?{key}={text}: give a finite number")
    for within in said:
        if isinstance(within, Within):
            within.check(f"{name}?{key}={text}", number)
    return number
