"""Describes registered components: purpose, source, and options with types and defaults.

The description is read from the source file if possible, so that listing drafters imports no torch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..errors import one_line
from . import names, point

SOURCE = "Source: "  # the line of a docstring that names paper and reference
USAGES = {"cascade": "zoo:general,ngram,cascade:zoo:general>ngram?match=1"}
"""How to write a component that needs others beside it."""


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
        """How to write the component on a command line, with its first option at its default, or by
        `USAGES`."""
        if self.name in USAGES:
            return USAGES[self.name]
        said = f"{self.name}:{self.argument}" if self.argument else self.name
        first = next(((k, o.default) for k, o in self.options.items() if o.default != ""), None)
        return f"{said}?{first[0]}={shown(first[1])}" if first else said


def describe(group: str) -> list[Entry]:
    """Every registered component of a group, by name."""
    return [entry(group, name) for name in names(group)]


def entry(group: str, name: str) -> Entry:
    """The description of one component; its `help` says so if it cannot be loaded.

    Raises:
        UserError: nothing is registered under this name.
    """
    found = point(group, name)
    try:
        doc, required, options = _written(found) or _imported(found.load())
    except Exception as error:  # a plug-in's fault, which must not hide what else there is
        doc, required, options = f"Cannot be loaded: {one_line(error)}", [], {}
    help, details, source = _parts(doc)
    if not source and found.dist is not None:
        source = f"{found.dist.name} {found.dist.version}"
    given = [p for p in required if p not in ("drafters", "target", "vocab_size")]
    return Entry(name, help, details, source, given[0].upper() if given else "", options)


def shown(default: Any) -> str:
    """A default as a user would write it."""
    return str(default).lower() if isinstance(default, bool) else str(default)


Found = tuple[str, list[str], dict[str, Option]]  # docstring, positional parameters, options


def _parts(doc: str) -> tuple[str, str, str]:
    """First line, other paragraphs, and source of a docstring; its `Raises:` section is left out."""
    text = inspect.cleandoc(doc).partition("\nRaises:\n")[0].strip()
    first, _, rest = text.partition("\n")
    lines = rest.splitlines()
    source = next((line.removeprefix(SOURCE) for line in lines if line.startswith(SOURCE)), "")
    details = "\n".join(line for line in lines if not line.startswith(SOURCE))
    return first.strip(), details.strip(), source.rstrip(".")


def _imported(factory: Callable[..., Any]) -> Found:
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    positional, options = list[str](), dict[str, Option]()
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(name)
        elif isinstance(parameter.default, (int, float, str)):
            kind, *said = get_args(hints[name]) or (hints[name],)
            help = next((text for text in said if isinstance(text, str)), "")
            options[name] = Option(getattr(kind, "__name__", str(kind)), parameter.default, help)
    return inspect.getdoc(factory) or "", positional, options


def _written(found: EntryPoint) -> Found | None:
    """The description from the source file; None if the object must be imported."""
    spec = find_spec(found.module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    node = next((n for n in body if getattr(n, "name", None) == found.attr), None)
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.decorator_list:
        return None
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not inits:
            return None if node.bases else (ast.get_docstring(node) or "", [], {})
        arguments = inits[0].args
    else:
        arguments = node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args) if a.arg != "self"]
    try:
        options = dict(_literal(arguments))
    except ValueError:
        return None
    return ast.get_docstring(node) or "", positional, options


def _literal(arguments: ast.arguments) -> Iterator[tuple[str, Option]]:
    """The keyword-only parameters that a user may set.

    Raises:
        ValueError: a default or a type is not a literal.
    """
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = None if default is None else ast.literal_eval(default)
        if not isinstance(value, (int, float, str)):
            continue
        kind: ast.expr | None = argument.annotation
        help = ""
        if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple):
            help = ast.literal_eval(kind.slice.elts[1])
            kind = kind.slice.elts[0]
        if not isinstance(kind, ast.Name) or kind.id not in ("bool", "int", "float", "str"):
            raise ValueError("a type of its own")
        yield argument.arg, Option(kind.id, value, help)
