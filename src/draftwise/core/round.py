"""The record of one round, its times, and totals over rounds. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from .arms import Arm, Decision

Tops = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Seconds:
    """The time of one request's round by phase, in seconds."""

    choose: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    grade: float = 0.0
    learn: float = 0.0

    @property
    def total(self) -> float:
        """All phases together."""
        return self.choose + self.draft + self.verify + self.accept + self.grade + self.learn


@dataclass(slots=True)
class Round:
    """One record per request and round: the only input of text output, metrics, traces and plots.

    Attributes:
        request: The request's id.
        decision: What the policy decided.
        arm: The arm of this decision.
        drafted: Draft tokens, before the text was cut at its end.
        accepted: Those of them that the target accepted, as the policy learned it.
        tokens: Token ids that were committed: drafted ones first, the target's own last, unless cut.
        sources: Committed tokens that the drafter guessed.
        seconds: Where the time went.
        done: The text has ended with this round.
        finish_reason: "eos", "length", "stop" or "error" if it has.
        fault: In one line what went wrong; the text is right all the same, unless there is an `error`.
        logprobs: Of each committed token under the raw softmax at temperature 1, in nats; empty unless asked.
        error: What ended the request: its text stays as it was before.
        tops: The most likely tokens in place of each committed one, with their log-probabilities under that
            softmax; empty unless asked.
    """

    request: int
    decision: Decision
    arm: Arm
    drafted: int
    accepted: int
    tokens: tuple[int, ...]
    sources: int
    seconds: Seconds
    done: bool
    finish_reason: str = ""
    fault: str = ""
    logprobs: tuple[float, ...] = ()
    error: Exception | None = None
    tops: tuple[Tops, ...] = ()


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
        """Return the totals of `rounds`."""
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
        """Return all values, for JSON."""
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


class Clock(Protocol):
    """Receives the measured times and returns the times to be used."""

    def target(self, seconds: float, tokens: int) -> float:
        """Return seconds of a target pass over `tokens` tokens."""

    def round(self, seconds: Seconds) -> Seconds:
        """Return seconds of one request's round, by phase."""
