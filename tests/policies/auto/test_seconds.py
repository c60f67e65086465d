"""Virtual cursors: on greedy text every arm's rounds and seconds are those of its own replay."""

from __future__ import annotations

import pytest

from draftwise.core.outcomes import Grade
from draftwise.measure.trace import Costs, DrafterCosts, Replay, Trace
from draftwise.measure.trace.state import RecordedDrafter, ReplayState
from draftwise.policies.catalogue import method
from draftwise.policies.recorders.cursors import Cursor
from tests.measure.trace.sims import recorded

PRICED = Costs(
    passes=(1.0, 1.02, 1.05, 1.1, 1.2, 1.3),
    drafters={"good": DrafterCosts(first=0.1, step=0.15, catch_up=0.004), "bad": DrafterCosts(step=0.05)},
)
LENGTHS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=5, length=8)


def estimate(stage: ReplayState, lines: RecordedDrafter, name: str, length: int) -> tuple[int, float]:
    """Rounds and seconds of an arm on a text that others wrote, from grades of its drafter at every token.

    Alone it drafts in every round, so that it has read the text but for the prompt.
    """
    one, mine = stage.recording, PRICED.of(name)
    cursor, rounds, seconds = Cursor(length), 0, mine.catch_up * one.prompt.size
    for at in range(one.committed):
        if cursor.fresh:
            rounds += 1
            drafted = min(length, one.budget - at - 1)
            seconds += PRICED.target(1 + drafted)
            if drafted:
                seconds += mine.draft(drafted)
        place, n = lines.span(at, 1)
        hit = float(n > 0 and lines.tokens[place] == stage.text[at])
        cursor.step(Grade(hit, hit))
    return rounds, seconds


@pytest.mark.parametrize("name", ["good", "bad"])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_estimate_of_an_arm_is_what_its_replay_takes(trace: Trace, name: str, length: int) -> None:
    loop = Replay(trace, method(f"static-{length}?drafter={name}", trace.drafters), PRICED)
    for recording in trace:
        stage = ReplayState(recording)
        rounds = list(loop.replay(stage))
        found, seconds = estimate(stage, stage.drafters[name], name, length)
        assert found == len(rounds)
        assert seconds == pytest.approx(sum(r.seconds.total for r in rounds))


def test_arms_differ_so_that_it_can_fail(trace: Trace) -> None:
    stage = ReplayState(next(iter(trace)))
    found = {estimate(stage, stage.drafters[n], n, k) for n in ("good", "bad") for k in LENGTHS}
    assert len(found) == 8
