"""Finds drafters, policies and targets by name, through entry points, and describes them.

A component is written `name?key=value&key=value`, or `name:PATH` if it reads files. Its options are the
keyword-only parameters of the class or function behind the name. Its description is read from the source file
if possible, so that listing drafters imports no torch.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl

from .errors import UserError, one_line

GROUPS = ("drafters", "policies", "targets")
NEAR = 0.75  # minimum difflib ratio of a suggested name
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
SOURCE = "Source: "  # the line of a docstring that names paper and reference
USAGES = {"cascade": "zoo:general,ngram,cascade:zoo:general>ngram?match=1"}
"""How to write a component that needs others beside it."""

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

    def check(self, given: str, number: float) -> None:
        """Raise a `UserError`, which begins with what was given, for a number outside the range."""
        if not self.least <= number <= self.most:
            most = f" to {self.most:g}" if math.isfinite(self.most) else " or more"
            raise UserError(f"{given}: give {self.least:g}{most}")


# -- names, which raise a `UserError` where nothing is registered under them ------------------------------


@cache
def points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name."""
    return {point.name: point for point in entry_points(group=f"draftwise.{group}")}


def names(group: str) -> list[str]:
    """The registered names of a group: `drafters`, `policies` or `targets`."""
    return sorted(points(group))


def point(group: str, name: str) -> EntryPoint:
    """The entry point of a name."""
    known = points(group)
    if name not in known:
        choices = ", ".join(names(group))
        raise UserError(f"unknown {_singular(group)} {name!r}: {meant(name, known)}choose from {choices}")
    return known[name]


def load(group: str, name: str) -> Callable[..., Any]:
    """The class or function registered under a name."""
    factory: Callable[..., Any] = point(group, name).load()
    return factory


def meant(name: str, known: Iterable[str]) -> str:
    """A suggestion of the known name closest to a mistyped one, as a question; empty if none is close.

    Of names that a short one begins, as `tapout` does five, the first is close.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=NEAR)
    near = near or sorted(one for one in known if name and one.startswith(f"{name}-"))
    return f"did you mean {near[0]}? Or " if near else ""


def _singular(group: str) -> str:
    return group[:-1].replace("policie", "policy")


# -- options ----------------------------------------------------------------------------------------------


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
    """Return the options, converted to the types that the factory declares; errors are those of `build`."""
    factory = load(group, spec.name)
    known, hints, options = options_of(factory), _hints(factory), {}
    for key, value in spec.options.items():
        if key not in known:
            choices = f"{meant(key, known)}choose from {', '.join(known)}" if known else "it has none"
            raise UserError(f"{spec.name} has no option {key!r}: {choices}")
        options[key] = _convert(f"{spec.name}?{key}={value}", value, hints[key])
    return options


def refuse_idle(group: str, spec: Spec, text: str, rules: Iterable[Idle]) -> None:
    """Raise a `UserError` for an option that has no effect beside the others of `text`."""
    options = options_of(load(group, spec.name))
    given = {name: option.default for name, option in options.items()} | read_options(group, spec)
    for option, is_idle, remedy in rules:
        if option in spec.options and is_idle(given):
            raise UserError(f"{_singular(group)} {text}: {option} has no effect here: {remedy}")


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)


def _convert(given: str, text: str, hint: Any) -> Any:
    """Return an option's value; an error begins with what was `given`."""
    kind, *notes = get_args(hint) or (hint,)
    if kind is bool:
        if text.lower() in YES + NO:
            return text.lower() in YES
        raise UserError(f"{given}: write true or false")
    if kind not in (int, float):
        return text
    try:
        number = kind(text)
    except ValueError:
        raise UserError(
            f"{given}: {text!r} is not {'a whole number' if kind is int else 'a number'}"
        ) from None
    if not math.isfinite(number):
        raise UserError(f"{given}: give a finite number")
    for within in notes:
        if isinstance(within, Within):
            within.check(given, number)
    return number


