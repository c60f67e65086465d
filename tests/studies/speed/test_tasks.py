"""The study of two tasks in one text, switches and routers, on a small world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise.measure.trace.costs import DrafterCosts
from studies.speed import tasks
from studies.speed.world import World
from tests.measure.trace.sims import COSTS, recorded

PRICE = DrafterCosts(first=0.1, step=0.15, catch_up=0.004)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    trace = recorded(tmp_path_factory.mktemp("trace"), names=("good", "bad"), n=6)
    return World(trace, replace(COSTS, drafters={}, others=PRICE), "sim", 1)


def test_one_text_of_one_drafter_takes_what_the_walk_says(world: World) -> None:
    texts = [(state,) for state in world.stages]
    seconds, late, switches, rounds, accepted = tasks.play(world, lambda _: "static-5?drafter=bad", texts, 1)
    assert seconds[0] == pytest.approx(world.fixed["bad", 5]) and not switches.any()
    tokens = [state.recording.committed for state in world.stages]
    assert (rounds + accepted >= tokens).all() and (late > 0).all() and (late < seconds).all()


def test_a_second_task_goes_on_with_the_learner_and_what_was_read(world: World) -> None:
    """Prompt and answer of the first part are not read again; a drafter that is new reads both parts."""
    first, second = world.stages[:2]
    size = second.recording.prompt.size - first.recording.prompt.size - first.recording.committed
    same = tasks.play(world, lambda _: "static-5?drafter=bad", [(first, second)], 1)
    alone = world.fixed["bad", 5][:2].sum()
    assert same[0, 0, 0] == pytest.approx(alone - PRICE.catch_up * (second.recording.prompt.size - size))
    others = {id(first): "good", id(second): "bad"}
    routed = tasks.play(world, lambda state: f"static-5?drafter={others[id(state)]}", [(first, second)], 1)
    assert routed[2, 0, 0] == 1
    assert routed[0, 0, 0] == pytest.approx(world.fixed["good", 5][0] + world.fixed["bad", 5][1])


def test_the_second_turn_is_of_another_domain(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace", names=("good",), n=12)
    tokenizer: Any = Letters()
    lines = [line for _, line in tasks.second_turns(trace, tokenizer)]
    recordings = list(trace)
    long = [i for i, one in enumerate(recordings) if one.committed >= tasks.LEAST]
    assert [line["question_id"] for line in lines] == long and len(long) > 2
    for line in lines:
        one = recordings[line["question_id"]]
        assert line["category"] != one.category
        before, turn = line["prompt"].split("<|end|>")
        assert before.startswith(Letters.decode(one.prompt)) and len(before) > len(turn)
        assert turn in {Letters.decode(other.prompt) for other in recordings}


class Letters:
    """A tokenizer of letters."""

    @staticmethod
    def decode(tokens: Any) -> str:
        return "".join(chr(97 + int(token)) for token in np.asarray(tokens))
