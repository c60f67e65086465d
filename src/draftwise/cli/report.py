"""`draftwise report`: the page of a folder of results, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .options import AsJson


def report(
    folder: Annotated[
        Path, typer.Argument(help="What bench, replay or simulate wrote with --out.", metavar="DIR")
    ],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with the run in this folder; may be repeated.", metavar="DIR"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.html, report.md and the pictures of a folder of results."""
    from draftwise.measure.report import write_report

    with show.waiting("Drawing"):
        write_report(folder, beside=beside or ())
    page = folder / "report.html"
    if as_json:
        show.dump({"report": str(page), "markdown": str(folder / "report.md")})
    else:
        print(page)
