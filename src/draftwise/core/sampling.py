"""Sampling settings and end criteria of a text. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any

from ..errors import UserError

# Beyond these, float32 logits overflow, and so does the distribution.
_LEAST, _MOST = 1e-30, 1e30

_WHOLE: tuple[tuple[str, int, str], ...] = (
    ("max_new_tokens", 1, "give a whole number of at least 1"),
    ("top_k", 0, "give 0 (off) or a whole number"),
    ("top_logprobs", 0, "give 0 (none) or a whole number"),
)
_REAL: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda x: x == 0 or _LEAST <= x <= _MOST, "give 0 (greedy) or from 1e-30 to 1e30"),
    ("top_p", lambda x: 0.0 < x <= 1.0, "give a number above 0 and up to 1 (off)"),
    ("min_p", lambda x: 0.0 <= x <= 1.0, "give a number from 0 (off) to 1"),
    ("repetition_penalty", lambda x: _LEAST <= x <= _MOST, "give from 1e-30 to 1e30; 1 is off"),
    ("presence_penalty", lambda x: isfinite(x) and abs(x) <= _MOST, "give up to 1e30; 0 is off"),
    ("frequency_penalty", lambda x: isfinite(x) and abs(x) <= _MOST, "give up to 1e30; 0 is off"),
)

Criterion = Callable[[Sequence[int], int], int | None]
"""Where a text ends, as `Sampling.ends`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for the target's distribution and for the end of the text.

    `temperature` 0 is greedy. Penalties follow Transformers (`repetition_penalty` includes the prompt) and
    OpenAI (`presence_penalty`, `frequency_penalty` count the output only). `processors` are Transformers
    logits processors, called before the warpers with each position's own history. `ends` is a stopping
    criterion, called after each round with all tokens and the index of the first new one: it returns how many
    of the new tokens to keep if the text ends there, else None.

    `eos` may be one token id or several. With `logprobs`, `top_logprobs` most likely tokens are reported for
    each place of the text.

    Raises:
        UserError: a setting of another type, or out of its range.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    eos: frozenset[int] = frozenset()
    logprobs: bool = False
    top_logprobs: int = 0
    processors: tuple[Any, ...] = ()
    ends: Criterion | None = None

    def __post_init__(self) -> None:
        for name, least, remedy in _WHOLE:
            value = getattr(self, name)
            if not _is_whole(value) or value < least:
                raise UserError(f"{name}={value!r}: {remedy}")
            self._set(name, int(value))
        for name, good, remedy in _REAL:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not good(float(value)):
                raise UserError(f"{name}={value!r}: {remedy}")
            self._set(name, float(value))
        if self.seed is not None:
            self._set("seed", whole_number("seed", self.seed))
        if self.logprobs not in (False, True):
            raise UserError(f"logprobs={self.logprobs!r}: give True or False")
        self._check_ends()

    def _check_ends(self) -> None:
        eos: Any = (self.eos,) if _is_whole(self.eos) else self.eos
        if isinstance(eos, (str, bytes)) or not isinstance(eos, Iterable):
            raise UserError(f"eos={eos!r}: give a token id, or several; () for none")
        if not isinstance(eos, frozenset):
            eos = frozenset(eos)
        wrong = next((token for token in eos if not _is_whole(token) or token < 0), None)
        if wrong is not None:
            raise UserError(f"eos={wrong!r}: give token ids, whole numbers from 0")
        self._set("eos", frozenset(map(int, eos)))
        several = isinstance(self.processors, Iterable) and not isinstance(self.processors, str)
        if not several or not all(map(callable, processors := tuple(self.processors))):
            raise UserError(f"processors={self.processors!r}: give a list of logits processors")
        self._set("processors", processors)
        if self.ends is not None and not callable(self.ends):
            raise UserError(f"ends={self.ends!r}: give a function, or None")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """True when the target's distribution is one-hot."""
        return self.temperature == 0.0


def whole_number(name: str, value: Any) -> int:
    """Return a setting as an integer.

    Raises:
        UserError: it is not a whole number.
    """
    if not _is_whole(value):
        raise UserError(f"{name}={value!r}: give a whole number")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
