"""One learner over arms, told only of the arm that ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..core.roles import Values
from ..state.learned import LEARNED, fresh
from .adaptive import Adaptive
from .arms import in_use
from .learners.learner import Learner
from .shown import estimated


@dataclass(slots=True)
class BanditPolicy:
    """One learner over the arms; with `per_query`, a fresh one for every request.

    `moving` are thresholds that an arm's own rounds move (AdaEDL's lambda, Transformers' refit), one place
    per arm; they too start again with every request that has a learner of its own.
    """

    arms: tuple[Arm, ...]
    new_learner: Callable[[int], Learner]
    per_query: bool = False
    reads_hints: bool = False
    moving: tuple[Adaptive | None, ...] = ()
    shared: Learner | None = field(default=None, metadata=LEARNED)
    learners: dict[int, Learner] = field(default_factory=dict)
    own: dict[int, tuple[Adaptive | None, ...]] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Let the learner of this request choose among the arms whose drafters are in use."""
        arm, propensity = self._learner(context.request).choose(in_use(self.arms, context), rng)
        if moved := self._moving(context.request, arm):
            return Decision(arm, propensity, (moved.stop,))
        return Decision(arm, propensity, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """Hand the outcome to the learner that made the decision."""
        learner = self._learner(feedback.request)
        if not feedback.outcomes:
            learner.abort(feedback.decision.arm)
        for outcome in feedback.outcomes:
            learner.update(outcome.arm, outcome.reward, feedback.decision.propensity)
            if moved := self._moving(feedback.request, outcome.arm):
                moved.learn(outcome, outcome.asked or self.arms[outcome.arm].length)

    def close(self, request: int) -> None:
        """Forget what was learned for one request only."""
        self.learners.pop(request, None)
        self.own.pop(request, None)

    def values(self, batch: int = 1) -> Values:
        """The learner's estimates; with one for every request, their mean over the open ones."""
        return estimated([self.shared, *self.learners.values()], len(self.arms))

    def _moving(self, request: int, arm: int) -> Adaptive | None:
        """The threshold that moves with this arm's rounds, if any does."""
        if not self.moving:
            return None
        if not self.per_query:
            return self.moving[arm]
        if request not in self.own:
            self.own[request] = tuple(fresh(rule) if rule else None for rule in self.moving)
        return self.own[request][arm]

    def _learner(self, request: int) -> Learner:
        if not self.per_query:
            if self.shared is None:
                self.shared = self.new_learner(len(self.arms))
            return self.shared
        if request not in self.learners:
            self.learners[request] = self.new_learner(len(self.arms))
        return self.learners[request]
