"""The record of one round. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .arms import Arm, Decision


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Round:
    """One record per request and round: the only input of text output, metrics, traces and plots.

    `drafted` and `accepted` count before the text is cut at its end, as the policy learnt them. `tokens` are
    the committed tokens: accepted draft tokens first, the target's own last (unless cut). `sources` is the
    number of committed tokens that came from the draft. `fault` describes in one line what went wrong; the
    text is still correct, unless `error` is set, which ended the request: its text then stays as it was
    before this round.
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
