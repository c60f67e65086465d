"""Turns what a round did into feedback: at once for a bandit, later for full information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.outcomes import Feedback
from ...core.request import Request
from ...core.roles import Graders, RoundRecord
from .rewards import Reward


@dataclass(slots=True)
class Bandit:
    """Only the arm that ran is scored, right away. `longest` is the longest draft of any arm, in tokens."""

    reward: Reward
    longest: int
    reads: frozenset[str] = frozenset()

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """The feedback of one round each: without outcomes if the round is not counted for its arm."""
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
