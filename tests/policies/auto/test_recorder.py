"""What `AutoRecorder` reads of the drafters that do not play."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from draftwise.core.outcomes import Grade, Window
from draftwise.core.roles import GradeJob, Graders, Seen
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.auto.texts import Notes

from .world import EASY, Model, Prices, World, table


def test_a_model_that_does_not_play_is_graded_on_each_token_once_and_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graded: list[tuple[int, int, int]] = []
    grade = Model.grade

    def spy(self: Model, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        graded.extend((j.request.id, j.start, len(j.request.tokens)) for j in jobs)
        return grade(self, jobs)

    monkeypatch.setattr(Model, "grade", spy)
    world = World(monkeypatch, EASY, Prices(token=4e-3), {"dear": table(5, 3.0)})
    _, loop, rounds = world.run("auto?share=0.5", texts=4)
    played = sum(r.drafted > 0 for r in rounds)
    assert len(graded) >= 8, graded
    assert played < len(rounds) / 4
    for (one, _, end), (other, start, _) in pairwise(graded):
        assert one != other or start >= end - 1  # its last token is read with the next ones
    assert loop.policy.calibrations[0].seen > 100  # type: ignore[attr-defined]


def test_a_text_that_ends_settles_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Window]] = []
    follow = AutoRecorder._follow

    def keep(self: AutoRecorder, seen: Seen, notes: Notes, graders: Graders) -> list[Window]:
        found.append(follow(self, seen, notes, graders))
        return found[-1]

    monkeypatch.setattr(AutoRecorder, "_follow", keep)
    _, loop, rounds = World(monkeypatch, EASY, Prices(), {}, ("a", "b")).run("auto", texts=3, tokens=40)
    ends = [windows for windows, round in zip(found, rounds, strict=True) if round.done]
    assert len(ends) == 3 and any(all(x == 1.0 for x in w.accepts) for windows in ends for w in windows)
    assert not loop.recorder.texts  # type: ignore[attr-defined]
