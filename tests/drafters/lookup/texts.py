"""Requests and small-alphabet texts for the drafters that need no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from draftwise.core.arms import Stop
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling


def make_request(at: int = 0) -> Request:
    return Request(at, [], 0, Sampling(), Random(0), Random(0))


def commit(drafter: Drafter, request: Request, new: Sequence[int]) -> None:
    """As the loop does it: the drafter sees the tokens before the request holds them."""
    drafter.observe(request, new)
    request.tokens += new


def draft(drafter: Drafter, request: Request, length: int = 8, *stops: Stop) -> Draft:
    (made,) = drafter.draft([Job(request, length, stops or (Stop(),))])
    return made


def chunks(rng: Random, steps: int, alphabet: int) -> Iterator[list[int]]:
    """Random commits of 1 to 6 tokens that now and then copy an earlier stretch or fall into a loop."""
    text: list[int] = []
    for _ in range(steps):
        size, kind = rng.randint(1, 6), rng.random()
        if len(text) < 8 or kind < 0.5:
            new = [rng.randrange(alphabet) for _ in range(size)]
        elif kind < 0.8:
            at = rng.randrange(len(text) - 6)
            new = text[at : at + size]
        else:
            period = rng.randint(1, 5)
            new = [text[-period:][i % period] for i in range(size)]
        text += new
        yield new


def starts_of(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Every position where `part` occurs in `text`, by looking."""
    n = len(part)
    return [i for i in range(len(text) - n + 1) if list(text[i : i + n]) == list(part)]
