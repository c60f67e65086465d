"""TapOut's token level: a learner for every draft position chooses the rule that may stop the draft there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Any

import numpy as np

from ..core.arms import Arm, Context, Decision, Stop
from ..core.outcomes import Feedback
from ..state.learned import LEARNED, adds, learned
from .adaptive import Adaptive
from .learners.learner import Learner


@dataclass(slots=True)
class Choices:
    """A request's rules by position; the first `reached` are used up."""

    rules: list[int]
    reached: int = 0


@dataclass(slots=True)
class TokenPolicy:
    """One arm, and at each of its draft positions a choice among stop `rules`, made before drafting starts.

    TapOut (arXiv 2511.02017), token level: the reward at a drafted position is 1 if its token was accepted,
    else 0, also for tokens after the first rejection, which were drafted for nothing. A choice for a
    position that no draft has reached stands for the next round: nothing was learned there, so a new one
    would have the same distribution, and most of the positions cost nothing. `moving` are rules whose
    threshold moves with the rounds (AdaEDL's lambda), one place per rule; every decision takes them as they
    stand.
    """

    arms: tuple[Arm, ...]
    rules: tuple[Stop, ...]
    bank: Separate | BetaBank
    moving: tuple[Adaptive | None, ...]
    reads_hints: bool = False
    choices: dict[int, Choices] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return a rule for every position."""
        mine = self.choices.get(context.request)
        if mine is None:
            mine = self.choices[context.request] = Choices(self.bank.choose(self.bank.places, rng))
        elif mine.reached:
            mine.rules[: mine.reached] = self.bank.choose(mine.reached, rng)
            mine.reached = 0
        now = tuple([m.stop if m else rule for m, rule in zip(self.moving, self.rules, strict=True)])
        return Decision(0, 1.0, tuple([now[i] for i in mine.rules]))

    def learn(self, feedback: Feedback) -> None:
        """A yes or no for every position that was drafted."""
        mine = self.choices.get(feedback.request)
        if mine is None:
            return
        for outcome in feedback.outcomes:
            mine.reached = outcome.drafted
            self.bank.update(mine.rules[: outcome.drafted], outcome.accepted)
            if outcome.drafted and (last := self.moving[mine.rules[outcome.drafted - 1]]):
                last.learn(outcome, outcome.asked or self.arms[0].length)

    def close(self, request: int) -> None:
        """The choices of a request that were never tried come to nothing."""
        if mine := self.choices.pop(request, None):
            for place in range(mine.reached, len(mine.rules)):
                self.bank.abort(place, mine.rules[place])


@dataclass(slots=True)
class Separate:
    """A learner object for each of `places`, which share nothing but their arms."""

    arms: int
    places: int
    new_learner: Callable[[int], Learner]
    learners: list[Learner] = field(init=False, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.learners = [self.new_learner(self.arms) for _ in range(self.places)]

    def choose(self, count: int, rng: Random) -> list[int]:
        """Return an arm for each of the first `count` places."""
        everyone = range(self.arms)
        return [learner.choose(everyone, rng)[0] for learner in self.learners[:count]]

    def update(self, chosen: Sequence[int], successes: int) -> None:
        """What became of the arms chosen at places 0, 1, ...: the first `successes` did well."""
        for place, (learner, arm) in enumerate(zip(self.learners, chosen, strict=False)):
            learner.update(arm, float(place < successes), 1.0)

    def abort(self, place: int, arm: int) -> None:
        """The choice came to nothing."""
        self.learners[place].abort(arm)


@dataclass(slots=True)
class BetaBank:
    """Beta-Bernoulli Thompson sampling at every place, all drawn in one call; methods as those of `Separate`.

    The token-level learner of TapOut (arXiv 2511.02017), which names no prior; Beta(1, 1) is uniform. The
    draws are NumPy's, from a generator whose whole state the injected one sets at each call.
    """

    arms: int
    places: int
    _: KW_ONLY
    successes: list[float] = field(default_factory=list, metadata=learned(adds))
    failures: list[float] = field(default_factory=list, metadata=learned(adds))
    generator: np.random.Generator = field(
        default_factory=lambda: np.random.Generator(np.random.SFC64(0)), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.successes = self.successes or [1.0] * (self.arms * self.places)
        self.failures = self.failures or [1.0] * (self.arms * self.places)

    def choose(self, count: int, rng: Random) -> list[int]:
        k = self.arms
        a, b = (np.array(x[: k * count]).reshape(count, k) for x in (self.successes, self.failures))
        chosen: list[int] = self._seeded(rng).beta(a, b).argmax(1).tolist()
        return chosen

    def _seeded(self, rng: Random) -> np.random.Generator:
        # 192 random bits are a random state of this generator, and setting it takes a sixth of making one
        bits = self.generator.bit_generator
        state: Any = bits.state
        state["state"]["state"][:] = (rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(64), 1)
        bits.state = state
        return self.generator

    def update(self, chosen: Sequence[int], successes: int) -> None:
        for place, arm in enumerate(chosen):
            counts = self.successes if place < successes else self.failures
            counts[place * self.arms + arm] += 1.0

    def abort(self, place: int, arm: int) -> None:
        """Nothing was counted."""
