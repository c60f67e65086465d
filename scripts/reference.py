"""Write the parts of the reference that the code itself says, as snippets for the documentation's pages.

    python -m scripts.reference [FOLDER]    (default: build/reference; scripts/docs calls it)

Policies, drafters and their options come from the registry, the command line from Typer, the arguments of
`generate` from the tests that hold them. Nothing of it is kept in the repository, so it cannot become untrue.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from draftwise.cli.app import app
from draftwise.cli.lists import by_origin
from draftwise.policies.catalogue.compose import DEFAULT
from draftwise.registry import Entry, describe, shown
from tests.hosts import arguments


def section(one: Entry, level: str) -> str:
    """What one policy or drafter is, its source, its options and how to write it."""
    default = "**The default policy.** " if one.name == DEFAULT else ""
    parts = [f"{level} `{one.name}`", default + one.help, one.details, f"Source: {one.source}."]
    if one.options:
        rows = [
            f"| `{name}` | {option.help} | {option.type} "
            f"| {f'`{shown(option.default)}`' if option.default != '' else ''} |"
            for name, option in one.options.items()
        ]
        parts.append("\n".join(["| option | what it sets | type | default |", "|---|---|---|---|", *rows]))
    return "\n\n".join([*filter(None, parts), f"Example: `{one.usage}`"]) + "\n"


def sections(entries: Iterable[Entry], level: str) -> str:
    return "\n".join(section(one, level) for one in entries)


def policies() -> str:
    """Every policy under its paper; the default first."""
    groups = by_origin(describe("policies"), first=DEFAULT)
    titled = ((title[:1].upper() + title[1:], group) for title, group in groups.items())
    return "\n".join(f"## {title}\n\n{sections(group, '###')}" for title, group in titled)


def drafters() -> str:
    return sections(describe("drafters"), "##")


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


PARTS = {
    "policies": policies,
    "drafters": drafters,
    "command-line": command_line,
    "arguments": arguments.table,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in PARTS.items():
        (folder / f"{name}.md").write_text(write() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/reference"))
