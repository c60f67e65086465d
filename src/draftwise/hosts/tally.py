"""Counts by drafter since an engine started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.arms import Arm
from ..core.outcomes import Outcome


@dataclass(slots=True)
class Tally:
    """Counts over all requests: of rounds by arm, of drafts and tokens by drafter, and of seconds.

    `accepted` excludes tokens beyond the end of a text. `overhead` is the time for deciding, learning and
    bookkeeping, without the drafters' own time.
    """

    arms: Sequence[Arm]
    rounds: int = 0
    tokens: int = 0
    pulls: dict[int, int] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    overhead: float = 0.0

    def add(self, outcome: Outcome, written: int) -> None:
        """Count one round, which wrote `written` tokens."""
        self.rounds += 1
        self.tokens += written
        if outcome.arm >= 0:  # -1: the policy raised
            self.pulls[outcome.arm] = self.pulls.get(outcome.arm, 0) + 1
        if outcome.drafted:
            name = self.arms[outcome.arm].drafter
            self.drafts[name] = self.drafts.get(name, 0) + 1
            self.drafted[name] = self.drafted.get(name, 0) + outcome.drafted
            self.accepted[name] = self.accepted.get(name, 0) + min(outcome.accepted, written)

    def as_dict(self, faults: Mapping[str, int]) -> dict[str, Any]:
        """All counts, for JSON, under vLLM's metric names if there is one; faults by drafter."""
        return {
            "num_steps": self.steps,
            "num_rounds": self.rounds,
            "num_tokens": self.tokens,
            "overhead_seconds": self.overhead,
            "arms": {self.arms[arm].name: count for arm, count in self.pulls.items()},
            "drafters": {
                name: {
                    "num_drafts": self.drafts.get(name, 0),
                    "num_draft_tokens": self.drafted.get(name, 0),
                    "num_accepted_tokens": self.accepted.get(name, 0),
                    "num_faults": count,
                }
                for name, count in faults.items()
            },
        }
