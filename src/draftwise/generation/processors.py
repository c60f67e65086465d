"""Logits processors for several texts: each text gets its own. Standard library only."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import UserError, one_line


def own(processors: Sequence[Any], *, alone: bool) -> tuple[Any, ...]:
    """The processors of one text: a processor may keep a state, which belongs to one text only.

    A function or class without arguments is called to make a new one. Other processors are copied, unless the
    text is `alone`: then the given object itself is used. Models inside a processor are shared, not copied.

    Raises:
        UserError: a processor cannot be copied.
    """
    return tuple(_made(p) if _makes(p) else p if alone else _copied(p) for p in processors)


def _makes(processor: Any) -> bool:
    """Whether this is a factory of processors: a class, or a function that needs no arguments."""
    if inspect.isclass(processor):
        return True
    try:
        inspect.signature(processor).bind()
    except (TypeError, ValueError):
        return False
    return True


def _made(maker: Any) -> Any:
    try:
        return maker()
    except TypeError as error:
        raise UserError(
            f"processors: {maker!r} cannot be called without arguments ({one_line(error)})"
        ) from None


def _copied(processor: Any) -> Any:
    try:
        return copy.deepcopy(processor, _shared(processor))
    except Exception as error:
        raise UserError(
            f"processors: {type(processor).__name__} cannot be copied for each of several texts "
            f"({one_line(error)}): give a function that makes one"
        ) from error


def _shared(processor: Any) -> dict[int, Any]:
    """The objects that copies share: models, which hold their weights in parameters."""
    held = list(getattr(processor, "__dict__", {}).values())
    return {id(value): value for value in held if callable(getattr(value, "parameters", None))}
