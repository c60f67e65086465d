"""Learning from all arms at once: full information."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..core.roles import Values
from ..state.learned import LEARNED
from .arms import in_use
from .learners.learner import FullInformation
from .shown import estimated


@dataclass(slots=True)
class ExpertPolicy:
    """One full-information learner over the arms; with `per_query`, a fresh one for every request.

    `play` "sample" draws an arm by its weight, for which the learner's regret is proved; "best" plays the arm
    of the highest weight and changes it only for one more than `margin` above it, since after each change
    the new model must prefill the text.
    """

    arms: tuple[Arm, ...]
    new_learner: Callable[[int], FullInformation]
    per_query: bool = False
    play: Literal["sample", "best"] = "sample"
    margin: float = 0.0
    reads_hints: bool = False
    shared: FullInformation | None = field(default=None, metadata=LEARNED)
    learners: dict[int, FullInformation] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """An arm by the learner's weights, among those whose drafters are in use."""
        learner, allowed = self._learner(context.request), in_use(self.arms, context)
        if self.play == "sample":
            arm, propensity = learner.choose(allowed, rng)
            return Decision(arm, propensity, self.arms[arm].stops)
        values = learner.estimates()
        arm = max(allowed, key=values.__getitem__)
        last = self.last.get(context.request, arm)
        if last in allowed and values[last] + self.margin >= values[arm]:
            arm = last
        self.last[context.request] = arm
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """Take one loss per arm, as soon as all are known."""
        if feedback.losses:
            self._learner(feedback.request).learn_all(feedback.losses)

    def close(self, request: int) -> None:
        """Forget what was learned for one request only."""
        self.learners.pop(request, None)
        self.last.pop(request, None)

    def values(self, batch: int = 1) -> Values:
        """The learner's estimates; with one for every request, their mean over the open ones."""
        return estimated([self.shared, *self.learners.values()], len(self.arms))

    def _learner(self, request: int) -> FullInformation:
        if not self.per_query:
            if self.shared is None:
                self.shared = self.new_learner(len(self.arms))
            return self.shared
        if request not in self.learners:
            self.learners[request] = self.new_learner(len(self.arms))
        return self.learners[request]
