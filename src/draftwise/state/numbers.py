"""What a policy has learned, read from its dataclasses as strict JSON and written back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import UserError
from .learned import holds_dataclass, learned_fields, parts_of, walk

NOT_FINITE = ("nan", "inf", "-inf")
LARGEST_FLOAT = 1e100  # its square is still finite
LARGEST_INT = 2**53  # the last integer that a float represents exactly


Assignment = tuple[Any, str, Any]


def dump(policy: Any) -> dict[str, Any]:
    """Return the learned numbers of a tree of dataclasses, by field name, ready for strict JSON.

    A field is state if it is learned (see `learned`); decisions in flight are not. Dataclasses are found in
    fields, in sequences, and in learned mappings; other mappings hold data of single requests.
    """
    _complete(policy)
    saved = {name: _encode(value) for name, value in _numbers(policy).items()}
    return saved | {name: inner for name, part in parts_of(policy).items() if (inner := dump(part))}


def load(policy: Any, saved: Any) -> None:
    """Load the output of `dump` into a newly built policy of the same shape: completely, or not at all.

    Raises:
        UserError: other fields, another kind or number of values, or a value out of range.
    """
    apply(fit(policy, dump(policy), saved))


def fit(policy: Any, blank: Mapping[str, Any], saved: Any) -> list[Assignment]:
    """Return the values to set, completely checked; `blank` is the dump of a new policy of the same shape.

    A list must have the length of the blank one. A list that is empty in the blank dump may have grown, and
    one of distinct integers, such as the arms still in a race, may have lost some.

    Raises:
        UserError: as `load`.
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


def _complete(policy: Any) -> None:
    """Build the learner that a policy shares among requests, as its first choice does."""
    if getattr(policy, "shared", True) is None and not getattr(policy, "per_query", False):
        policy.shared = policy.new_learner(len(policy.arms))


def _numbers(node: Any) -> dict[str, Any]:
    """Return the learned fields of a dataclass that hold numbers."""
    items = ((f.name, getattr(node, f.name)) for f in learned_fields(node)) if is_dataclass(node) else ()
    return {name: value for name, value in items if not holds_dataclass(value)}


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
    for name in _numbers(node):
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
