"""TapOut's token level: a learner for every draft position chooses the rule that may stop the draft there."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ..core.arms import Arm, Context, Decision, Stop
from ..core.outcomes import Feedback
from .adaptive import Adaptive
from .bank import Bank


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
    bank: Bank
    moving: tuple[Adaptive | None, ...] = ()
    reads_hints: bool = False
    choices: dict[int, Choices] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """A rule for every position."""
        mine = self.choices.get(context.request)
        if mine is None:
            mine = self.choices[context.request] = Choices(self.bank.choose(range(self.bank.places), rng))
        elif mine.reached:
            mine.rules[: mine.reached] = self.bank.choose(range(mine.reached), rng)
            mine.reached = 0
        now = self.rules
        if self.moving:
            now = tuple([m.stop if m else rule for m, rule in zip(self.moving, now, strict=True)])
        return Decision(0, 1.0, tuple([now[i] for i in mine.rules]))

    def learn(self, feedback: Feedback) -> None:
        """A yes or no for every position that was drafted."""
        mine = self.choices.get(feedback.request)
        if mine is None:
            return
        for outcome in feedback.outcomes:
            mine.reached = outcome.drafted
            self.bank.update(mine.rules[: outcome.drafted], outcome.accepted)
            if self.moving and outcome.drafted:
                last = self.moving[mine.rules[outcome.drafted - 1]]
                if last:
                    last.learn(outcome, outcome.asked or self.arms[0].length)

    def close(self, request: int) -> None:
        """The choices of a request that were never tried come to nothing."""
        mine = self.choices.pop(request, None)
        if mine:
            for place in range(mine.reached, len(mine.rules)):
                self.bank.abort(place, mine.rules[place])
