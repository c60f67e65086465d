"""`draftwise merge`: one state file of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .options import AsJson


def merge(
    files: Annotated[list[Path], typer.Argument(help="State files of one policy, target and team.")],
    out: Annotated[Path, typer.Option(help="The file to write; it may be one of the others.")],
    as_json: AsJson = False,
) -> None:
    """Merge what several replicas have learnt into one state file."""
    from draftwise.state.merge import merge as merge_files

    told = merge_files(files, out)
    if as_json:
        show.dump(told)
    else:
        typer.echo(f"{told['policy']}: {len(files)} files merged into {out}")
