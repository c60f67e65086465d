"""Stop rules and draft lengths that move with what was accepted.

Each is a dataclass whose fields are its saved state; a policy asks it for the threshold or length of the
next round and tells it what became of the last one. `state.learned.fresh` starts one again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Literal, Protocol

from ..core.arms import Arm, Context, Decision, Stop
from ..core.outcomes import Feedback, Outcome
from ..state.learned import LEARNED, averages, learned

BETA_1, BETA_2, EPSILON = 0.5, 0.9, 0.01  # of AdaEDL: memories of the acceptance rate and of lambda, a step


class Adaptive(Protocol):
    """A stop rule whose threshold its own rounds move."""

    @property
    def stop(self) -> Stop:
        """The rule as it stands."""

    def learn(self, outcome: Outcome, longest: int) -> None:
        """What came of a round that it stopped, and the most that might have been drafted."""


@dataclass(slots=True)
class AdaEDL:
    """The threshold lambda of the rule `adaedl`, kept where the acceptance rate is near `target`.

    AdaEDL (arXiv 2410.18351), section 3.1 and Algorithm 1, with its alpha, beta1, beta2 and epsilon:
    AR <- beta1 AR + (1 - beta1) accepted / drafted; then lambda' is lambda + epsilon if AR < alpha, lambda -
    epsilon if not all of the longest draft was accepted, else lambda; and lambda <- beta2 lambda + (1 -
    beta2) lambda'. No first lambda is printed: 0.6 is the middle of the range swept, 0.3 to 0.9; AR starts
    at alpha, which favours neither side. `form` "tapout" is the update that TapOut (arXiv 2511.02017)
    prints: lambda' = lambda + epsilon sign(alpha - accepted / drafted), the round's own rate.
    """

    _: KW_ONLY
    start: float = 0.6
    target: float = 0.9
    form: Literal["paper", "tapout"] = "paper"
    threshold: float = field(default=-1.0, metadata=learned(averages))
    rate: float = field(default=-1.0, metadata=learned(averages))

    def __post_init__(self) -> None:
        if self.rate < 0.0:  # new: a rate is never negative
            self.threshold, self.rate = self.start, self.target

    @property
    def stop(self) -> Stop:
        """The rule as it stands."""
        return Stop("adaedl", self.threshold)

    def learn(self, outcome: Outcome, longest: int) -> None:
        """Update from a round's outcome; an empty draft changes nothing."""
        if not outcome.drafted:
            return
        now = outcome.accepted / outcome.drafted
        self.rate = BETA_1 * self.rate + (1.0 - BETA_1) * now
        if self.form == "tapout":
            sign = (now < self.target) - (now > self.target)
        else:
            sign = 1 if self.rate < self.target else 0 if outcome.accepted == longest else -1
        self.threshold = BETA_2 * self.threshold + (1.0 - BETA_2) * (self.threshold + EPSILON * sign)


@dataclass(slots=True)
class HeuristicLength:
    """The draft length of Transformers' schedules `heuristic` and `heuristic_transient`.

    All of a draft accepted: two tokens longer; else one shorter, never below one. The transient schedule is
    the same with a fresh one for each text. Transformers 5 starts at 20 tokens, older releases at 5.
    """

    start: int = 20
    length: int = field(default=0, kw_only=True, metadata=learned(averages))

    def __post_init__(self) -> None:
        self.length = self.length or self.start

    def learn(self, outcome: Outcome) -> None:
        """Update from a round's outcome; an empty draft changes nothing."""
        if outcome.drafted:
            is_whole = outcome.accepted == outcome.drafted
            self.length = self.length + 2 if is_whole else max(1, self.length - 1)


@dataclass(slots=True)
class ConfidenceRefit:
    """The threshold of the rule `confidence`, refitted after each round as Transformers does.

    Every tested token adds its draft probability and whether the target agreed, up to the first that it
    did not. With more than five such pairs of both kinds, the threshold is the point of the ROC curve
    with the least false-positive rate + 3 * false-negative rate. Transformers calls scikit-learn on all
    pairs in each round; here they are kept as counts per probability, in order, and the same points are
    walked with the same arithmetic, so the choice is the same to the last bit, ties included. Nothing is
    forgotten within a text; Transformers starts again with each call of `generate`.
    """

    start: float = 0.4
    _: KW_ONLY
    threshold: float = field(default=-1.0, metadata=LEARNED)
    probs: list[float] = field(default_factory=list, metadata=LEARNED)
    matched: list[int] = field(default_factory=list, metadata=LEARNED)
    missed: list[int] = field(default_factory=list, metadata=LEARNED)

    def __post_init__(self) -> None:
        if self.threshold < 0.0:  # new: a probability is never negative
            self.threshold = self.start

    @property
    def stop(self) -> Stop:
        """The rule as it stands."""
        return Stop("confidence", self.threshold)

    def learn(self, outcome: Outcome, longest: int) -> None:
        """Update from the probabilities that the drafter gave its own tokens."""
        for place, now in enumerate(outcome.signals[: outcome.accepted + 1]):
            self._add(now.chosen, is_hit=place < outcome.accepted)
        hits, misses = sum(self.matched), sum(self.missed)
        if hits and misses and hits + misses > 5:
            self.threshold = _best_threshold(self.probs, self.matched, self.missed, hits, misses)

    def _add(self, prob: float, *, is_hit: bool) -> None:
        at = bisect_left(self.probs, prob)
        if at == len(self.probs) or self.probs[at] != prob:
            self.probs.insert(at, prob)
            self.matched.insert(at, 0)
            self.missed.insert(at, 0)
        (self.matched if is_hit else self.missed)[at] += 1


def _best_threshold(
    probs: Sequence[float], matched: Sequence[int], missed: Sequence[int], hits: int, misses: int
) -> float:
    # From the highest probability down. A point halfway on a straight line between its neighbours is left
    # out, as scikit-learn does: on a tie with its neighbours, rounding might else choose it.
    best, least = probs[-1], float("inf")
    true = false = 0
    for i in range(len(probs) - 1, -1, -1):
        true += matched[i]
        false += missed[i]
        inner = 0 < i < len(probs) - 1
        if inner and matched[i] == matched[i - 1] and missed[i] == missed[i - 1]:
            continue
        cost = false / misses + 3 * (1 - true / hits)
        if cost < least:
            best, least = probs[i], cost
    return best


@dataclass(slots=True)
class LengthPolicy:
    """One arm per length, 1 to the longest, by `HeuristicLength`.

    `transient` starts each text afresh, as Transformers' schedule `heuristic_transient`; its `heuristic`
    continues from text to text.
    """

    arms: tuple[Arm, ...]
    start: int
    transient: bool = False
    reads_hints: bool = False
    shared: HeuristicLength = field(init=False, metadata=LEARNED)
    own: dict[int, HeuristicLength] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shared = HeuristicLength(self.start)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return the arm of the present length."""
        arm = min(self._length(context.request).length, len(self.arms)) - 1
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """Longer or shorter."""
        rule = self._length(feedback.request)
        for outcome in feedback.outcomes:
            rule.learn(outcome)
            rule.length = min(rule.length, len(self.arms))

    def close(self, request: int) -> None:
        """Forget what one text has set."""
        self.own.pop(request, None)

    def _length(self, request: int) -> HeuristicLength:
        if not self.transient:
            return self.shared
        if request not in self.own:
            self.own[request] = HeuristicLength(self.start)
        return self.own[request]
