"""Settings for several texts: each text gets its own logits processors. Standard library only."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import UserError, one_line


def reusable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with iterators read into tuples: each text reads them."""
    return {k: tuple(value) if isinstance(value, Iterator) else value for k, value in settings.items()}


def own(processors: Sequence[Any], *, alone: bool) -> tuple[Any, ...]:
    """The processors of one text: a processor may keep a state, which belongs to one text only.

    A class, or a function that takes no arguments, is called to make a new one. Other processors are copied,
    unless the text is `alone`: then the given object itself is used. Models inside a processor are shared,
    not copied.

    Raises:
        UserError: a processor cannot be copied.
    """
    return tuple(_made(p) if _makes(p) else p if alone else _copied(p) for p in processors)


def _makes(processor: Any) -> bool:
    """Whether this is a factory of processors: a class, or a function that takes no token ids and scores.

    A module of torch takes any arguments itself, and passes them on to `forward`.
    """
    made = processor
    while isinstance(made, partial):
        made = made.func
    return inspect.isclass(made) or (
        _takes(made := getattr(processor, "forward", processor)) and not _takes(made, "ids", "scores")
    )


def _takes(call: Any, *arguments: str) -> bool:
    """Whether this can be called with such arguments, as far as it tells."""
    try:
        inspect.signature(call).bind(*arguments)
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
