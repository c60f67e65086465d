"""Write the parts of the reference that the code itself says, as snippets for the documentation's pages.

    python scripts/reference.py [FOLDER]    (default: build/reference; scripts/docs calls it)

Policies, drafters and their options come from the registry, the command line from Typer. Nothing of it is
kept in the repository, so that it cannot become untrue.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.cli import get_docs_for_click

from draftwise.cli.app import app
from draftwise.registry import load, names, options_of

DEFAULT = "auto"


def options_table(factory: Callable[..., Any]) -> str:
    """The options that a user may set, with types and defaults; nothing where there are none."""
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    rows = [
        f"| `{name}` | {hints[name].__name__} | {shown(parameter.default)} |"
        for name, parameter in options_of(factory).items()
    ]
    return "\n".join(["| option | type | default |", "|---|---|---|", *rows]) if rows else "No options."


def shown(default: object) -> str:
    """A default as a user would write it."""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default != "" else "(empty)"


def entries(group: str, level: str) -> Iterator[str]:
    """One section for each name of a group: what it is, and its options."""
    for name in names(group):
        yield section(group, name, level)


def section(group: str, name: str, level: str) -> str:
    factory = load(group, name)
    return f"{level} `{name}`\n\n{inspect.getdoc(factory)}\n\n{options_table(factory)}\n"


def policies() -> str:
    """Every policy under the paper, or the kind of rule, that its module names; the default first."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names("policies"), key=lambda name: (name != DEFAULT, name)):
        module = inspect.getmodule(load("policies", name))
        said = (inspect.getdoc(module) or name).partition("\n")[0]
        groups.setdefault(said, []).append(section("policies", name, "###"))
    return "\n".join(f"{titled(said)}\n\n" + "\n".join(parts) for said, parts in groups.items())


def titled(said: str) -> str:
    """A heading from a module's first line, `Title: explanation.`"""
    title, _, rest = said.rstrip(".").partition(": ")
    return f"## {title}\n\n{rest[:1].upper()}{rest[1:]}." if rest else f"## {title}"


def drafters() -> str:
    return "\n".join(entries("drafters", "##"))


def command_line() -> str:
    """The help of every command; lists of commands link to them, unshortened."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="draftwise")
    text = get_docs_for_click(obj=command, ctx=context, name="draftwise")
    for path, one in commands(command, "draftwise"):
        short, full = one.get_short_help_str(), (one.help or "").partition("\n")[0]
        text = text.replace(f"* `{one.name}`: {short}", f"* [`{one.name}`](#{path}): {full}")
    return text


def commands(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, and the anchor of its heading."""
    for name, one in getattr(group, "commands", {}).items():
        yield f"{above}-{name}", one
        yield from commands(one, f"{above}-{name}")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("policies", policies()), ("drafters", drafters()), ("command-line", command_line())):
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/reference"))
