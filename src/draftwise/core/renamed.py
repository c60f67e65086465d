"""Earlier names, which keep working for one version and warn."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from warnings import warn

Function = TypeVar("Function", bound=Callable[..., Any])


def alias(old: str, new: str) -> Any:
    """Return a property `old` that reads and writes the attribute `new`."""

    def read(self: Any) -> Any:
        warn_renamed(old, new, 3)
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warn_renamed(old, new, 3)
        setattr(self, new, value)

    return property(read, write, doc=f"The earlier name of `{new}`.")


def accept_earlier(**names: str) -> Callable[[Function], Function]:
    """Let a function take its keyword arguments by their earlier names too: `old="new"`."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            for old in names.keys() & named.keys():
                warn_renamed(old, names[old], 3)
                named[names[old]] = named.pop(old)
            return function(*args, **named)

        return call  # type: ignore[return-value]

    return decorate


def warn_renamed(old: str, new: str, level: int) -> None:
    """Warn that the caller `level` frames above uses an earlier name."""
    warn(f"`{old}` is now `{new}`; the earlier name goes with the next version", DeprecationWarning, level)
