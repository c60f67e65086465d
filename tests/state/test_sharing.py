"""Processes that share a state file learn together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from draftwise.core.arms import Arm
from draftwise.errors import UserError
from draftwise.policies.auto.chances import Acceptance
from draftwise.policies.auto.prices import PassPrice
from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB
from draftwise.state.file import Saver, StateFile, StateWarning
from draftwise.state.learned import LEARNED, dump, learned

from .test_merge import ADDING, K, Step, close, played


@dataclass
class Learns:
    """A policy that is one learner."""

    learner: Any = field(metadata=LEARNED)
    arms: tuple[Arm, ...] = tuple(Arm(name, 5) for name in "abc")


def shared(path: Path, learner: Any) -> StateFile:
    """A process's file, loaded."""
    policy: Any = Learns(learner)
    file = StateFile(path, policy, name="own", target="t", drafters={})
    file.load()
    return file


def learner(file: StateFile) -> Any:
    policy: Any = file.policy
    return policy.learner


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.mark.parametrize(("new", "step"), ADDING, ids=[type(new()).__name__ for new, _ in ADDING])
def test_processes_on_one_file_know_what_one_knows_that_saw_it_all(
    path: Path, new: Callable[[], Any], step: Step
) -> None:
    whole = new()

    def learn(file: StateFile, seed: int, rounds: int) -> None:
        for one in (learner(file), whole):
            rng = Random(seed)
            for _ in range(rounds):
                step(one, rng)

    first = shared(path, new())
    learn(first, 0, 20)
    first.save()
    files = [first, shared(path, new()), shared(path, new())]
    for seed, (who, rounds) in enumerate([(0, 3), (1, 30), (2, 7), (1, 5), (0, 11)], start=1):
        learn(files[who], seed, rounds)
        files[who].save()
    learn(files[2], 6, 4)
    found = files[2].exchange(files[2].taken())
    learn(files[2], 7, 9)  # while the file was being written
    files[2].adopt(found)
    assert close(dump(learner(files[2])), dump(whole))
    for file in (*files[::-1], *files):
        file.save()
    for file in (*files, shared(path, new())):
        assert close(dump(learner(file)), dump(whole))


def test_a_process_that_is_killed_leaves_what_it_had_saved(path: Path) -> None:
    killed, other = shared(path, UCB1(K)), shared(path, UCB1(K))
    for _ in range(10):
        played(learner(killed), Random(1))
    killed.save()
    played(learner(killed), Random(2))  # lost
    played(learner(other), Random(3))
    other.save()
    replaced = shared(path, UCB1(K))
    assert sum(learner(replaced).pulls) == sum(learner(other).pulls) == 11.0


def accepting(rng: Random, chance: float) -> Callable[[Acceptance], None]:
    def learn(acceptance: Acceptance) -> None:
        accepts = [float(rng.random() < chance) for _ in range(4)]
        acceptance.learn(0, accepts[: accepts.index(0.0) + 1] if 0.0 in accepts else accepts)

    return learn


def chances(files: list[StateFile]) -> Iterator[Acceptance]:
    for file in files:
        acceptance = learner(file)
        for tested, accepted in zip(acceptance.tested, acceptance.accepted, strict=True):
            assert all(0.0 <= a <= t for t, a in zip(tested, accepted, strict=True))
        yield acceptance


def test_chances_that_fade_stay_chances_where_all_processes_see_them_fall(path: Path) -> None:
    files = [shared(path, Acceptance(4)) for _ in range(3)]
    rng = Random(0)
    for chance in (0.95, 0.05, 0.95):
        for _ in range(12):
            for file in files:
                for _ in range(100):
                    accepting(rng, chance)(learner(file))
                file.save()
                list(chances(files))
        for acceptance in chances(files):
            assert acceptance.survival(0)[0] == pytest.approx(chance, abs=0.15)


def test_one_process_alone_keeps_exactly_what_it_knows(path: Path) -> None:
    file, idle = shared(path, Acceptance(4)), shared(path, Acceptance(4))
    for rounds in (5, 200, 3):
        for _ in range(rounds):
            accepting(Random(rounds), 0.5)(learner(file))
        before = dump(file.policy)
        file.save()
        assert dump(file.policy) == before
        idle.save()
        assert dump(idle.policy) == before == dump(file.policy)
        assert learner(idle).survival(0) == learner(file).survival(0)


