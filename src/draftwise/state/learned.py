"""Learned fields: each declares, where it is defined, that it is saved and how several are merged.

    counts: list[float] = field(default_factory=list, metadata=learned(adds))
    means: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))

A field marked `LEARNED` is saved as well, but has no merge rule: state with such a field cannot be merged. An
object that computes some fields from others declares those with `follows`, and has a method `merged()`, which
is called once the others are set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from math import isfinite
from types import MappingProxyType, UnionType
from typing import Any, NoReturn, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

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


def learned_fields(node: Any) -> list[Field[Any]]:
    """Return the learned fields of a dataclass, without `flight`: decisions in flight are not state."""
    own = fields(node) if is_dataclass(node) else ()
    return [field for field in own if is_learned(field) and field.name != "flight"]


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
    nodes = [*zip(walk(into), walk(into if base is None else base), *map(walk, parts), strict=True)]
    for node, *_ in nodes:
        for field in _numbers(node):
            if field.metadata.get("merge") is None:
                raise UserError(
                    f"{type(node).__name__}.{field.name} has no rule for merging: declare it with "
                    "metadata=learned(rule), or merge the state of another policy"
                )
    for node, old, *others in nodes:
        numbers = _numbers(node)
        if all(part is node for part in _moved(old, others, [field.name for field in numbers])):
            continue
        for name, value in [(f.name, f.metadata["merge"](old, others, f.name)) for f in numbers]:
            setattr(node, name, value)
        if hasattr(node, "merged"):
            node.merged()


def _numbers(node: Any) -> list[Field[Any]]:
    """Return the learned fields that hold numbers."""
    return [field for field in learned_fields(node) if not holds_dataclass(getattr(node, field.name))]


def walk(node: Any) -> Iterator[Any]:
    """All dataclasses of a policy, itself included, parts before wholes."""
    for part in parts_of(node).values():
        yield from walk(part)
    if is_dataclass(node):
        yield node


def parts_of(node: Any) -> dict[str, Any]:
    """Return the fields or items of a node that are dataclasses or contain some.

    Mappings that are not learned hold data of single requests.
    """
    items: dict[Any, Any] = {}
    if is_dataclass(node):
        values = [(field, getattr(node, field.name)) for field in fields(node)]
        items = {f.name: x for f, x in values if is_learned(f) or not isinstance(x, Mapping)}
    elif isinstance(node, Mapping):
        items = dict(node)
    elif isinstance(node, (list, tuple)):
        items = dict(enumerate(node))
    return {str(name): part for name, part in items.items() if holds_dataclass(part)}


def holds_dataclass(value: Any) -> bool:
    """Return whether a value is a dataclass, or a list or mapping with some."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        is_numeric = bool(value) and type(value[0]) in (float, int)  # all items have one type
        return not is_numeric and any(map(holds_dataclass, value))
    return is_dataclass(value) and not isinstance(value, type)


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


# -- as strict JSON ----------------------------------------------------------------------------------------


NOT_FINITE = ("nan", "inf", "-inf")
LARGEST_FLOAT = 1e100  # its square is still finite
LARGEST_INT = 2**53  # the last integer that a float represents exactly


Assignment = tuple[Any, str, Any]


def dump(policy: Any) -> dict[str, Any]:
    """Return the learned numbers of a tree of dataclasses, by field name, ready for strict JSON.

    A field is state if it is learned (see `learned`); decisions in flight are not. Dataclasses are found in
    fields, in sequences, and in learned mappings; other mappings hold data of single requests.
    """
    if getattr(policy, "shared", True) is None and not getattr(policy, "per_query", False):
        policy.shared = policy.new_learner(len(policy.arms))  # as its first choice does
    saved = {field.name: _encode(getattr(policy, field.name)) for field in _numbers(policy)}
    return saved | {name: inner for name, part in parts_of(policy).items() if (inner := dump(part))}


def load(policy: Any, saved: Any) -> None:
    """Load the output of `dump` into a new policy of the same shape; a `UserError` says what does not fit."""
    apply(fit(policy, dump(policy), saved))


def fit(policy: Any, blank: Mapping[str, Any], saved: Any) -> list[Assignment]:
    """Return the values to set, completely checked; `blank` is the dump of a new policy of the same shape.

    A list must have the length of the blank one. A list that is empty in the blank dump may have grown, and
    one of distinct integers, such as the arms still in a race, may have lost some.

    Errors are those of `load`.
    """
    return list(_fit(policy, blank, saved, "numbers"))


