"""The team of drafters: what each call costs whom, and what a recorder is told when it asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.core import drafter_pool as module
from draftwise.core.arms import Arm, Stop
from draftwise.core.contract import wrong_draft, wrong_grades
from draftwise.core.drafter_pool import PASSES, DrafterPool
from draftwise.core.drafts import Draft, Job
from draftwise.core.outcomes import Grade
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.sampling import Sampling


class Echo:
    """Drafts the last tokens of the text that it is shown, backwards; draws them if it is told to."""

    def __init__(self, *, draws: bool = False) -> None:
        self.draws, self.told = draws, list[int]()

    def hint(self, request: Request) -> float:
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = []
        for job in jobs:
            tokens = job.request.tokens[::-1][: job.length]
            drawn: Any = {"probs": [1.0] * len(tokens), "dist": np.eye(99)[tokens]} if self.draws else {}
            made.append(Draft.chain(tokens, **drawn))
        return made

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.told += new

    def close(self, request: Request) -> None: ...


def request(tokens: Sequence[int], *, id: int = 0) -> Request:
    return Request(id, list(tokens), 0, Sampling(), Random(0), Random(0))


def team(**drafters: Echo) -> DrafterPool:
    return DrafterPool(drafters, vocab_size=99)


def test_a_call_is_charged_to_its_jobs_by_what_they_got(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[float] = iter([0.0, 0.0, 0.0, 6.0])  # around the call, and around the asking in it
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    long, short = request([1, 2, 3, 4]), request([1, 2, 3, 4], id=1)
    drafts, seconds = team(echo=Echo()).draft({"echo": [(2, Job(long, 3)), (0, Job(short, 1))]}, 3)
    assert [d.tokens for d in drafts] == [(4,), (), (4, 3, 2)]
    assert seconds == pytest.approx([2.0, 0.0, 4.0])  # 1 + 1 and 1 + 3 of six parts


def test_a_guess_is_made_where_the_text_ended_then() -> None:
    echo = Echo()
    ours, text = team(echo=echo), request([1, 2, 3, 4, 5])
    assert ours.guess("echo", text, 3, Arm("echo", 2)) == (3, 2)
    assert echo.told == [1, 2, 3]
    assert ours.guess("echo", text, 5, Arm("echo", 2)) == (5, 4)
    assert echo.told == [1, 2, 3, 4, 5] and text.tokens == [1, 2, 3, 4, 5]
    assert not text.disabled and ours.graded_seconds > 0.0


def test_what_was_drawn_is_no_guess_and_no_fault() -> None:
    ours, text = team(dice=Echo(draws=True)), request([1, 2, 3])
    assert ours.guess("dice", text, 3, Arm("dice", 2)) is None
    assert not text.disabled and ours.faults == {"dice": 0}


def test_a_guess_that_breaks_the_contract_is_a_fault() -> None:
    ours, text = team(echo=Echo()), request([1, 200])
    assert ours.guess("echo", text, 2, Arm("echo", 1)) is None
    assert text.disabled == {"echo"} and "vocabulary" in ours.pop_warning(text)


class Guessing(Echo):
    """Its guesses are sevens, so that they can be told from its drafts."""

    def guess(self, request: Request, length: int) -> Sequence[int]:
        return [7] * length


def test_a_guesser_is_asked_for_tokens_alone_where_nothing_stops_or_changes_its_draft() -> None:
    lookup = Guessing()
    ours, text = team(lookup=lookup), request([1, 2, 3])
    assert ours.guess("lookup", text, 2, Arm("lookup", 4)) == (7, 7, 7, 7)
    assert lookup.told == [1, 2] and ours.graded_seconds > 0.0
    assert ours.guess("lookup", text, 3, Arm("lookup", 2, stop=Stop("confidence", 0.5))) == (3, 2)
    assert ours.guess("lookup", text, 3, Arm("lookup", 2, width=2)) == (3, 2)
    text.sampling = Sampling(processors=(lambda ids, scores: scores,))
    assert ours.guess("lookup", text, 3, Arm("lookup", 2)) == (3, 2)
    assert not text.disabled


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ([7, 7, 7], "3 tokens where 2 were asked for"),
        ([7, 99], "outside the vocabulary"),
        ([7, 0.5], "no whole number"),
        (None, "NoneType"),
    ],
)
def test_a_guesser_that_breaks_the_contract_is_left_out(guess: Any, said: str) -> None:
    lookup = Guessing()
    lookup.guess = lambda request, length: guess  # type: ignore[method-assign]
    ours, text = team(lookup=lookup), request([1, 2, 3])
    assert ours.guess("lookup", text, 2, Arm("lookup", 2)) is None
    assert text.disabled == {"lookup"} and said in ours.pop_warning(text)


def test_a_call_may_take_as_long_as_what_it_has_to_read() -> None:
    """Twenty target passes, and one for each token that the drafter has not read."""
    ours = team(a=Echo(), b=Echo())
    one, other = request([1] * 30), request([1] * 7, id=1)
    assert ours._patience("a", [one]) == float("inf")
    ours.slow_seconds = 0.5
    ours.record_pass(2.0)
    assert ours._patience("b", [one, other]) == (PASSES + 37) * 2.0
    assert ours._patience("b", [one, other]) == PASSES * 2.0, "it has read them"
    one.tokens += [2, 3]
    assert ours._patience("b", [one, other]) == (PASSES + 2) * 2.0
    assert ours._patience("a", [one]) == (PASSES + 2) * 2.0, "each drafter by what it has read itself"
    del one.tokens[5:]
    assert ours._patience("b", [one]) == PASSES * 2.0, "what was taken back is not read"
    ours.record_pass(3.0)
    assert ours.pass_seconds == pytest.approx(2.1)
    ours.slow_seconds = 100.0
    assert ours._patience("b", [one]) == 100.0


class Compiling(Echo):
    """Compiles its passes in its first call, for nine of ten seconds."""

    setup_seconds = 0.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        self.setup_seconds = 9.0
        return super().draft(jobs)


def test_work_that_is_done_once_is_no_price_of_a_draft_nor_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[float] = iter([0.0, 0.0, 10.0, 10.0])
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    ours, text = team(echo=Compiling()), request([1, 2])
    ours.slow_seconds = 5.0
    ours.record_pass(0.1)
    (draft,), seconds = ours.draft({"echo": [(0, Job(text, 2))]}, 1)
    assert draft.tokens == (2, 1) and seconds == [pytest.approx(1.0)] and not text.disabled


ROW = np.eye(99)[[5, 6, 7]]
GOOD: dict[str, Draft] = {
    "nothing": Draft(),
    "as long as asked for": Draft.chain([5, 6, 7]),
    "whole numbers of NumPy": Draft.chain(list(np.array([0, 98, 7]))),
    "certain, and not at all": Draft.chain([5, 6], probs=[0.0, 1.0]),
    "rounded up": Draft.chain([5], probs=[1.0000005]),
    "sampled": Draft.chain([5, 6, 7], probs=[0.2, 0.5, 1.0], dist=ROW),
    "siblings": Draft((5, 6, 7), (-1, -1, 0)),
}
chain: Any = Draft.chain
tree: Any = Draft
BAD: dict[str, tuple[Any, str]] = {
    "longer": (chain([5, 6, 7, 8]), "4 tokens where 3"),
    "a fraction": (chain([5, 6.5]), "no whole number"),
    "fractions alone": (chain([6.0]), "no whole number"),
    "a text": (chain(["5"]), "no whole number"),
    "below 0": (chain([5, -1]), "outside the vocabulary of 99"),
    "behind the last": (chain([99, 5]), "outside the vocabulary of 99"),
    "its own parent": (tree((5, 6), (-1, 1)), "not earlier nodes"),
    "above the root": (tree((5, 6), (-1, -2)), "not earlier nodes"),
    "an orphan": (tree((5, 6), (-1,)), "not earlier nodes"),
    "less than impossible": (chain([5, 6], probs=[0.5, -0.5]), "outside [0, 1]"),
    "more than certain": (chain([5, 6], probs=[1.1, 0.5]), "outside [0, 1]"),
    "nan": (chain([5], probs=[float("nan")]), "outside [0, 1]"),
    "too few chances": (chain([5, 6], probs=[0.5], dist=ROW[:2]), "1 probabilities for 2"),
    "too many chances": (chain([5], probs=[0.5, 0.5], dist=ROW[:1]), "2 probabilities for 1"),
    "sampled siblings": (tree((5, 6), (-1, -1), (0.5, 0.5), ROW[:2]), "must be picked"),
    "too many distributions": (chain([5], probs=[0.5, 0.5], dist=ROW[:2]), "2 distributions for 1"),
    "an empty distribution": (chain([5], dist=[]), "0 distributions for 1"),
    "nothing at all": (None, "malformed"),
    "no row of numbers": (tree({5, 6}, (-1, 0)), "malformed"),
    "no probability": (tree((5,), (-1,), (None,), ROW[:1]), "malformed"),
    "no probabilities": (tree((5,), (-1,), None, ROW[:1]), "malformed"),
    "no distributions": (chain([5], probs=[0.5], dist=7), "malformed"),
    "parents of fractions": (tree((5, 6), (-1, 0.0)), "not earlier nodes"),
    "not a number": (chain([float("nan")]), "no whole number"),
    "a narrow distribution": (chain([5], probs=[0.5], dist=ROW[:1, :98]), "over 98 tokens, not 99"),
}


@pytest.mark.parametrize("draft", GOOD.values(), ids=GOOD)
def test_what_a_drafter_may_say(draft: Draft) -> None:
    assert wrong_draft(draft, 3, 99) == ""


@pytest.mark.parametrize(("draft", "said"), BAD.values(), ids=BAD)
def test_what_a_drafter_may_not_say(draft: Draft, said: str) -> None:
    assert said in wrong_draft(draft, 3, 99)


@pytest.mark.parametrize("draft", [tree(None, None), tree([], []), tree((), (), (0.5,), [])], ids=str)
def test_a_draft_without_tokens_is_empty_whatever_else_it_has(draft: Draft) -> None:
    echo, text = Echo(), request([1])
    echo.draft = lambda jobs: [draft]  # type: ignore[method-assign]
    pool = team(echo=echo)
    assert pool.ask("echo", [Job(text, 2)]) == [Draft()] and not text.disabled


@pytest.mark.parametrize(
    ("accept", "said"),
    [
        (0.0, ""),
        (0.4, ""),
        (1.0, ""),
        (1.0000005, ""),
        (-0.1, "a grade"),
        (1.1, "a grade"),
        (np.nan, "a grade"),
    ],
)
def test_grades_are_chances(accept: float, said: str) -> None:
    jobs = [GradeJob(request([1, 2, 3]), 2, [0.5])]
    assert wrong_grades([[Grade(accept)]], jobs).startswith(said)
    assert bool(wrong_grades([[Grade(accept)]], jobs)) == bool(said)
    assert "grades for [2] tokens where [1]" in wrong_grades([[Grade(0.5)] * 2], jobs)


class Late(Echo):
    """Is ready for the texts of even number alone."""

    def ready(self, request: Request) -> bool:
        return request.id % 2 == 0


def test_who_is_not_ready_is_waited_for() -> None:
    both = team(late=Late(), echo=Echo())
    assert [both.find_not_ready(request([1], id=id)) for id in (0, 1)] == [frozenset(), frozenset({"late"})]
    assert team(echo=Echo()).find_not_ready(request([1])) == frozenset()


@pytest.mark.parametrize(
    ("drafts", "reads", "wide"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_wide_draft_needs_a_drafter_and_a_target_for_it(drafts: bool, reads: bool, wide: bool) -> None:
    drafter: Any = Echo()
    drafter.drafts_trees = drafter.drafts_siblings = lambda: drafts
    pool = DrafterPool({"one": drafter}, vocab_size=99, can_read_trees=lambda: reads)
    assert pool.drafts_trees("one") is pool.drafts_siblings("one") is wide
    assert not DrafterPool({"one": drafter}, vocab_size=99).drafts_trees("one"), (
        "nothing is known of the target"
    )


def test_a_probe_that_fails_is_no_fault_of_a_policy() -> None:
    def fail() -> bool:
        raise RuntimeError("out of memory")

    drafter: Any = Echo()
    drafter.drafts_siblings = lambda: True
    pool = DrafterPool({"one": drafter}, vocab_size=99, can_read_trees=fail)
    assert not pool.drafts_siblings("one")
