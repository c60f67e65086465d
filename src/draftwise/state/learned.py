"""Learned fields: each declares, where it is defined, that it is saved and how several are merged.

    counts: list[float] = field(default_factory=list, metadata=learned(adds))
    means: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))

A field marked `LEARNED` is saved as well, but has no merge rule: state with such a field cannot be merged. An
object that computes some fields from others declares those with `follows`, and has a method `merged()`, which
is called once the others are set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

Rule: TypeAlias = Callable[[Any, Sequence[Any], str], Any]
"""Returns the merged value of a field, from a new object, the objects to merge, and the field's name."""

LEARNED: Mapping[str, Any] = MappingProxyType({"learned": True})
"""Marks a dataclass field as learned rather than an option: `field(default=0, metadata=LEARNED)`."""

L = TypeVar("L")


def learned(rule: Rule) -> Mapping[str, Any]:
    """Marks a dataclass field as learned, with its merge rule."""
    return MappingProxyType({"learned": True, "merge": rule})


def is_learned(field: Field[Any]) -> bool:
    """Return if a dataclass field is learned rather than an option."""
    return bool(field.metadata.get("learned"))


def learned_fields(node: Any) -> list[Field[Any]]:
    """Return the learned fields of a dataclass, without `flight`: decisions in flight are not state."""
    return [field for field in fields(node) if is_learned(field) and field.name != "flight"]


def fresh(learner: L) -> L:
    """Return a learner with the same options that has learned nothing, for a new text."""
    options = {f.name: getattr(learner, f.name) for f in fields(cast(Any, learner)) if not is_learned(f)}
    return type(learner)(**options)


def restore(kind: type[L], saved: Mapping[str, Any]) -> L:
    """Return a learner from its saved fields, without the decisions that were in flight when it was saved."""
    return kind(**{name: value for name, value in saved.items() if name != "flight"})


# -- rules for merging -------------------------------------------------------------------------------------


def adds(blank: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the sum of each part's increase over a new object, of mappings by key; integers stay such."""
    start, values = getattr(blank, name), [getattr(part, name) for part in parts]
    if isinstance(start, Mapping):
        keys = dict.fromkeys(key for mapping in (start, *values) for key in mapping)
        return {k: start.get(k, 0) + sum(one.get(k, 0) - start.get(k, 0) for one in values) for k in keys}
    first = np.asarray(start)
    return (first + sum(np.asarray(value) - first for value in values)).tolist()


def mean_by(weight: str) -> Rule:
    """Return the rule of the elementwise mean, weighted by the field named `weight`."""

    def rule(blank: Any, parts: Sequence[Any], name: str) -> Any:
        behind = [part for part in parts if np.sum(getattr(part, weight)) > 0]
        if not behind:
            return getattr(blank, name)
        weights = np.array([np.asarray(getattr(part, weight), dtype=float) for part in behind])
        values = np.array([np.asarray(getattr(part, name), dtype=float) for part in behind])
        total = weights.sum(0)
        return ((weights * values).sum(0) / np.where(total > 0, total, 1.0)).tolist()

    return rule


def averages(blank: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the mean over the parts with a change in any learned field; integers are rounded."""
    names = [field.name for field in learned_fields(blank)]
    start, value = [getattr(blank, key) for key in names], getattr(blank, name)
    moved = [part for part in parts if [getattr(part, key) for key in names] != start]
    if not moved:
        return value
    mean = sum(getattr(part, name) for part in moved) / len(moved)
    return round(mean) if type(value) is int else mean


def mean_of_known(blank: Any, parts: Sequence[Any], name: str) -> Any:
    """Return the mean over the parts in which the number is not 0."""
    numbers = [value for part in parts if (value := getattr(part, name))]
    return sum(numbers) / len(numbers) if numbers else getattr(blank, name)


def follows(blank: Any, parts: Sequence[Any], name: str) -> Any:
    """Leave the field unset: the method `merged` computes it from the others."""
    return getattr(blank, name)
