"""The team of drafters: what each call costs whom, and what a recorder is told when it asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise import team as module
from draftwise.team import Team
from draftwise.types import Arm, Draft, Job, Request, Sampling


class Echo:
    """Drafts the last tokens of the text that it is shown, backwards; draws them if it is told to."""

    def __init__(self, *, draws: bool = False) -> None:
        self.draws, self.told = draws, list[int]()

    def hint(self, request: Request) -> float:
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = []
        for job in jobs:
            tokens = job.request.tokens[::-1][: job.length]
            drawn: Any = {"probs": [1.0] * len(tokens), "dist": np.eye(99)[tokens]} if self.draws else {}
            made.append(Draft.chain(tokens, **drawn))
        return made

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.told += new

    def close(self, request: Request) -> None: ...


def request(tokens: Sequence[int], *, id: int = 0) -> Request:
    return Request(id, list(tokens), 0, Sampling(), Random(0), Random(0))


def team(**drafters: Echo) -> Team:
    return Team(drafters, {}, vocab_size=99, strikes=3)


def test_a_call_is_charged_to_its_jobs_by_what_they_got(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[float] = iter([0.0, 0.0, 0.0, 6.0])  # around the call, and around the asking in it
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    long, short = request([1, 2, 3, 4]), request([1, 2, 3, 4], id=1)
    drafts, seconds = team(echo=Echo()).draft({"echo": [(2, Job(long, 3)), (0, Job(short, 1))]}, 3)
    assert [d.tokens for d in drafts] == [(4,), (), (4, 3, 2)]
    assert seconds == pytest.approx([2.0, 0.0, 4.0])  # 1 + 1 and 1 + 3 of six parts


def test_a_guess_is_made_where_the_text_ended_then() -> None:
    echo = Echo()
    ours, text = team(echo=echo), request([1, 2, 3, 4, 5])
    assert ours.guess("echo", text, 3, Arm("echo", 2)) == (3, 2)
    assert echo.told == [1, 2, 3]
    assert ours.guess("echo", text, 5, Arm("echo", 2)) == (5, 4)
    assert echo.told == [1, 2, 3, 4, 5] and text.tokens == [1, 2, 3, 4, 5]
    assert not text.out and ours.graded_seconds > 0.0


def test_what_was_drawn_is_no_guess_and_no_fault() -> None:
    ours, text = team(dice=Echo(draws=True)), request([1, 2, 3])
    assert ours.guess("dice", text, 3, Arm("dice", 2)) is None
    assert not text.out and ours.faults == {"dice": 0}


def test_a_guess_that_breaks_the_contract_is_a_fault() -> None:
    ours, text = team(echo=Echo()), request([1, 200])
    assert ours.guess("echo", text, 2, Arm("echo", 1)) is None
    assert text.out == {"echo"} and "vocabulary" in ours.trouble(text)
