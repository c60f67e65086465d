"""What goes to standard error: warnings by default, nothing with --quiet, decisions too with --verbose.

All of it passes through the logger `draftwise`, which a program that imports the library sets up for itself.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from draftwise.errors import DraftwiseWarning, UserError

LOG = logging.getLogger("draftwise")

unended: list[Callable[[], None]] = []
"""Ends the line of text that a terminal shows so far; empty where none is open."""


class OneLine(logging.Handler):
    """Prints `level: message` to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record, on a line of its own."""
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
    """Follow --quiet and --verbose; without either, what was set before stays.

    Raises:
        UserError: both are given.
    """
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other: give one of them")
    if quiet or verbose:
        LOG.setLevel(logging.ERROR if quiet else logging.INFO)


def quiet() -> bool:
    """Whether --quiet holds."""
    return not LOG.isEnabledFor(logging.WARNING)


def verbose() -> bool:
    """Whether --verbose holds."""
    return LOG.isEnabledFor(logging.INFO)
