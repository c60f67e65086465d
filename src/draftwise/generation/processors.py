"""Settings for several texts: each text gets its own logits processors. Standard library only."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import UserError, one_line


def reusable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with iterators read into tuples: each text reads them."""
    return {k: tuple(value) if isinstance(value, Iterator) else value for k, value in settings.items()}


def own_processors(processors: Sequence[Any], *, alone: bool) -> tuple[Any, ...]:
    """Return the processors of one text: a processor may keep a state, which belongs to one text only.

    A class, or a function that takes no arguments, is called to make a new one. Other processors are copied,
    unless the text is `alone`: then the given object itself is used. Models inside a processor are shared,
    not copied.

    Raises:
        UserError: a processor cannot be copied.
    """
    return tuple(_make(p) if _is_factory(p) else p if alone else _copy(p) for p in processors)


def _is_factory(processor: Any) -> bool:
    """Return whether this is a class, or a function that takes no token ids and scores.

    A module of torch takes any arguments itself, and passes them on to `forward`.
    """
    function = processor
    while isinstance(function, partial):
        function = function.func
    if inspect.isclass(function):
        return True
    call = getattr(processor, "forward", processor)
    return _accepts(call) and not _accepts(call, "ids", "scores")


def _accepts(call: Any, *arguments: str) -> bool:
    try:
        inspect.signature(call).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _make(factory: Any) -> Any:
    try:
        return factory()
    except TypeError as error:
        message = f"processors: {factory!r} cannot be called without arguments ({one_line(error)})"
        raise UserError(message) from None


def _copy(processor: Any) -> Any:
    values = getattr(processor, "__dict__", {}).values()
    shared = {id(value): value for value in values if callable(getattr(value, "parameters", None))}
    try:
        return copy.deepcopy(processor, shared)  # models, which hold their weights in parameters, are shared
    except Exception as error:
        raise UserError(
            f"processors: {type(processor).__name__} cannot be copied for each of several texts "
            f"({one_line(error)}): give a function that makes one"
        ) from error
