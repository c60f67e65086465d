"""How a text is to be drawn, and when it ends. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from .errors import UserError

_LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("max_new_tokens", lambda x: isfinite(x) and x == int(x) and x >= 1, "give a whole number of at least 1"),
    ("temperature", lambda x: 0.0 <= x < inf, "give 0 (greedy) or a positive number"),
    ("top_k", lambda x: isfinite(x) and x == int(x) and x >= 0, "give 0 (off) or a whole number"),
    ("top_p", lambda x: 0.0 < x <= 1.0, "give a number above 0 and up to 1 (off)"),
    ("min_p", lambda x: 0.0 <= x <= 1.0, "give a number from 0 (off) to 1"),
    ("repetition_penalty", lambda x: 0.0 < x < inf, "give a positive number; 1 is off"),
    ("presence_penalty", isfinite, "give a finite number; 0 is off"),
    ("frequency_penalty", isfinite, "give a finite number; 0 is off"),
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's distribution is shaped, and when the text ends.

    `temperature` 0 is greedy. Penalties follow Transformers (`repetition_penalty` counts the prompt) and
    OpenAI (`presence_penalty`, `frequency_penalty` count the output). `processors` are Transformers logits
    processors, called before the warpers with each position's own history. `ends` is asked after a round:
    of all tokens, how many from the given index on to keep if the text ends there, else None.

    Raises:
        UserError: a setting that is negative, not finite, or out of its range.
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
    processors: tuple[Any, ...] = ()
    ends: Callable[[Sequence[int], int], int | None] | None = None

    def __post_init__(self) -> None:
        for name, good, remedy in _LIMITS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not good(value):
                raise UserError(f"{name}={value!r}: {remedy}")

    @property
    def greedy(self) -> bool:
        """True when the target's law is one-hot."""
        return self.temperature == 0.0
