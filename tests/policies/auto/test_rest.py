"""Rounds that `auto` leaves out in a batch where no draft pays, and the texts that are written meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from draftwise.core.arms import Arm
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.grading import GradingState, PendingDraft
from draftwise.policies.auto.state import IDLE_LOOKS, LONGEST_SKIP, Skipping
from draftwise.policies.catalogue import method
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, LINE, Sometimes, after


def looks(rest: Skipping, rounds: int, batch: int = 16, drafted: bool = False) -> list[int]:
    """The rounds that are not left out."""
    found = []
    for k in range(rounds):
        if not rest.rests(batch):
            found.append(k)
            rest.drafted = drafted
    return found


def test_the_longer_without_a_draft_the_rarer_a_look() -> None:
    at = looks(Skipping(), 400)
    gaps = [b - a for a, b in pairwise(at)]
    assert gaps == sorted(gaps) and set(gaps) == set(range(1, LONGEST_SKIP + 2))
    assert gaps.count(2) == IDLE_LOOKS
    assert looks(Skipping(), 40, drafted=True) == list(range(40))
    few = looks(Skipping(), 400, batch=4)
    assert max(b - a for a, b in pairwise(few)) == 3


def test_a_draft_or_another_size_of_batch_ends_the_rest() -> None:
    rest = Skipping()
    looks(rest, 400)
    at = looks(rest, 3 * LONGEST_SKIP, drafted=True)
    assert at[-4:] == [3 * LONGEST_SKIP - k for k in (4, 3, 2, 1)], "every round again"
    looks(rest, 400)
    assert looks(rest, 3, batch=33) == [0, 1, 2]


def test_drafts_are_held_against_what_was_written_meanwhile() -> None:
    notes = GradingState(10, probs=[0.5], rounds=[(10, [0], -1)])
    right, wrong = PendingDraft(0, 1, (5, 6, 7), 3), PendingDraft(1, 2, (5, 9), 2)
    notes.held = [right, wrong]
    notes.skip([5, 6], 12)
    assert (notes.start, notes.probs, notes.rounds, notes.held) == (12, [], [], [right])
    windows = notes.settle([7, 8], done=False)
    assert [(w.drafter, w.accepts) for w in windows] == [(1, (1.0, 0.0)), (0, (1.0, 1.0, 1.0))]
    assert not notes.held and not notes.settle([1], done=True)


@pytest.mark.parametrize("temperature", [0.0, 8.0])
def test_texts_are_right_while_auto_rests(temperature: float) -> None:
    """A batch where nothing pays: rounds are left out, and each text is that of one alone."""
    drafters: dict[str, Any] = {"bad": SimDrafter(after(3)), "other": Sometimes()}
    settings = Sampling(max_new_tokens=200, temperature=temperature, seed=5)
    prompts = [[k, k + 1] for k in range(16)]
    texts = []
    for batch in (16, 1):
        chosen = method("auto" if batch > 1 else "none", list(drafters))
        loop = Loop(SimTarget(after(1), len(LETTERS)), drafters, chosen.policy, chosen.recorder, clock=Dear())
        requests = [loop.add(prompt, settings, deterministic=True) for prompt in prompts] if batch > 1 else []
        rounds = []
        while requests and loop.open:
            rounds += loop.step()
        if batch == 1:
            for prompt in prompts:
                requests.append(loop.add(prompt, settings, deterministic=True))
                while loop.open:
                    loop.step()
        assert not any(round.fault for round in rounds) and not any(loop.faults.values())
        if batch > 1:
            left_out = [round for round in rounds if round.decision.arm < 0]
            assert len(left_out) > len(rounds) / 3 and all(round.arm == Arm("none", 0) for round in left_out)
            assert any(round.accepted < round.drafted for round in rounds), "a draft was rejected"
        texts.append([request.tokens for request in requests])
    assert texts[0] == texts[1] and (temperature == 0) == all(map(plain, texts[0]))


def plain(tokens: list[int]) -> bool:
    """The text that is most likely everywhere."""
    return all(b == (a + 1) % len(LINE) for a, b in pairwise(tokens[2:]))


def test_the_recorder_tells_its_notes_of_rounds_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token after the first look reaches the notes once, with a look or between two."""
    told: dict[int, int] = {}
    skip = GradingState.skip

    def spy(self: GradingState, new: Sequence[int], start: int) -> None:
        told[id(self)] = told.get(id(self), 0) + len(new)
        assert self.end + len(new) == start
        skip(self, new, start)

    monkeypatch.setattr(GradingState, "skip", spy)
    chosen = method("auto", ["bad"])
    loop = Loop(
        SimTarget(after(1), len(LETTERS)),
        {"bad": SimDrafter(after(3))},
        chosen.policy,
        chosen.recorder,
        clock=Dear(),
    )
    for k in range(16):
        loop.add([k, k + 1], Sampling(max_new_tokens=200), deterministic=True)
    seen = 0
    while loop.open:
        seen += sum(round.decision.arm >= 0 for round in loop.step())
    assert len(told) == 16 and 0 <= 16 * 200 - seen - sum(told.values()) <= 16 * LONGEST_SKIP


class Dear:
    """Seconds in which every token of a pass costs as much as the first: no draft pays."""

    def target(self, seconds: float, tokens: int) -> float:
        return 1.0 * tokens

    def round(self, seconds: Any) -> Any:
        return seconds
