"""Folders for results: what is refused before work, not after it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from ..errors import UserError


def make_folder(out: Path) -> None:
    """Make the folder for results, and try to make a file in it: before work, not after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise UserError(f"cannot write to {str(out)!r}: {error.strerror}; choose another --out") from None


def refuse_benchmark(out: Path) -> None:
    """Refuse a folder that holds the results of a benchmark."""
    if (out / "run.json").exists():
        raise UserError(f"{str(out)!r} holds a benchmark: choose another --out")


def check_reachable(out: Path) -> None:
    """Check that a folder for results is there or can be made, without making it."""
    if out.is_dir():
        make_folder(out)
        return
    above = next((place for place in (out, *out.absolute().parents) if place.exists()), out)
    if not above.is_dir():
        raise UserError(f"cannot write to {str(out)!r}: {above} is no folder; choose another --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {str(out)!r}: no permission in {above}; choose another --out")
