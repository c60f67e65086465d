"""How a verb becomes a command: its help, its examples, and the options that every verb has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer import Option, Typer, echo
from typer.core import TyperCommand, TyperGroup

from . import show
from .progress import NARROW, hidden

EXAMPLES = "\nExamples:\n"
FENCE = "```"
WIDEST = 100  # columns of help text

AsJson = Annotated[bool, Option("--json", help="Print machine-readable JSON.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print results and errors only.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Also log models, probes, weight layouts and decisions to stderr.")
]


class Command(TyperCommand):
    """A verb: its options in sections, its examples as they are pasted."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, without wrapping a command."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines()[1:-1]:  # without the fence
                    formatter.write(f"  {line.strip()}\n")


class Group(TyperGroup):
    """Several verbs: each with the first sentence of its help, by section; alone it prints its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"invoke_without_command": True})

    def invoke(self, ctx: Any) -> Any:
        result = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            echo(ctx.get_help())
        return result

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            verb: Any = self.get_command(ctx, name)
            summary = " ".join((verb.help or "").partition("\n\n")[0].split())
            sections.setdefault(verb.rich_help_panel or "Commands", []).append((name, summary))
        for title, rows in sections.items():
            _write(formatter, title, rows)


def add(app: Typer, verb: Callable[..., Any], *, name: str = "", panel: str | None = None) -> None:
    """Register a verb; its docstring ends with `Examples:` and one command a line."""
    text, _, examples = inspect.cleandoc(verb.__doc__ or "").partition(EXAMPLES)
    code = f"{FENCE}sh\n{examples.strip()}\n{FENCE}" if examples else None  # Markdown, for the reference
    app.command(name or None, cls=Command, help=text.strip(), epilog=code, rich_help_panel=panel)(
        make_command(verb)
    )


def make_command(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return the verb with the fields of its dataclass parameters as options, --quiet and --verbose.

    One that returns a `Result` has --json too. With --json it shows no progress.
    """
    hints = get_type_hints(verb, include_extras=True)
    has_result = hints.pop("return", None) is show.Result
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for own in signature(verb).parameters.values():
        if own.name in groups:
            parameters += _list_options(groups[own.name])
        else:
            annotation = _annotation(hints[own.name])
            parameters.append(own.replace(annotation=annotation, kind=Parameter.KEYWORD_ONLY))
    if has_result:
        parameters.append(_option("as_json", AsJson, False))
    parameters += [_option("quiet", Quiet, False), _option("verbose", Verbose, False)]

    def command(*, quiet: bool, verbose: bool, **options: Any) -> Any:
        show.set_level(quiet=quiet, verbose=verbose)
        hidden.set(bool(options.get("as_json")))
        for name, group in groups.items():
            options[name] = group(**{f.name: options.pop(f.name) for f in fields(group)})
        as_json = has_result and options.pop("as_json")
        result = verb(**options)
        if not has_result:
            return result
        if as_json:
            show.dump(result.value)
        else:
            result.text()
        return result.status

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    return command


def _list_options(group: Any) -> Iterator[Parameter]:
    """The fields as options, in the `section` of their class."""
    hints = get_type_hints(group, include_extras=True)
    for f in fields(group):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        owner = next(kind for kind in group.__mro__ if f.name in vars(kind).get("__annotations__", ()))
        yield _option(f.name, _annotation(hints[f.name], vars(owner).get("section")), default)


def _annotation(hint: Any, section: str | None = None) -> Any:
    """What Typer reads; a text in an `Annotated` is the help of an option."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, info = get_args(hint)
    info = Option(help=info) if isinstance(info, str) else copy(info)
    info.rich_help_panel = info.rich_help_panel or section
    return Annotated[kind, info]


def _option(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the sections of arguments first, and the options of all verbs last."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if (record := parameter.get_help_record(ctx)) is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
    options = sections.pop("Options")
    for title, rows in (*sections.items(), ("Options", options)):
        if rows:
            _write(formatter, title, rows)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """One section; where the terminal is narrow, long names stand on a line of their own."""
    with formatter.section(title):
        formatter.write_dl(rows, col_max=30 if formatter.width >= NARROW else 12)
