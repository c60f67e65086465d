"""LinUCB over what is known before a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log1p
from random import Random

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..core.roles import Values
from ..state.learned import LEARNED
from .arms import in_use
from .learners.linucb import LinUCB
from .shown import estimated

LONG_MATCH, LONG_TEXT, HIGH_ENTROPY = 16.0, 512.0, 5.0  # what brings a feature to about 1


@dataclass(slots=True)
class ContextPolicy:
    """LinUCB on the drafters' hints, the position, the last accepted length and the last entropy.

    The contextual extension that TapOut and MetaSD name as future work. The features, each about 0 to 1: a
    constant; log(1 + hint) of every drafter in `drafters`; log(1 + position); the last round's accepted
    tokens over the longest arm; and the mean entropy of the drafter over its last draft, in nats (0 for one
    that gave none). Each arm is played once first (ours): a bonus of constant strength never reaches an arm
    that is untried where rewards are near 1.
    """

    arms: tuple[Arm, ...]
    drafters: tuple[str, ...]
    learner: LinUCB = field(metadata=LEARNED)
    reads_hints: bool = True
    features: dict[int, list[float]] = field(default_factory=dict)
    entropies: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def dimensions(drafters: int) -> int:
        """How many features there are with so many drafters."""
        return drafters + 4

    def choose(self, context: Context, rng: Random) -> Decision:
        """An untried arm, or the one of the highest index at this round's features."""
        hints, longest = context.hints, max(arm.length for arm in self.arms)
        features = [1.0]
        features += [log1p(max(0.0, hints.get(d, 0.0))) / log1p(LONG_MATCH) for d in self.drafters]
        features.append(log1p(context.position) / log1p(LONG_TEXT))
        features.append(max(0, context.last_accepted) / max(1, longest))
        features.append(self.entropies.get(context.request, 0.0))
        self.features[context.request] = features
        allowed = in_use(self.arms, context)
        untried = [arm for arm in allowed if self.learner.untried(arm)]
        arm, propensity = self.learner.choose(untried or allowed, rng, features)
        return Decision(arm, propensity, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """The reward at the features that the decision was made at."""
        features = self.features.get(feedback.request)
        if features is None or not feedback.outcomes:
            self.learner.abort(feedback.decision.arm)
            return
        for outcome in feedback.outcomes:
            self.learner.update(outcome.arm, outcome.reward, feedback.decision.propensity, features)
            if outcome.signals:
                mean = sum(s.entropy for s in outcome.signals) / len(outcome.signals)
                self.entropies[feedback.request] = min(1.0, mean / HIGH_ENTROPY)

    def close(self, request: int) -> None:
        """Forget a request's features."""
        self.features.pop(request, None)
        self.entropies.pop(request, None)

    def values(self, batch: int = 1) -> Values:
        """The level of each arm, all features but the constant at 0."""
        return estimated([self.learner], len(self.arms))
