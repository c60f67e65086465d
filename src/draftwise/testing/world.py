"""The world of the conformance suites: a small numpy target, prompts, and arms that try everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.arms import Arm, Stop
from ..core.stops import DEFAULTS
from ..policies.bandit import BanditPolicy
from ..policies.learners.fixed import Uniform
from .distributions import Distribution, Vector
from .target import SimTarget

VOCABULARY = 4
PROMPTS: tuple[tuple[int, ...], ...] = ((0, 1, 2, 1, 0, 1), (3,), (1, 1, 2, 3, 0, 2, 1, 1), (2, 0, 2))
RULES = tuple(Stop(name, number) for name, number in DEFAULTS.items() if name != "never")


def second_order(vocab_size: int = VOCABULARY, *, seed: int = 7) -> Distribution:
    """Logits of a random chain whose next token depends on the last two: no text is far from any other."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocab_size, 0.6), size=(vocab_size, vocab_size))
    logits = np.log(rows * (1.0 - 0.015 * vocab_size) + 0.015)

    def distribution(history: Sequence[int]) -> Vector:
        row: Vector = logits[history[-2] if len(history) > 1 else 0, history[-1]]
        return row

    return distribution


def small_target() -> SimTarget:
    """The target of a suite that is given none: four tokens, and no draft is right for long."""
    return SimTarget(second_order(), VOCABULARY)


def drafting(
    name: str, lengths: Sequence[int], *, width: int = 1, rules: Sequence[Stop] = ()
) -> tuple[Arm, ...]:
    """Arms of one drafter, and one without a draft."""
    stopped = [Arm(name, max(lengths), width, stop=rule) for rule in rules]
    return (Arm("none", 0), *(Arm(name, n, width) for n in lengths), *stopped)


def at_random(arms: Sequence[Arm]) -> BanditPolicy:
    """A policy that draws an arm each round."""
    return BanditPolicy(tuple(arms), Uniform)