# -- descriptions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the name of its type, its default, and its help (the text of its `Annotated`)."""

    type: str
    default: Any
    help: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered component.

    `help` is the first line of its docstring and `details` the other paragraphs. `source` is its line
    `Source: NAME (REFERENCE), PLACE.`, if it has one. `argument` is the placeholder for what follows the name
    and a colon, such as PATH, or empty.
    """

    name: str
    help: str
    details: str
    source: str
    argument: str
    options: Mapping[str, Option]

    @property
    def origin(self) -> str:
        """Name and reference of the source, without the place in it."""
        head, bracket, _ = self.source.partition(")")
        return head + bracket if bracket else self.source.partition(",")[0]

    @property
    def usage(self) -> str:
        """How to write the component on a command line: with its first option at its default, or by
        `USAGES`."""
        if self.name in USAGES:
            return USAGES[self.name]
        head = f"{self.name}:{self.argument}" if self.argument else self.name
        first = next(((k, o.default) for k, o in self.options.items() if o.default != ""), None)
        return f"{head}?{first[0]}={shown(first[1])}" if first else head


Description = tuple[str, list[str], dict[str, Option]]
"""Docstring, positional parameters, options."""


def describe(group: str) -> list[Entry]:
    """Every registered component of a group, by name."""
    return [entry(group, name) for name in names(group)]


def entry(group: str, name: str) -> Entry:
    """The description of one component; its `help` says so if it cannot be loaded."""
    at = point(group, name)
    try:
        doc, required, options = _written(at) or _imported(at.load())
    except Exception as error:  # a plug-in's fault, which must not hide what else there is
        doc, required, options = f"Cannot be loaded: {one_line(error)}", [], {}
    text = inspect.cleandoc(doc).partition("\nRaises:\n")[0].strip()
    help, _, rest = text.partition("\n")
    lines = rest.splitlines()
    own = at.dist and f"{at.dist.name} {at.dist.version}"
    source = next((line.removeprefix(SOURCE).rstrip(".") for line in lines if line.startswith(SOURCE)), own)
    details = "\n".join(line for line in lines if not line.startswith(SOURCE)).strip()
    paths = [p for p in required if p not in ("drafters", "target", "vocab_size")]
    return Entry(name, help.strip(), details, source or "", paths[0].upper() if paths else "", options)


def shown(default: Any) -> str:
    """A default as a user would write it."""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _imported(factory: Callable[..., Any]) -> Description:
    hints, options = _hints(factory), dict[str, Option]()
    for name, parameter in options_of(factory).items():
        kind, *notes = get_args(hints[name]) or (hints[name],)
        help = next((text for text in notes if isinstance(text, str)), "")
        options[name] = Option(getattr(kind, "__name__", str(kind)), parameter.default, help)
    parameters = inspect.signature(factory).parameters.items()
    positional = [name for name, p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return inspect.getdoc(factory) or "", positional, options


def _written(at: EntryPoint) -> Description | None:
    """The description from the source file; None if the object must be imported."""
    spec = find_spec(at.module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    node = next((n for n in body if getattr(n, "name", None) == at.attr), None)
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.decorator_list:
        return None
    function: ast.stmt | None = node
    if isinstance(node, ast.ClassDef):
        function = next((n for n in node.body if getattr(n, "name", None) == "__init__"), None)
        if function is None:
            return None if node.bases else (ast.get_docstring(node) or "", [], {})
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args) if a.arg != "self"]
    try:
        options = dict(_literal(arguments))
    except ValueError:
        return None
    return ast.get_docstring(node) or "", positional, options


def _literal(arguments: ast.arguments) -> Iterator[tuple[str, Option]]:
    """The keyword-only parameters that a user may set; a ValueError says that one is no literal."""
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = None if default is None else ast.literal_eval(default)
        if not isinstance(value, (int, float, str)):
            continue
        kind, help = argument.annotation, ""
        if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple):
            help = ast.literal_eval(kind.slice.elts[1])
            kind = kind.slice.elts[0]
        if not isinstance(kind, ast.Name) or kind.id not in ("bool", "int", "float", "str"):
            raise ValueError("a type of its own")
        yield argument.arg, Option(kind.id, value, help)
