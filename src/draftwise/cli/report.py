"""`draftwise report`: the page of a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .options import AsJson
from .progress import waiting


def report(
    folder: Annotated[
        Path, typer.Argument(help="A folder that bench, replay or simulate wrote with --out.", metavar="DIR")
    ],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with the run in this folder; may be given several times.", metavar="DIR"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write report.html, report.md and pictures for a folder of results.

    Examples:
    draftwise report results
    draftwise report results --beside earlier-results
    """
    from draftwise.measure.report import write_report

    with waiting("drawing"):
        write_report(folder, beside=beside or ())
    page = folder / "report.html"
    if as_json:
        show.dump({"report": str(page), "markdown": str(folder / "report.md")})
    else:
        print(page)
