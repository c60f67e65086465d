"""A saver tells whether it is at work and whether the last save failed, and never saves twice at once."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from draftwise.errors import UserError
from draftwise.state.file import Saver


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
def saver(state: State) -> Saver:
    return Saver(state)  # type: ignore[arg-type]


def is_busy(saver: Saver) -> bool:
    return saver.is_busy


def has_failed(saver: Saver) -> bool:
    return saver.failed


def test_one_save_at_a_time(state: State, saver: Saver) -> None:
    assert not is_busy(saver) and not has_failed(saver)
    assert saver.start() and is_busy(saver)
    assert not saver.start(), "the first is not finished"
    saver.finish()
    assert is_busy(saver) and not state.adopted
    state.may_go_on.set()
    saver.wait()
    assert not is_busy(saver) and state.adopted == ["others, beside numbers"]
    assert saver.start()
    saver.end()
    assert state.saved == ["numbers", "numbers", "last"] and len(state.adopted) == 2
    assert not has_failed(saver)


def test_a_save_that_fails_says_so_until_one_does_not(state: State, saver: Saver) -> None:
    state.may_go_on.set()
    state.fails = True
    saver.start()
    saver.wait()
    assert has_failed(saver) and state.complaints == ["disk full"] and state.adopted == [None]
    state.fails = False
    saver.start()
    saver.wait()
    assert not has_failed(saver) and len(state.complaints) == 1


def test_what_cannot_be_taken_is_no_save_and_is_not_tried_again_at_once(state: State, saver: Saver) -> None:
    state.taking_fails = True
    assert saver.start(), "so that the next try waits as long as after a save"
    assert has_failed(saver) and not is_busy(saver) and state.complaints == ["nothing to take"]


def test_a_save_does_not_keep_a_process_alive(saver: Saver) -> None:
    saver.start()
    assert saver._thread is not None and saver._thread.daemon
