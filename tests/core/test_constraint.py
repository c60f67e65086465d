"""What the processors of a request allow after its text and the tokens ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

from draftwise.core.constraint import Constraint, constraint_of
from draftwise.core.contract import longest_allowed
from draftwise.core.drafts import Draft, Job, after
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling

TEXT, START = [9, 9, 0, 1], 2  # the answer counts on: 0, 1, and then 2, 3, ... or 7 at even places


class Counting:
    """Allows the number of the next place; at even places 7 too."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores

    def free(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> list[int]:
        answer = [*text[start:], *ahead]
        assert all(token in (i, 7) for i, token in enumerate(answer)), answer  # the places between are there
        return [len(answer)] if len(answer) % 2 else [len(answer), 7]

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        free = self.free(text, start, ahead)
        return [score if token in free else -inf for token, score in enumerate(scores)]

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        free = self.free(text, start, ahead)
        return free[0] if len(free) == 1 else -1

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        return token in self.free(text, start, ahead)


def constraint() -> Constraint:
    return Constraint([Counting()], TEXT, START)


def test_a_mask_leaves_what_is_allowed_after_text_and_path() -> None:
    row = [0.5] * 8
    assert [at for at, score in enumerate(constraint().mask([], row)) if score > -inf] == [2, 7]
    assert [at for at, score in enumerate(constraint().mask([2], row)) if score > -inf] == [3]
    assert row == [0.5] * 8


def test_what_was_written_ahead_stays_ahead() -> None:
    """Of guides made one from the other too: each draft of a chain is asked for after those before it."""
    far = constraint().after([2]).after([3, 4])
    assert (far.ahead, far.only([]), far.only([5])) == ((2, 3, 4), 5, -1)
    assert far.allows([5], 7) and not far.allows([5], 5)
    request = Request(
        0, TEXT, START, Sampling(max_new_tokens=9, processors=(Counting(),)), Random(0), Random(0)
    )
    job = after(after(Job(request, 4, constraint=constraint_of(request)), [2]), [3, 4])
    assert job.constraint is not None and job.constraint.ahead == (2, 3, 4)


def test_a_rejected_draft_leaves_nothing_behind() -> None:
    one = constraint()
    assert one.after([2, 3]).only([7]) == 5 and one.forced([7], 3) == [3]
    assert one.forced([], 3) == [] and one.after([7]).forced([], 3) == [3] and one.ahead == ()


def test_a_draft_ends_before_what_is_not_allowed_and_goes_on_with_what_must_follow() -> None:
    assert longest_allowed(Draft.chain((2, 4, 4)), constraint(), 4).tokens == (2, 3)
    assert longest_allowed(Draft.chain((2, 3, 7)), constraint(), 4).tokens == (2, 3, 7, 5)
    assert longest_allowed(Draft.chain((2, 3, 7)), constraint(), 3).tokens == (2, 3, 7)


def test_a_tree_loses_the_nodes_below_what_is_not_allowed() -> None:
    tree = Draft((2, 4, 7, 3, 3, 5), (-1, -1, -1, 0, 2, 1))
    left = longest_allowed(tree, constraint(), 9)
    assert (left.tokens, left.parents) == ((2, 7, 3, 3), (-1, -1, 0, 1))
