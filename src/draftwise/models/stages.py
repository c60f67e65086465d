"""The stages of loading, for a command that shows them. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from logging import getLogger

LOG = getLogger(__name__)

listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)
"""Takes the name of each stage as it begins; without one they are logged."""


def announce(stage: str) -> None:
    """Say which stage begins, such as `reading zoo:target`."""
    (listener.get() or LOG.info)(stage)
