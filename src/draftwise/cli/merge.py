"""`draftwise merge`: several state files into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .options import AsJson


def merge(
    files: Annotated[list[Path], typer.Argument(help="State files of the same policy, target and drafters.")],
    out: Annotated[Path, typer.Option(help="The file to write; it may be one of the inputs.")],
    as_json: AsJson = False,
) -> None:
    """Merge the state files of several replicas into one.

    Examples:
    draftwise merge replica-1.json replica-2.json --out learned.json
    """
    from draftwise.policies.catalogue import method
    from draftwise.state.merge import merge as merge_files

    told = merge_files(files, out, new_policy=lambda name, drafters: method(name, drafters).policy)
    if as_json:
        show.dump(told)
    else:
        typer.echo(f"{told['policy']}: {len(files)} files merged into {out}")
