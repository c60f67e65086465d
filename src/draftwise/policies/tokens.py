"""TapOut's token level: a learner for every draft position chooses the rule that may stop the draft there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ..adaptive import Adaptive
from ..learners.learner import LEARNED, Learner
from ..types import Arm, Context, Decision, Feedback, Stop


@dataclass(slots=True)
class TokenPolicy:
    """One arm, and at each of its draft positions a choice among stop `rules`, made before drafting starts.

    TapOut (arXiv 2511.02017), token level: the reward at a drafted position is 1 if its token was accepted,
    else 0, also for tokens after the first rejection, which were drafted for nothing. A choice for a
    position that no draft has reached stands for the next round: nothing was learnt there, so a new one would
    have the same law, and most of the positions cost nothing. `moving` are rules whose threshold moves with
    the rounds (AdaEDL's lambda), one place per rule; every decision takes them as they stand.
    """

    arms: tuple[Arm, ...]
    rules: tuple[Stop, ...]
    new_learner: Callable[[int], Learner]
    reads_hints: bool = False
    moving: tuple[Adaptive | None, ...] = ()
    learners: list[Learner] = field(init=False, metadata=LEARNED)
    choices: dict[int, _Choices] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learners = [self.new_learner(len(self.rules)) for _ in range(self.arms[0].length)]

    def choose(self, context: Context, rng: Random) -> Decision:
        """A rule for every position."""
        mine = self.choices.get(context.request)
        if mine is None:
            mine = self.choices[context.request] = _Choices()
        length, everyone = self.arms[0].length, range(len(self.rules))
        for position in (*range(mine.reached), *range(len(mine.rules), length)):
            choice = self.learners[position].choose(everyone, rng)
            if position < len(mine.rules):
                mine.rules[position], mine.chances[position] = choice
            else:
                mine.rules.append(choice[0])
                mine.chances.append(choice[1])
        mine.reached = 0
        now = self.rules
        if self.moving:
            now = tuple(m.stop if m else rule for m, rule in zip(self.moving, now, strict=True))
        return Decision(0, 1.0, tuple([now[i] for i in mine.rules]))

    def learn(self, feedback: Feedback) -> None:
        """A yes or no for every position that was drafted."""
        mine = self.choices.get(feedback.request)
        if mine is None:
            return
        for outcome in feedback.outcomes:
            for position in range(outcome.drafted):
                reward = float(position < outcome.accepted)
                self.learners[position].update(mine.rules[position], reward, mine.chances[position])
            mine.reached = outcome.drafted
            if self.moving and outcome.drafted:
                last = self.moving[mine.rules[outcome.drafted - 1]]
                if last:
                    last.learn(outcome, self.arms[0].length)

    def close(self, request: int) -> None:
        """The choices of a request that were never tried come to nothing."""
        mine = self.choices.pop(request, None)
        if mine:
            for position in range(mine.reached, len(mine.rules)):
                self.learners[position].abort(mine.rules[position])


@dataclass(slots=True)
class _Choices:
    """A request's rules and their propensities by position; the first `reached` are used up."""

    rules: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    reached: int = 0
