"""Totals over a stream of rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .round import Round, Seconds


@dataclass(slots=True)
class Stats:
    """Totals over rounds. `seconds` is wall time if the caller measured it, else the sum of the phases."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    seconds_by_phase: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys((phase.name for phase in fields(Seconds)), 0.0)
    )
    pulls: dict[str, int] = field(default_factory=dict)
    by_drafter: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Stats:
        """The totals of `rounds`."""
        stats = cls()
        for round in rounds:
            stats.add(round)
        return stats

    def add(self, round: Round) -> None:
        """Count one more round."""
        self.tokens += len(round.tokens)
        self.rounds += 1
        self.drafted += round.drafted
        self.accepted += round.accepted
        for phase in self.seconds_by_phase:
            self.seconds_by_phase[phase] += getattr(round.seconds, phase)
        self.seconds += round.seconds.total
        self.pulls[round.arm.name] = self.pulls.get(round.arm.name, 0) + 1
        if round.sources:
            self.by_drafter[round.arm.drafter] = self.by_drafter.get(round.arm.drafter, 0) + round.sources
        if round.fault:
            self.faults.append(round.fault)

    @property
    def tokens_per_s(self) -> float:
        """Tokens written per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_accepted(self) -> float:
        """Accepted draft tokens per round, without the target's own."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        rates = {
            "tokens_per_s": self.tokens_per_s,
            "mean_accepted": self.mean_accepted,
            "acceptance_rate": self.acceptance_rate,
        }
        return asdict(self) | rates


def event(round: Round) -> dict[str, Any]:
    """One round as a record for JSON."""
    return {
        "request": round.request,
        "arm": round.arm.name,
        "drafter": round.arm.drafter,
        "length": round.arm.length,
        "propensity": round.decision.propensity,
        "drafted": round.drafted,
        "accepted": round.accepted,
        "tokens": list(round.tokens),
        "seconds": asdict(round.seconds),
        "done": round.done,
        "finish_reason": round.finish_reason,
        "fault": round.fault,
    }
