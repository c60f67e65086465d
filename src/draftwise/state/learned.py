"""Learned fields: each declares, where it is defined, that it is saved and how several are merged.

    counts: list[float] = field(default_factory=list, metadata=learned(adds))
    means: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))

A field marked `LEARNED` is saved as well, but has no merge rule: state with such a field cannot be merged. An
object that computes some fields from others declares those with `follows`, and has a method `merged()`, which
is called once the others are set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from ..errors import UserError

Rule: TypeAlias = Callable[[Any, Sequence[Any], str], Any]
"""Returns the merged value of a field: from the object that all once were (a new one, or what they last had
in common), the objects to merge, and the field's name."""

LEARNED: Mapping[str, Any] = MappingProxyType({"learned": True})
"""Marks a dataclass field as learned rather than an option: `field(default=0, metadata=LEARNED)`."""

L = TypeVar("L")


def learned(rule: Rule) -> Mapping[str, Any]:
    """Marks a dataclass field as learned, with its merge rule."""
    return MappingProxyType({"learned": True, "merge": rule})


def is_learned(field: Field[Any]) -> bool:
    """Return if a dataclass field is learned rather than an option."""
    return bool(field.metadata.get("learned"))


def learned_fields(node: Any) -> tuple[Field[Any], ...]:
    """Return the learned fields of a dataclass, without `flight`: decisions in flight are not state."""
    kind: Any = type(node)
    return _learned_fields(kind)


@cache
def _learned_fields(kind: type) -> tuple[Field[Any], ...]:
    return tuple(field for field in fields(kind) if is_learned(field) and field.name != "flight")


def fresh(learner: L) -> L:
    """Return a learner with the same options that has learned nothing, for a new text."""
    options = {f.name: getattr(learner, f.name) for f in fields(cast(Any, learner)) if not is_learned(f)}
    return type(learner)(**options)


# -- merging ------------------------------------------------------------------------------------------------


def combine(into: Any, parts: Sequence[Any], base: Any = None) -> None:
    """Set what `into`, or a part of it, has learned to what `parts` have learned since they were all `base`.

    All are of one shape. Without `base`, `into` is new, and so were they. `into` may be one of the parts.

    Raises:
        UserError: a learned field without a rule; the message names the field.
    """
    base = into if base is None else base
    numbers = [f for f in learned_fields(into) if not list(_dataclasses(getattr(into, f.name)))]
    for field in numbers:
        if field.metadata.get("merge") is None:
            raise UserError(
                f"{type(into).__name__}.{field.name} has no rule for merging: declare it with "
                "metadata=learned(rule), or merge the state of another policy"
            )
    for child, old, *others in zip(_children(into), _children(base), *map(_children, parts), strict=True):
        combine(child, others, old)
    if all(part is into for part in _moved(base, parts, [field.name for field in numbers])):
        return
    for name, value in [(f.name, f.metadata["merge"](base, parts, f.name)) for f in numbers]:
        setattr(into, name, value)
    if hasattr(into, "merged"):
        into.merged()


def _children(node: Any) -> Iterator[Any]:
    for field in fields(node):
        yield from _dataclasses(getattr(node, field.name))


def _dataclasses(value: Any) -> Iterator[Any]:
    items = value if isinstance(value, (list, tuple)) else [value]
    for one in () if items and type(items[0]) is float else items:  # numbers have one type
        if is_dataclass(one) and not isinstance(one, type):
            yield one


def adds(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the sum of each part's increase over `base`, of mappings by key; integers stay such."""
    start, values = getattr(base, name), [getattr(part, name) for part in parts]
    if isinstance(start, Mapping):
        keys = dict.fromkeys(key for mapping in (start, *values) for key in mapping)
        return {k: start.get(k, 0) + sum(one.get(k, 0) - start.get(k, 0) for one in values) for k in keys}
    first = np.asarray(start)
    return (first + sum(np.asarray(value) - first for value in values)).tolist()


def fades(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the sum of counts that lose weight as new ones come.

    An increase over a base that was to fade can be negative, or more than all that was counted. So what has
    changed since a base that is not empty is averaged, number by number.
    """
    start, values = np.asarray(getattr(base, name)), [np.asarray(getattr(part, name)) for part in parts]
    moved = [value != start for value in values]
    total = sum(np.where(move, value, 0) for move, value in zip(moved, values, strict=True))
    fading = (field.name for field in learned_fields(base) if field.metadata.get("merge") is fades)
    if any(np.any(getattr(base, each)) for each in fading):
        count = sum(move.astype(int) for move in moved)
        total = np.where(count > 0, total / np.maximum(count, 1), start)
    return np.asarray(total).tolist()


def mean_by(weight: str) -> Rule:
    """Return the rule of the elementwise mean of what has changed, weighted by the field named `weight`."""

    def rule(base: Any, parts: Sequence[Any], name: str) -> Any:
        moved = [p for p in _moved(base, parts, (name, weight)) if np.sum(getattr(p, weight)) > 0]
        if not moved:
            return getattr(base, name)
        weights = np.array([np.asarray(getattr(part, weight), dtype=float) for part in moved])
        values = np.array([np.asarray(getattr(part, name), dtype=float) for part in moved])
        total = weights.sum(0)
        return ((weights * values).sum(0) / np.where(total > 0, total, 1.0)).tolist()

    return rule


def averages(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the mean over the parts with a change in any learned field; integers are rounded."""
    moved = _moved(base, parts, [field.name for field in learned_fields(base)])
    value = getattr(base, name)
    if not moved:
        return value
    mean = sum(getattr(part, name) for part in moved) / len(moved)
    return round(mean) if type(value) is int else mean


def mean_of_known(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the mean over the parts in which the number has changed, and is not 0."""
    numbers = [value for part in _moved(base, parts, [name]) if (value := getattr(part, name))]
    return sum(numbers) / len(numbers) if numbers else getattr(base, name)


def follows(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Leave the field unset: the method `merged` computes it from the others."""
    return getattr(base, name)


def _moved(base: Any, parts: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return the parts that differ from `base` in one of these fields."""
    start = [getattr(base, name) for name in names]
    return [part for part in parts if [getattr(part, name) for name in names] != start]
