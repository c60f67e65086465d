"""Rounds that `auto` leaves out in a batch where no draft pays, and the texts that are written meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from draftwise.core.arms import Arm
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.rest import LONGEST, PATIENCE, Rest
from draftwise.policies.auto.texts import Held, Notes
from draftwise.policies.catalogue import method
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, Sometimes, after


def looks(rest: Rest, rounds: int, batch: int = 16, drafted: bool = False) -> list[int]:
    """The rounds that are not left out."""
    found = []
    for k in range(rounds):
        if not rest.rests(batch):
            found.append(k)
            rest.drafted = drafted
    return found


def test_the_longer_in_vain_the_rarer() -> None:
    at = looks(Rest(), 400)
    gaps = [b - a for a, b in pairwise(at)]
    assert gaps == sorted(gaps) and set(gaps) == set(range(1, LONGEST + 2))
    assert gaps.count(2) == PATIENCE
    assert looks(Rest(), 40, drafted=True) == list(range(40))
    few = looks(Rest(), 400, batch=4)
    assert max(b - a for a, b in pairwise(few)) == 3


def test_a_draft_or_another_size_of_batch_ends_the_rest() -> None:
    rest = Rest()
    looks(rest, 400)
    at = looks(rest, 3 * LONGEST, drafted=True)
    assert at[-4:] == [3 * LONGEST - k for k in (4, 3, 2, 1)], "every round again"
    looks(rest, 400)
    assert looks(rest, 3, batch=33) == [0, 1, 2]


def test_drafts_are_held_against_what_was_written_meanwhile() -> None:
    notes = Notes(10, probs=[0.5], rounds=[(10, [0])])
    right, wrong = Held(0, 1, (5, 6, 7), 3), Held(1, 2, (5, 9), 2)
    notes.held = [right, wrong]
    notes.skip([5, 6], 12)
    assert (notes.start, notes.probs, notes.rounds, notes.held) == (12, [], [], [right])
    windows = notes.settle([7, 8], done=False)
    assert [(w.drafter, w.accepts) for w in windows] == [(1, (1.0, 0.0)), (0, (1.0, 1.0, 1.0))]
    assert not notes.held and not notes.settle([1], done=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_right_while_auto_rests(temperature: float) -> None:
    """A batch where nothing pays: rounds are left out, and each text is that of one alone."""
    drafters: dict[str, Any] = {"bad": SimDrafter(after(3)), "other": Sometimes()}
    settings = Sampling(max_new_tokens=200, temperature=temperature, seed=5)
    prompts = [[k, k + 1] for k in range(16)]
    texts = []
    for batch in (16, 1):
        chosen = method("auto" if batch > 1 else "none", list(drafters))
        loop = Loop(SimTarget(after(1), len(LETTERS)), drafters, chosen.policy, chosen.recorder, clock=Dear())
        requests = [loop.add(prompt, settings, picked=True) for prompt in prompts] if batch > 1 else []
        rounds, decided = [], 0
        while requests and loop.open:
            rounds += loop.step()
            decided += any(round.decision.arm >= 0 for round in rounds[-len(loop.open) :])
        if batch == 1:
            for prompt in prompts:
                requests.append(loop.add(prompt, settings, picked=True))
                while loop.open:
                    loop.step()
        assert not any(round.fault for round in rounds) and not any(loop.faults.values())
        if batch > 1:
            left_out = [round for round in rounds if round.decision.arm < 0]
            assert len(left_out) > len(rounds) / 3 and all(round.arm == Arm("none", 0) for round in left_out)
        texts.append([request.tokens for request in requests])
    assert texts[0] == texts[1]


class Dear:
    """Seconds in which every token of a pass costs as much as the first: no draft pays."""

    def target(self, seconds: float, tokens: int) -> float:
        return 1.0 * tokens

    def round(self, seconds: Any) -> Any:
        return seconds
