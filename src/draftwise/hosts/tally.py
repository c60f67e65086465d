"""Who drafted what, since an engine began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..events import Stats
from ..types import Round


@dataclass(slots=True)
class Tally:
    """Counts over all requests: of rounds, of drafts and tokens by drafter, and of seconds.

    `overhead` is the time that deciding, learning and keeping texts took, without the drafters' own.
    """

    stats: Stats = field(default_factory=Stats)
    drafts: dict[str, int] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    overhead: float = 0.0

    def add(self, round: Round) -> None:
        """Count one round."""
        self.stats.add(round)
        if round.drafted:
            name = round.arm.drafter
            self.drafts[name] = self.drafts.get(name, 0) + 1
            self.drafted[name] = self.drafted.get(name, 0) + round.drafted

    def as_dict(self, faults: Mapping[str, int]) -> dict[str, Any]:
        """Everything, for JSON, under the names of vLLM's metrics where it has such; faults by drafter."""
        accepted = self.stats.by_drafter
        return {
            "num_steps": self.steps,
            "num_rounds": self.stats.rounds,
            "num_tokens": self.stats.tokens,
            "overhead_seconds": self.overhead,
            "arms": dict(self.stats.pulls),
            "drafters": {
                name: {
                    "num_drafts": self.drafts.get(name, 0),
                    "num_draft_tokens": self.drafted.get(name, 0),
                    "num_accepted_tokens": accepted.get(name, 0),
                    "num_faults": count,
                }
                for name, count in faults.items()
            },
        }
