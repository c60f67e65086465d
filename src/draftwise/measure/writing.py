"""Files that are whole or not there: written beside the old one, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write to; it becomes `path` if all went well, else it is removed.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        if error.errno and error.filename in (None, str(part)):  # a full disk names no file at all
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):  # what failed before it is the reason to tell
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def make_folder(out: Path) -> None:
    """Make the folder for results, and try to make a file in it: before work, not after it.

    Raises:
        UserError: it cannot be made, or nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise UserError(f"cannot write to {str(out)!r}: {error.strerror}; choose another --out") from None


def refuse_benchmark(out: Path) -> None:
    """Refuse a folder that holds the results of a benchmark.

    Raises:
        UserError: it does.
    """
    if (out / "run.json").exists():
        raise UserError(f"{str(out)!r} holds a benchmark: choose another --out")


def check_reachable(out: Path) -> None:
    """Check that a folder for results is there or can be made, without making it.

    Raises:
        UserError: it or a folder above it is a file, or nothing can be written there.
    """
    if out.is_dir():
        make_folder(out)
        return
    above = next((place for place in (out, *out.absolute().parents) if place.exists()), out)
    if not above.is_dir():
        raise UserError(f"cannot write to {str(out)!r}: {above} is no folder; choose another --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {str(out)!r}: no permission in {above}; choose another --out")
