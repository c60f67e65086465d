"""What people hand in: JSON that can be read, whole Unicode, names given once, and how to show a value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from .errors import UserError


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: it is no JSON, or nested more deeply than can be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole(text: str, what: str) -> str:
    """The text itself.

    Raises:
        UserError: there is half a character in it, which no tokenizer can read.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise UserError(f"{what} has half a character (U+{half:04X}): repair its encoding") from None
    return text


def show(value: Any) -> str:
    """Return a short representation of any value, in one line."""
    try:
        text = repr(value)
    except RecursionError:
        text = "what is nested so deeply"
    return " ".join(text[:60].split()) + ("..." if len(text) > 60 else "")


def expanded(path: str | PathLike[str]) -> Path:
    """Return a path with `~` and `~user` replaced by the home of that user.

    Raises:
        UserError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{str(path)!r} begins with no user of this machine: name the folder in full"
        ) from error


def once(what: str, names: Sequence[str]) -> None:
    """Check that no name is there twice.

    Raises:
        UserError: one is.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{what}: {twice[0]} is repeated: give each once")
