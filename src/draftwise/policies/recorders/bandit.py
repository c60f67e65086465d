"""Bandit feedback: the arm that ran is scored right away, by a reward between 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.outcomes import Feedback, Outcome
from ...core.request import Request
from ...core.roles import Graders, RoundRecord
from ...errors import UserError


@dataclass(slots=True)
class Bandit:
    """Only the arm that ran is scored, right away. `longest` is the longest draft of any arm, in tokens."""

    reward: Reward
    longest: int
    reads: frozenset[str] = frozenset()

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """Return the feedback of one round each: without outcomes if the round is not counted for its arm."""
        return [self._score(seen) for seen in batch]

    def close(self, request: Request) -> Sequence[Feedback]:
        """Nothing is ever late."""
        return ()

    def _score(self, seen: RoundRecord) -> Feedback:
        outcome = seen.outcome
        value = None if outcome.censored else self.reward(outcome, self.longest)
        if value is None:
            return Feedback(seen.request.id, seen.decision)
        return Feedback(seen.request.id, seen.decision, (outcome.rewarded(value),))


class Reward(Protocol):
    """The worth of an outcome in [0, 1]; None means that there is nothing to learn from this round."""

    def __call__(self, outcome: Outcome, longest: int) -> float | None: ...


def accepted(outcome: Outcome, longest: int) -> float:
    """Accepted draft tokens over the longest draft: BanditSpec's chunk length Y, as (Y - 1) / L, MetaSD's
    block efficiency N_acc / N_max, and TapOut's simple reward |Y| / gamma (arXiv 2511.02017)."""
    return outcome.accepted / longest if longest else 0.0


def blended(outcome: Outcome, longest: int) -> float:
    """TapOut's blended reward 1/2 |Y| / gamma + 1/2 |Y| / |X| (arXiv 2511.02017).

    An empty draft has no acceptance rate; its second term is 0, as nothing was gained.
    """
    rate = outcome.accepted / outcome.drafted if outcome.drafted else 0.0
    return 0.5 * accepted(outcome, longest) + 0.5 * rate


def block_divergence(outcome: Outcome, longest: int) -> float:
    """MetaSD's block divergence (arXiv 2604.05417): the sum of 1 - TV over the draft's positions, over N_max.

    The distributions are the raw softmax at temperature 1, under greedy decoding too: the paper's rewards are
    never zero, which one-hot rows would give. Rows after a rejection are on the draft's own path, as in the
    paper. A draft shorter than N_max has no overlap beyond its end. Of a tree one path counts, with siblings
    as one position (`accept.block`): breadth is worth what it adds to the chance of acceptance, no more.
    """
    return min(1.0, sum(outcome.overlaps) / longest) if longest else 0.0


@dataclass(slots=True)
class Rate:
    """Tokens per second, the target's own token included, over the most that any arm has reached.

    An arm's own maximum shrinks by `memory` with each of its rounds, so that one lucky clock reading does not
    flatten all later rewards; the others' stay, so that the scale does not depend on which arm runs: else an
    arm that plays alone would soon earn 1. None when the round has no time of its own (`Outcome.seconds` is
    NaN). The mean of rates is not total tokens over total seconds; a policy that wants the latter adds up
    both instead.
    """

    memory: float = 0.999
    tops: dict[int, float] = field(default_factory=dict)

    @property
    def top(self) -> float:
        """The rate that is worth 1."""
        return max(self.tops.values(), default=0.0)

    def __call__(self, outcome: Outcome, longest: int) -> float | None:
        if not outcome.seconds > 0.0:
            return None
        rate = (outcome.accepted + 1) / outcome.seconds
        self.tops[outcome.arm] = max(rate, self.tops.get(outcome.arm, 0.0) * self.memory)
        return rate / self.top


REWARDS: Mapping[str, Callable[[], Reward]] = {
    "accepted": lambda: accepted,
    "block-efficiency": lambda: accepted,
    "block-divergence": lambda: block_divergence,
    "simple": lambda: accepted,
    "blended": lambda: blended,
    "rate": Rate,
}

READS: Mapping[str, frozenset[str]] = {"block-divergence": frozenset({"overlap", "rows"})}
"""What a reward wants to see beyond plain counts (`Recorder.reads`)."""


def reward(name: str) -> Reward:
    """Return the reward called `name`, with a state of its own where it has one.

    Raises:
        UserError: there is no reward of this name.
    """
    if name not in REWARDS:
        raise UserError(f"reward={name}: choose from {', '.join(sorted(REWARDS))}")
    return REWARDS[name]()
