"""Text from standard input, which must be UTF-8, and what goes to standard error."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from draftwise.errors import DraftwiseWarning, UserError
from draftwise.inputs import whole


def standard_input(read: Callable[[], str]) -> str:
    """The text that `read` takes from standard input."""
    try:
        return whole(read(), "standard input")
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8 text: convert it first") from error


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`."""
    text = standard_input(sys.stdin.read).removesuffix("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty: give some text, or - for standard input")
    return text


LOG = logging.getLogger("draftwise")

unended: list[Callable[[], None]] = []
"""Ends the line of text that a terminal shows so far; empty where none is open."""


class OneLine(logging.Handler):
    """Prints `level: message` to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        if unended and sys.stderr.isatty():
            unended.pop()()
        print(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)


@contextmanager
def to_stderr() -> Iterator[None]:
    """Show the library's warnings and log records while a command runs, then everything as it was."""
    handler, level = OneLine(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.WARNING)
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, DraftwiseWarning):
            LOG.warning("%s", message)
        else:
            default(message, category, *place)  # type: ignore[arg-type]

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        unended.clear()
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        if warnings.showwarning is show:
            warnings.showwarning = default


def set_level(*, quiet: bool, verbose: bool) -> None:
    """Follow --quiet and --verbose; without either, what was set before stays."""
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other: give one of them")
    if quiet or verbose:
        LOG.setLevel(logging.ERROR if quiet else logging.INFO)


def quiet() -> bool:
    return not LOG.isEnabledFor(logging.WARNING)


def verbose() -> bool:
    return LOG.isEnabledFor(logging.INFO)
