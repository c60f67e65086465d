"""Finds drafters, policies and targets by name; built-ins and plug-ins come through the same door.

A thing is written `name?key=value&key=value`, with `name:PATH` where it lives somewhere. Its options are
the keyword-only parameters of the class or function behind the name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

from .errors import UserError

GROUPS = ("drafters", "policies", "targets")
NEAR = 0.75  # of difflib's ratio, from which another name may have been meant
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed `name:path?options`."""

    name: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered thing: its name, one line of help, and its options with their defaults."""

    name: str
    help: str
    options: Mapping[str, Any]


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"draftwise.{group}")}


def names(group: str) -> list[str]:
    """The registered names of a group: `drafters`, `policies` or `targets`."""
    return sorted(_points(group))


def load(group: str, name: str) -> Callable[..., Any]:
    """The class or function behind a name.

    Raises:
        UserError: nothing is registered under it.
    """
    points = _points(group)
    if name not in points:
        one = group[:-1].replace("policie", "policy")
        known = names(group)
        raise UserError(f"unknown {one} {name!r}: {meant(name, known)}choose from {', '.join(known)}")
    found: Callable[..., Any] = points[name].load()
    return found


def meant(name: str, known: Iterable[str]) -> str:
    """A question to whoever mistyped a known name; nothing where none is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=NEAR)
    return f"did you mean {near[0]}? Or " if near else ""


def listed(names: Any, what: str) -> list[Any]:
    """Names, or things, as a list; a text has them with commas between.

    Raises:
        UserError: a name is empty, or this is no list.
    """
    if isinstance(names, str):
        found = [name.strip() for name in names.split(",")] if names.strip() else []
        if not all(found):
            raise UserError(f"{what} {names!r} has an empty name: write A,B")
        return found
    if not isinstance(names, Sequence):
        raise UserError(f"{what} {names!r}: give a list of names, such as ['ngram', 'suffix']")
    return list(names)


def parse(text: str) -> Spec:
    """Split `name:path?key=value&key=value`.

    Raises:
        UserError: an option has no `=`, or stands there twice, or this is no text.
    """
    if not isinstance(text, str):
        raise UserError(f"{text!r} is no name: write it as text, name?key=value")
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
        raise UserError(f"an option stands twice in {text!r}: give each once")
    return Spec(name, path, options)


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters that a user may set."""
    parameters = inspect.signature(factory).parameters.values()
    return {
        p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and isinstance(p.default, (int, float, str))
    }


def describe(group: str) -> list[Entry]:
    """Every registered thing of a group, for people to choose from."""
    entries = []
    for name in names(group):
        factory = load(group, name)
        text = (inspect.getdoc(factory) or "").partition("\n")[0]
        entries.append(Entry(name, text, {k: p.default for k, p in options_of(factory).items()}))
    return entries


def build(group: str, spec: Spec, *args: Any) -> Any:
    """Call what is registered under `spec.name`, with the spec's options turned into their types.

    Raises:
        UserError: an unknown name or option, or a value that does not fit.
    """
    factory = load(group, spec.name)
    known = options_of(factory)
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    options = {}
    for key, value in spec.options.items():
        if key not in known:
            choices = f"{meant(key, known)}choose from {', '.join(known)}" if known else "it has none"
            raise UserError(f"{spec.name} has no option {key!r}: {choices}")
        options[key] = _convert(spec.name, key, value, hints[key])
    try:
        inspect.signature(factory).bind(*args, **options)
    except TypeError:
        said = f"no path: write {spec.name}" if spec.path else f"a path: write {spec.name}:PATH"
        raise UserError(f"{spec.name} takes {said}") from None
    return factory(*args, **options)


def _convert(name: str, key: str, text: str, kind: Any) -> Any:
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
    return number
