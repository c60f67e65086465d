"""Text that a caller hands in: arguments and standard input, which must be UTF-8."""

from __future__ import annotations

import sys
from collections.abc import Callable

from draftwise.errors import UserError

MOST_SHOWN = 40  # characters of an argument in an error


def utf8(text: str, what: str) -> str:
    """The text, checked: Python reads bytes that are not UTF-8 as lone surrogates, which cannot be encoded.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = ascii(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")
        raise UserError(f"{what} is not UTF-8 text: {shown}; convert it first") from None
    return text


def standard_input(read: Callable[[], str]) -> str:
    """The text that `read` takes from standard input.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return utf8(read(), "standard input")
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8 text: convert it first") from error


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`.

    Raises:
        UserError: it is empty.
    """
    text = standard_input(sys.stdin.read).removesuffix("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty: give some text, or - for standard input")
    return text
