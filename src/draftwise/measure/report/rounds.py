"""Rounds by the column: a run has hundreds of thousands, too many to keep as records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_INTS = ("category", "prompt", "arm", "drafter", "number", "length", "drafted", "accepted", "tokens")
_FLOATS = ("seconds", "overlap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The rounds of one method in the order in which they were played, one array a column.

    `category`, `prompt`, `arm` and `drafter` are indices into `names` of the same key; a drafter whose round
    had length 0 is "none". `number` counts within a text, `tokens` are those committed, `overlap` is the mean
    1 - TV over the draft (NaN where it was not read). `entropy` has a category's entropies in nats, first at
    accepted positions, then at refused ones. `values` are (round, value) of each arm as the policy saw it.
    """

    names: Mapping[str, tuple[str, ...]]
    category: Ints
    prompt: Ints
    arm: Ints
    drafter: Ints
    number: Ints
    length: Ints
    drafted: Ints
    accepted: Ints
    tokens: Ints
    seconds: Floats
    overlap: Floats
    entropy: Mapping[str, tuple[Floats, Floats]]
    values: Mapping[str, tuple[Floats, Floats]]

    def __len__(self) -> int:
        return len(self.arm)

    def where(self, key: str, name: str) -> Bools:
        """The rounds whose `category`, `prompt`, `arm` or `drafter` is called so."""
        known = self.names[key]
        mask: Bools = getattr(self, key) == (known.index(name) if name in known else -1)
        return mask


class _Codes(dict[str, int]):
    """Numbers names in the order in which they come."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


@dataclass(slots=True)
class _Columns:
    """Grows by a round at a time."""

    ints: dict[str, array[int]] = field(default_factory=lambda: {k: array("i") for k in _INTS})
    floats: dict[str, array[float]] = field(default_factory=lambda: {k: array("d") for k in _FLOATS})
    codes: dict[str, _Codes] = field(default_factory=lambda: {k: _Codes() for k in _INTS[:4]})
    entropy: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)
    values: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        """One more line of `rounds.jsonl`."""
        seconds, tokens = record.get("seconds") or {}, record.get("tokens") or ()
        length, accepted = record.get("length", 0), record.get("accepted", 0)
        drafter = record.get("drafter", "") if length else "none"
        category = record.get("category", "")
        named = (category, str(record.get("prompt", "")), record.get("arm", ""), drafter)
        codes = [self.codes[key][name] for key, name in zip(_INTS, named, strict=False)]
        counts = [record.get("round", 0), length, record.get("drafted", 0), accepted]
        for key, number in zip(_INTS, [*codes, *counts, len(tokens)], strict=True):
            self.ints[key].append(number)
        self.floats["seconds"].append(sum(seconds.values()) if isinstance(seconds, dict) else seconds)
        overlap = record.get("overlap")
        self.floats["overlap"].append(nan if overlap is None else overlap)
        if entropy := record.get("entropy"):
            kept, refused = self.entropy.setdefault(category, (array("d"), array("d")))
            kept.extend(entropy[:accepted])
            refused.extend(entropy[accepted : accepted + 1])
        for arm, value in (record.get("values") or {}).items():
            at, seen = self.values.setdefault(arm, (array("d"), array("d")))
            at.append(len(self.ints["arm"]))
            seen.append(nan if value is None else value)

    def done(self) -> Rounds:
        """The columns as arrays."""
        ints: dict[str, Any] = {key: np.array(column, np.int32) for key, column in self.ints.items()}
        floats: dict[str, Any] = {key: np.array(column) for key, column in self.floats.items()}
        return Rounds(
            names={key: tuple(codes) for key, codes in self.codes.items()},
            entropy={key: (np.array(a), np.array(b)) for key, (a, b) in self.entropy.items()},
            values={key: (np.array(a), np.array(b)) for key, (a, b) in self.values.items()},
            **ints,
            **floats,
        )


def read_rounds(records: Iterable[Mapping[str, Any]]) -> dict[str, Rounds]:
    """The rounds of each method."""
    found: dict[str, _Columns] = {}
    for record in records:
        found.setdefault(record["method"], _Columns()).add(record)
    return {method: columns.done() for method, columns in found.items()}
