"""Files that are whole or not there: written beside the old one, then renamed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write to; it becomes `path` if all went well, else it is removed.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
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


@contextmanager
def replacing_all(*paths: Path) -> Iterator[list[Path]]:
    """Give a place to write to for each of `paths`; all become these if all went well, the first last."""
    with ExitStack() as stack:
        yield [stack.enter_context(replacing(path)) for path in paths]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
