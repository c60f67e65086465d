"""What a policy has learned is saved, loaded and merged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isclose
from typing import Any

from ...errors import UserError
from ...state.merge import combine
from ...state.numbers import dump, load
from .checks import fail, skip
from .games import Games
from .tape import parting, replay

MARK = "make it a dataclass, and mark what it learns with field(metadata=learned(adds))"


class KeptChecks(Games):
    """Checks of the state file's numbers."""

    def learnt(self, *, seed: int = 0, half: bool = False) -> Any:
        """A policy that was told what the one of the game was told."""
        policy, events = self.fresh().policy, list(self.game.tape.events)
        if half:
            ids = sorted({args[0].request for name, args in events if name == "choose"})
            events = events[: len(events) // 2] + [("close", (request,)) for request in ids]
        replay(policy, events, seed=seed)
        return policy

    def test_what_it_learns_is_saved_and_loaded(self) -> None:
        """As strict JSON, and back to the last digit."""
        policy = self._keeps()
        try:
            saved = json.loads(json.dumps(dump(policy), allow_nan=False))
            other = self.fresh().policy
            load(other, saved)
        except (TypeError, ValueError) as error:
            fail(f"what it learned cannot be saved and loaded ({error})", MARK)
        if dump(other) != dump(policy):
            fail("what was loaded is not what was saved", MARK)

    def test_a_loaded_policy_decides_like_the_one_that_was_saved(self) -> None:
        """From the next text on."""
        if self.measures:
            skip("what it measures of this machine is not saved")
        policy, other = self.learnt(), self.fresh().policy
        try:
            load(other, json.loads(json.dumps(dump(policy))))
        except (TypeError, ValueError):
            skip("it cannot be saved")  # as another check says
        events = self.game.tape.events
        one, two = replay(policy, events, seed=2), replay(other, events, seed=2)
        if (wrong := parting(one, two)) is not None:
            fail(f"decision {wrong} is {two[wrong]}, not {one[wrong]}", f"save all that it learns: {MARK}")

    def test_merging_with_one_that_learnt_nothing_changes_nothing(self) -> None:
        """As `draftwise merge` does it."""
        policy = self._keeps()
        self._alike(
            self._merged([policy, self.fresh().policy]), policy, "merged with one that learned nothing"
        )

    def test_the_order_of_merging_does_not_matter(self) -> None:
        """Two that have learned, either way round."""
        one, other = self._keeps(), self.learnt(seed=1, half=True)
        self._alike(self._merged([one, other]), self._merged([other, one]), "merged in another order")

    def _keeps(self) -> Any:
        """A policy that has learned something to keep."""
        policy = self.learnt()
        try:
            numbers = list(_leaves(dump(policy)))
        except TypeError:
            return policy
        if all(value is None for _, value in numbers):
            skip("it keeps nothing from text to text")
        return policy

    def _merged(self, parts: list[Any]) -> Any:
        into = self.fresh().policy
        try:
            dump(into)  # completes what the first choice would build
            for part in parts:
                dump(part)
            combine(into, parts)
        except UserError as error:
            skip(f"it cannot be merged: {error}")
        except TypeError:
            skip("it cannot be saved")
        return into

    def _alike(self, one: Any, other: Any, when: str) -> None:
        __tracebackhide__ = True
        first, second = dict(_leaves(dump(one))), dict(_leaves(dump(other)))
        for name in first.keys() | second.keys():
            a: Any = first.get(name)
            b: Any = second.get(name)
            same = isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) if _number(a) and _number(b) else a == b
            if not same:
                fail(f"{name} is {a} when {when}, and was {b}", "let what is learned add up")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers of a tree by their path."""
    if isinstance(node, (dict, list)):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, node
