"""Policies of one learner over arms: told of the arm that ran, of all arms, or by context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite, log1p
from random import Random
from typing import ClassVar, Generic, Literal, TypeVar

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..core.roles import Values
from ..state.learned import LEARNED, fresh
from .adaptive import Adaptive
from .arms import in_use
from .learners.learner import Chooser, FullInformation, Learner
from .learners.linucb import LinUCB

L = TypeVar("L", bound=Chooser)


def estimated(learners: Iterable[Chooser | LinUCB | None], arms: int) -> Values:
    """Return the mean of what these learners hold of each arm; nothing if there is none yet."""
    estimates = [learner.estimates() for learner in learners if learner is not None]
    columns = zip(*estimates, strict=True) if estimates else [()] * arms
    known = ([x for x in column if isfinite(x)] for column in columns)
    values = tuple(sum(column) / len(column) if column else None for column in known)
    return Values("the learner's estimate", values)


@dataclass(slots=True)
class LearnerPolicy(Generic[L]):
    """One learner over the arms; with `per_query`, a fresh one for every request."""

    arms: tuple[Arm, ...]
    new_learner: Callable[[int], L]
    can_learn_late: ClassVar[bool] = True  # learners count what is in flight
    per_query: bool = False
    reads_hints: bool = False
    shared: L | None = field(default=None, metadata=LEARNED)
    learners: dict[int, L] = field(default_factory=dict)

    def values(self, batch: int = 1) -> Values:
        """Return the learner's estimates; with one for every request, their mean over the open ones."""
        return estimated([self.shared, *self.learners.values()], len(self.arms))

    def _learner(self, request: int) -> L:
        if not self.per_query:
            if self.shared is None:
                self.shared = self.new_learner(len(self.arms))
            return self.shared
        if request not in self.learners:
            self.learners[request] = self.new_learner(len(self.arms))
        return self.learners[request]


@dataclass(slots=True)
class BanditPolicy(LearnerPolicy[Learner]):
    """A learner that is told of the arm that ran.

    `moving` are thresholds that an arm's own rounds move (AdaEDL's lambda, Transformers' refit), one place
    per arm; they too start again with every request that has a learner of its own.
    """

    moving: tuple[Adaptive | None, ...] = ()
    own: dict[int, tuple[Adaptive | None, ...]] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        arm, propensity = self._learner(context.request).choose(in_use(self.arms, context), rng)
        if moved := self._moving(context.request, arm):
            return Decision(arm, propensity, (moved.stop,))
        return Decision(arm, propensity, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        learner = self._learner(feedback.request)
        if not feedback.outcomes:
            learner.abort(feedback.decision.arm)
        for outcome in feedback.outcomes:
            learner.update(outcome.arm, outcome.reward, feedback.decision.propensity)
            if moved := self._moving(feedback.request, outcome.arm):
                moved.learn(outcome, outcome.asked or self.arms[outcome.arm].length)

    def close(self, request: int) -> None:
        self.learners.pop(request, None)
        self.own.pop(request, None)

    def _moving(self, request: int, arm: int) -> Adaptive | None:
        """Return the threshold that moves with this arm's rounds, if any does."""
        if not self.moving:
            return None
        if not self.per_query:
            return self.moving[arm]
        if request not in self.own:
            self.own[request] = tuple(fresh(rule) if rule else None for rule in self.moving)
        return self.own[request][arm]


@dataclass(slots=True)
class ExpertPolicy(LearnerPolicy[FullInformation]):
    """A learner that is told of all arms.

    `play` "sample" draws an arm by its weight, for which the learner's regret is proved; "best" plays the arm
    of the highest weight and changes it for a higher one only, since after each change the new model must
    prefill the text.
    """

    play: Literal["sample", "best"] = "sample"
    last: dict[int, int] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        learner, allowed = self._learner(context.request), in_use(self.arms, context)
        if self.play == "sample":
            arm, propensity = learner.choose(allowed, rng)
            return Decision(arm, propensity, self.arms[arm].stops)
        values = learner.estimates()
        arm = max(allowed, key=values.__getitem__)
        last = self.last.get(context.request, arm)
        if last in allowed and values[last] >= values[arm]:
            arm = last
        self.last[context.request] = arm
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        if feedback.losses:
            self._learner(feedback.request).learn_all(feedback.losses)

    def close(self, request: int) -> None:
        self.learners.pop(request, None)
        self.last.pop(request, None)


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
        """Return how many features there are with so many drafters."""
        return drafters + 4

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return an untried arm, or the one of the highest index at this round's features."""
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
        self.features.pop(request, None)
        self.entropies.pop(request, None)

    def values(self, batch: int = 1) -> Values:
        """Return the level of each arm, all features but the constant at 0."""
        return estimated([self.learner], len(self.arms))