def apply(assignments: Iterable[Assignment]) -> None:
    """Set the values that `fit` has checked."""
    for owner, name, value in assignments:
        setattr(owner, name, value)


def restart(policy: Any) -> None:
    """Call `restart` of every part of a policy that has it: its numbers are of other texts."""
    for part in walk(policy):
        if callable(method := getattr(part, "restart", None)):
            method()


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        plain = all(type(item) is float and isfinite(item) for item in value)
        return list(value) if plain else [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    raise TypeError(f"{value!r:.60} is learned, and no number: it cannot be saved")


def _fit(node: Any, blank: Mapping[str, Any], saved: Any, where: str) -> Iterator[Assignment]:
    if not isinstance(saved, dict) or saved.keys() != blank.keys():
        _refuse(where, f"has not the fields {', '.join(blank)}")
    kind: Any = type(node)
    hints = _hints(kind) if is_dataclass(node) else {}
    for field in _numbers(node):
        name = field.name
        yield node, name, _decode(saved[name], blank[name], hints[name], f"{where}.{name}")
    for name, part in parts_of(node).items():
        if name in blank:
            yield from _fit(part, blank[name], saved[name], f"{where}.{name}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError as error:
        raise UserError(f"{kind.__name__} has a field whose type cannot be found ({error})") from error


def _decode(saved: Any, blank: Any, hint: Any, where: str) -> Any:
    """Return a value of the type of the hint, with the length of its blank value."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        if saved is None and type(None) in inner:
            return None
        return _decode(saved, blank, next(k for k in inner if k is not type(None)), where)
    if kind in (bool, int, float):
        return _number(saved, kind, where)
    if kind in (dict, Mapping, list, tuple) and not inner:
        _refuse(where, f"is declared as {kind.__name__}, without the type of what it holds")
    if kind in (dict, Mapping):
        return _mapping(saved, blank, inner, where)
    if kind not in (list, tuple) or not isinstance(saved, list):
        _refuse(where, f"has {saved!r:.40}, which is no {getattr(kind, '__name__', kind)}")
    starts = blank if blank and len(blank) == len(saved) else [None] * len(saved)
    if inner[0] is float and all(type(x) is float and abs(x) <= LARGEST_FLOAT for x in saved):
        items = saved
    else:
        items = [_decode(x, start, inner[0], where) for x, start in zip(saved, starts, strict=True)]
    if blank and len(blank) != len(items) and not _is_subset(items, blank):
        _refuse(where, f"has {len(items)} values in place of {len(blank)}")
    return kind(items)


def _number(saved: Any, kind: type, where: str) -> Any:
    if kind is float and saved in NOT_FINITE:
        return float(saved)
    whole = type(saved) is int and abs(saved) <= LARGEST_INT
    if kind is float and (whole or (isinstance(saved, float) and abs(saved) <= LARGEST_FLOAT)):
        return float(saved)
    if (whole and kind is int) or (isinstance(saved, bool) and kind is bool):
        return saved
    _refuse(where, f"has {saved!r:.40}, which is no {kind.__name__} within bounds")


def _mapping(saved: Any, blank: Any, inner: tuple[Any, ...], where: str) -> dict[Any, Any]:
    if not isinstance(saved, dict) or (blank and saved.keys() != blank.keys()):
        _refuse(where, f"has not the keys {', '.join(blank)}" if blank else "is no mapping")
    key, value = inner
    if key is int and not all(re.fullmatch(r"-?[0-9]{1,15}", name) for name in saved):
        _refuse(where, "has a key that is no whole number within bounds")
    return {key(k): _decode(v, (blank or {}).get(k), value, f"{where}.{k}") for k, v in saved.items()}


def _is_subset(items: list[Any], blank: list[Any]) -> bool:
    """Return if the items are some of distinct integers, such as the arms still in a race."""
    distinct = all(type(x) is int for x in blank) and len(set(blank)) == len(blank)
    return distinct and bool(items) and len(set(items)) == len(items) and set(items) <= set(blank)


def _refuse(where: str, reason: str) -> NoReturn:
    raise UserError(f"{where} {reason}")
