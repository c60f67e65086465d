"""Texts that drafters read between steps: who waits for whom, who reads at all, and what a fault does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwise.core.loop import Loop
from draftwise.core.reading import IDLE, TRIED
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import CascadeDrafter, TogetherDrafter
from draftwise.policies.catalogue import method
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, Sometimes, after
from tests.core.turns import loop_with

PIECES = 3
LONG = Sampling(max_new_tokens=4000)


class Slow(SimDrafter):
    """Reads every text in pieces, and fails at the texts that it is told to."""

    def __init__(self, *, fails: Sequence[int] = ()) -> None:
        super().__init__(after(1))
        self.left: dict[int, int] = {}
        self.fails = fails

    def prepare(self, request: Request) -> bool:
        if request.id in self.fails:
            raise RuntimeError("no memory")
        self.left[request.id] = self.left.get(request.id, PIECES) - 1
        return self.left[request.id] > 0

    def reads(self, id: int) -> int:
        """How many pieces of this text it has read."""
        return PIECES - self.left.get(id, PIECES)


def looped(policy: str = "static-2?drafter=slow", *, fails: Sequence[int] = ()) -> tuple[Loop, Slow]:
    slow = Slow(fails=fails)
    team = {"slow": slow, "other": Sometimes()}
    return loop_with(SimTarget(after(1), len(LETTERS)), team, policy), slow


def added(loop: Loop, n: int) -> list[Request]:
    requests = [loop.add([0, k % 20], LONG) for k in range(n)]
    assert not any(loop.read(request) for request in requests)
    return requests


def drafted(loop: Loop) -> list[int]:
    return [round.drafted for round in loop.step()]


def test_a_text_is_written_while_its_drafter_reads_it() -> None:
    loop, slow = looped()
    first, second = added(loop, 2)
    assert drafted(loop) == [0, 0] and first.not_ready == second.not_ready == {"slow"}
    for pieces in range(1, 1 + PIECES):
        assert loop.prepare() and slow.reads(first.id) == pieces
    assert drafted(loop) == [2, 0] and not first.not_ready, "the first has been read, the second has not"
    assert [loop.prepare() for _ in range(PIECES + 1)] == [True] * PIECES + [False]
    assert drafted(loop) == [2, 2] and slow.reads(second.id) == PIECES


def test_a_text_alone_waits_for_no_drafter() -> None:
    loop, slow = looped()
    (only,) = added(loop, 1)
    assert not loop.prepare() and drafted(loop) == [2] and not slow.left
    late = loop.add([0, 1], LONG)
    loop.read(late)
    loop.close(only)
    assert drafted(loop) == [0], "it came while another was written"
    assert [loop.prepare() for _ in range(PIECES + 1)] == [True] * PIECES + [False]
    assert drafted(loop) == [2]


def test_a_drafter_that_nobody_names_reads_one_text_in_so_many() -> None:
    loop, slow = looped("static-2?drafter=other")
    old = added(loop, 2)
    for _ in range(IDLE):
        loop.step()
    while loop.prepare():
        pass
    assert slow.reads(old[0].id) == PIECES and not slow.reads(old[1].id)
    new = added(loop, 2 * TRIED)
    while loop.prepare():
        pass
    read = [k for k, request in enumerate(new, len(old)) if slow.reads(request.id)]
    assert read == [TRIED, 2 * TRIED]
    loop.policy = loop.barrier.policy = method("static-2?drafter=slow", ["slow", "other"]).policy
    assert drafted(loop)[:2] == [2, 0], "who has been read is drafted for"
    while loop.prepare():
        pass
    assert all(slow.reads(request.id) == PIECES for request in new), "and it is in use again"


@pytest.mark.parametrize("kind", ["cascade", "together"])
def test_who_asks_a_drafter_waits_for_it_and_keeps_it_in_use(kind: str) -> None:
    slow = Slow()
    team: dict[str, Drafter] = {"slow": slow, "ngram": Sometimes(), kind: TogetherDrafter()}
    if kind == "cascade":
        from draftwise.drafters.lookup.ngram import NgramDrafter

        team |= {"ngram": NgramDrafter(), kind: CascadeDrafter("slow>ngram")}
    loop = loop_with(SimTarget(after(1), len(LETTERS)), team, f"static-2?drafter={kind}")
    first, _ = added(loop, 2)
    for _ in range(IDLE + 1):
        loop.step()
    assert first.not_ready == {"slow", kind}
    while loop.prepare():
        pass
    assert slow.left == {0: 0, 1: 0} and all(drafted(loop)) and not first.not_ready


def test_a_drafter_that_fails_at_a_text_leaves_the_others_alone() -> None:
    loop, _ = looped(fails=[0])
    first, second = added(loop, 2)
    assert [loop.prepare() for _ in range(PIECES + 2)] == [True] * (PIECES + 1) + [False]
    rounds = loop.step()
    assert [round.drafted for round in rounds] == [0, 2] and "no memory" in rounds[0].fault
    assert first.disabled == {"slow"} and not second.disabled


def test_a_text_that_leaves_is_read_no_more() -> None:
    loop, slow = looped()
    first, second = added(loop, 2)
    assert loop.prepare()
    loop.close(first)
    while loop.prepare():
        pass
    assert slow.reads(first.id) == 1 and slow.reads(second.id) == PIECES
    assert not loop.pool.reading.unread
