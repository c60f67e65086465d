"""Turns what a round did into feedback: at once for a bandit, later for full information."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .types import Decision, Feedback, Outcome, Request

Reward = Callable[[Outcome, int], float | None]


@dataclass(slots=True)
class Bandit:
    """Only the arm that ran is scored, right away. `longest` is the longest draft of any arm, in tokens."""

    reward: Reward
    longest: int

    def add(self, request: Request, decision: Decision, seen: Outcome) -> Sequence[Feedback]:
        """The feedback of one round: none of its outcomes if it says nothing about the arm."""
        value = None if seen.censored else self.reward(seen, self.longest)
        if value is None:
            return (Feedback(request.id, decision),)
        known = Outcome(seen.arm, seen.accepted, seen.drafted, seen.seconds, reward=value)
        return (Feedback(request.id, decision, (known,)),)

    def close(self, request: Request) -> Sequence[Feedback]:
        """Nothing is ever late."""
        return ()
