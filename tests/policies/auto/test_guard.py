"""When `auto` turns speculation off, and which rounds of a batch it leaves out."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Arm, Context
from draftwise.core.loop import Loop
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.chances import Acceptance
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.auto.guard import PAUSE, Guard, Skipping
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.prices import WINDOW
from draftwise.policies.catalogue import method
from draftwise.policies.catalogue.auto import team
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, LINE, Sometimes, after

# -- the guard -------------------------------------------------------------------------------------------


def judged(seconds: float, *, trials: int = 1) -> Guard:
    """After so many trials whose rounds took these seconds, where plain passes take 1."""
    guard = Guard()
    for _ in range(trials):
        guard.pause = 0.0
        for _ in range(WINDOW):
            guard.add(seconds, 1.0)
    return guard


def test_drafts_that_take_longer_than_plain_passes_are_called_off() -> None:
    guard = Guard()
    for rounds in range(WINDOW):
        assert guard.allows(0.5, 1), f"after {rounds} rounds"
        guard.add(1.1, 1.0)
    assert not guard.allows(0.5, 1)


@pytest.mark.parametrize(("seconds", "plain"), [(0.99, 1.0), (1.0, 0.0)], ids=["pays", "no plain pass"])
def test_other_drafts_are_not(seconds: float, plain: float) -> None:
    guard = judged(100.0)
    guard.pause = 0.0  # what was before a pause does not count
    for _ in range(10 * WINDOW):
        guard.add(seconds, plain)
        assert guard.allows(0.0, 1)


@pytest.mark.parametrize("batch", [1, 4])
def test_after_a_pause_of_so_many_passes_drafts_are_tried_again(batch: int) -> None:
    guard, held = judged(1.1), PAUSE * batch
    assert [guard.allows(0.5, 1 / batch) for _ in range(held + 1)] == [False] * held + [True]


def test_rounds_that_are_left_out_are_part_of_a_pause() -> None:
    policy = AutoPolicy(*team(["a"], LENGTHS))
    policy.guards[0].pause, policy.skipping.skipped = 9.0, 3
    for request in range(4):
        policy.choose(Context(request, batch_size=4), Random(0))
    assert policy.guards[0].pause == 5.0
    policy.choose(Context(), Random(0))
    assert policy.guards[0].pause == 4.0, "a request alone is never left out"


def test_each_pause_is_four_times_as_long_as_the_one_before_it_up_to_8192() -> None:
    assert [judged(1.1, trials=n).pause for n in range(1, 6)] == [128, 512, 2048, 8192, 8192]


def test_long_success_makes_the_next_pause_a_short_one() -> None:
    guard = judged(1.1, trials=3)
    guard.pause = 0.0
    for _ in range(4 * WINDOW + 1):
        guard.add(0.9, 1.0)
    assert guard.penalty == PAUSE


def test_each_such_draft_that_fails_doubles_what_the_next_must_gain() -> None:
    guard = judged(1.1)
    for least in (1.0, 2.0, 4.0, 8.0):
        assert not guard.allows(0.99 * least, 1) and guard.allows(1.01 * least, 1)
        guard.add(1.6, 1.0)
    assert guard.pause > PAUSE - 16


def test_a_few_such_drafts_that_succeed_end_the_pause() -> None:
    guard = judged(1.1)
    for k in range(4):
        assert guard.allows(1.1 / 2**k, 1) and not guard.allows(0.0, 1)
        guard.add(1.6, 9.0)
    assert guard.allows(0.0, 1)


# -- rounds left out -------------------------------------------------------------------------------------


def looks(skipping: Skipping, rounds: int, batch: int = 16, drafted: bool = False, at: int = 4) -> list[int]:
    """The rounds that are not left out."""
    seen = []
    for k in range(rounds):
        if not skipping.rests(at, batch):
            seen.append(k)
            skipping.drafted = drafted
    return seen


def test_the_longer_without_a_draft_the_rarer_a_look() -> None:
    gaps = [b - a for a, b in pairwise(looks(Skipping(), 400))]
    assert gaps == sorted(gaps) and set(gaps) == set(range(1, 9))
    assert gaps.count(2) == 4


@pytest.mark.parametrize(("batch", "most"), [(2, 2), (4, 3), (8, 5), (16, 8), (64, 8)])
def test_of_few_requests_fewer_rounds_are_left_out(batch: int, most: int) -> None:
    assert max(b - a for a, b in pairwise(looks(Skipping(), 400, batch=batch))) == most


def test_a_look_knows_how_many_rounds_were_left_out_before_it() -> None:
    skipping = Skipping()
    counts, skipped = [], 0
    for _ in range(400):
        if skipping.rests(3, 8):
            skipped += 1
        else:
            counts.append((skipping.skipped, skipped))
            skipped = 0
    assert all(told == true for told, true in counts)
    assert max(told for told, _ in counts) == 4


def test_a_draft_ends_the_rest() -> None:
    skipping = Skipping()
    looks(skipping, 400)
    assert looks(skipping, 24, drafted=True)[-12:] == list(range(12, 24)), "every round again"
    looks(skipping, 400)
    assert looks(skipping, 3, at=5) == [0, 1, 2], "and so does another size of batch"


class Dear:
    """Seconds in which every token of a pass costs as much as the first: no draft pays."""

    def target(self, seconds: float, tokens: int) -> float:
        return 1.0 * tokens

    def round(self, seconds: Any) -> Any:
        return seconds


def written(name: str, temperature: float, together: bool) -> tuple[list[list[int]], list[Round]]:
    """The texts of 16 prompts, in one batch or one after another, and all rounds."""
    drafters: dict[str, Any] = {"bad": SimDrafter(after(3)), "other": Sometimes()}
    settings = Sampling(max_new_tokens=200, temperature=temperature, seed=5)
    chosen = method(name, list(drafters))
    loop = Loop(SimTarget(after(1), len(LETTERS)), drafters, chosen.policy, chosen.recorder, clock=Dear())
    requests, rounds = [], list[Round]()
    for k in range(16):
        requests.append(loop.add([k, k + 1], settings, deterministic=True))
        while loop.open and not together:
            rounds += loop.step()
    while loop.open:
        rounds += loop.step()
    assert not any(round.fault for round in rounds) and not any(loop.faults.values())
    return [request.tokens for request in requests], rounds


@pytest.mark.parametrize("temperature", [0.0, 8.0])
def test_texts_are_right_while_auto_rests(temperature: float) -> None:
    """A batch where nothing pays: rounds are left out, and each text is that of one alone."""
    texts, rounds = written("auto", temperature, together=True)
    rested = [round for round in rounds if round.decision.arm < 0]
    assert len(rested) > len(rounds) / 3 and all(round.arm == Arm("none", 0) for round in rested)
    assert any(round.accepted < round.drafted for round in rounds), "a draft was rejected"
    assert texts == written("none", temperature, together=False)[0]
    assert (temperature == 0) == all(map(likely, texts))


def likely(tokens: list[int]) -> bool:
    """Whether it is the text that is most likely everywhere."""
    return all(b == (a + 1) % len(LINE) for a, b in pairwise(tokens[2:]))


def test_what_is_written_while_auto_rests_is_known_of_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round left out `auto` knows the length of each answer, and has learned from it."""
    closed, lessons, learn = list[int](), [0], Acceptance.learn

    def close(self: AutoPolicy, request: int) -> None:
        closed.append(self.texts.pop(request).written)

    def count(self: Acceptance, *lesson: Any) -> None:
        lessons[0] += 1
        learn(self, *lesson)

    monkeypatch.setattr(AutoPolicy, "close", close)
    monkeypatch.setattr(Acceptance, "learn", count)
    _, rounds = written("auto", 0.0, together=True)
    assert sum(round.decision.arm < 0 for round in rounds) > len(rounds) / 3
    assert len(closed) == 16 and all(200 - 8 <= n <= 200 for n in closed) and lessons[0] > 100
