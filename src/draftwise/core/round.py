"""The record of one round. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .arms import Arm, Decision

Tops = tuple[tuple[int, float], ...]


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