def test_prices_of_another_process_are_used_at_once(path: Path) -> None:
    one, other = shared(path, PassPrice()), shared(path, PassPrice())
    for _ in range(4):
        learner(one).add(1, 1.0)
        learner(one).add(9, 2.0)
        learner(other).add(1, 1.0)
    assert learner(other)(9) == learner(other)(1)
    one.save()
    other.save()
    assert learner(other)(9) == pytest.approx(2.0, rel=0.01)


def test_discounted_counts_never_fall_below_zero(path: Path) -> None:
    files = [shared(path, DiscountedUCB(K)) for _ in range(2)]
    for arm in (0, 1, 0):
        for file in files:
            for _ in range(300):
                learner(file).update(arm, 1.0, 1.0)
        for file in files:
            file.save()
            assert min(learner(file).pulls) >= 0.0
    assert learner(files[0]).choose(range(K), Random(0))[0] == 2  # never played


def test_what_cannot_be_merged_is_of_the_last_to_save(path: Path) -> None:
    one, other = (shared(path, SlidingWindowUCB(K)) for _ in range(2))
    for k, file in enumerate((one, other)):
        for _ in range(3 + k):
            played(learner(file), Random(k))
        file.save()
    assert sum(learner(one).pulls) == 3.0
    assert sum(learner(shared(path, SlidingWindowUCB(K))).pulls) == 4.0


def test_a_rule_that_raises_costs_no_round(path: Path) -> None:
    def broken(base: Any, parts: Any, name: str) -> Any:
        if parts[0].count:
            raise ZeroDivisionError("a plug-in's")
        return base.count

    @dataclass
    class Broken:
        count: float = field(default=0.0, metadata=learned(broken))

    one, other = shared(path, Broken()), shared(path, Broken())
    learner(one).count, learner(other).count = 1.0, 2.0
    one.save()
    with pytest.warns(StateWarning, match="cannot be merged .*a plug-in's"):
        assert other.keep()
    assert learner(other).count == learner(shared(path, Broken())).count == 2.0


# -- a saver tells whether it is at work and whether the last save failed, and never saves twice at once ---


class State:
    """A state file whose save waits until it may go on."""

    def __init__(self) -> None:
        self.may_go_on, self.fails, self.taking_fails = Event(), False, False
        self.saved: list[str] = []
        self.adopted: list[str] = []
        self.complaints: list[str] = []

    def taken(self) -> Any:
        if self.taking_fails:
            raise UserError("nothing to take")
        return "numbers"

    def exchange(self, taken: Any) -> Any:
        self.may_go_on.wait(60)
        if self.fails:
            raise UserError("disk full")
        self.saved.append(taken)
        return f"others, beside {taken}"

    def adopt(self, found: Any) -> None:
        self.adopted.append(found)

    def keep(self) -> None:
        self.saved.append("last")

    def complain(self, error: UserError) -> None:
        self.complaints.append(str(error))


@pytest.fixture
def state() -> Iterator[State]:
    made = State()
    yield made
    made.may_go_on.set()


@pytest.fixture
def saver(state: Any) -> Any:
    return Saver(state)


def test_one_save_at_a_time(state: State, saver: Any) -> None:
    assert not saver.is_busy and not saver.failed
    assert saver.start() and saver.is_busy
    assert not saver.start(), "the first is not finished"
    saver.finish()
    assert saver.is_busy and not state.adopted
    state.may_go_on.set()
    saver.wait()
    assert not saver.is_busy and state.adopted == ["others, beside numbers"]
    assert saver.start()
    saver.end()
    assert state.saved == ["numbers", "numbers", "last"] and len(state.adopted) == 2
    assert not saver.failed


def test_a_save_that_fails_says_so_until_one_does_not(state: State, saver: Any) -> None:
    state.may_go_on.set()
    state.fails = True
    saver.start()
    saver.wait()
    assert saver.failed and state.complaints == ["disk full"] and state.adopted == [None]
    state.fails = False
    saver.start()
    saver.wait()
    assert not saver.failed and len(state.complaints) == 1


def test_what_cannot_be_taken_is_no_save_and_is_not_tried_again_at_once(state: State, saver: Any) -> None:
    state.taking_fails = True
    assert saver.start(), "so that the next try waits as long as after a save"
    assert saver.failed and not saver.is_busy and state.complaints == ["nothing to take"]


def test_a_save_does_not_keep_a_process_alive(saver: Any) -> None:
    saver.start()
    assert saver._thread is not None and saver._thread.daemon
