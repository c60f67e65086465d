"""Thinned grading is unbiased: no round is begun that an arm's own decoding would not begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from draftwise.core.arms import Arm, Decision
from draftwise.core.drafts import Draft
from draftwise.core.outcomes import Grade, Outcome
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob, RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.policies.recorders import full_information as grading
from draftwise.policies.recorders.full_information import Grading
from studies.theory.estimators import (
    Chain,
    Distribution,
    History,
    Picked,
    count,
    ends,
    random_distribution,
    texts,
)

SHORT, TOKENS = 2, 8  # stretches of two tokens, of which every second is graded
LIVE = [at for at in range(TOKENS) if at // SHORT % 2 == 0]


class World:
    """Target, graders and scores in one: a text is told token by token."""

    graded_seconds = 0.0

    def __init__(self, p: Distribution, drafter: Chain | Picked) -> None:
        self.p, self.drafter = p, drafter
        self.history: History = ()

    def grades_itself(self, name: str) -> bool:
        return isinstance(self.drafter, Chain)

    def width(self, name: str) -> int:
        return 1

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        text = [tuple(job.request.tokens) for job in jobs]
        assert isinstance(self.drafter, Chain)
        return [
            self.drafter.grades(self.p, t[: j.start], t[j.start :]) for t, j in zip(text, jobs, strict=True)
        ]

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft:
        assert isinstance(self.drafter, Picked)
        return Draft.chain(self.drafter.pick(tuple(request.tokens[:at]))[: arm.length])

    def chance(self, node: int, token: int) -> float:
        return float(self.p(self.history)[token])

    def distributions(self, nodes: Sequence[int]) -> None: ...


def losses(
    p: Distribution, drafter: Chain | Picked, text: History, *, thin: int = 2, form: str = "rb"
) -> list[float]:
    """What the grading says of an arm on one text."""
    arms = (Arm("one", drafter.length),)
    world, graded = World(p, drafter), Grading(arms, form=form, thin=thin)
    request = Request(0, [], 0, Sampling(max_new_tokens=99), Random(0), Random(0))
    found: list[float] = []
    for token in text:
        world.history = tuple(request.tokens)
        request.tokens.append(token)
        seen = RoundRecord(
            request, Decision(0), Outcome(-1, 0, 0), Draft(), (token,), (-1,), cast(Any, world)
        )
        # nobody played the arm: it has to be asked everywhere
        seen.request.not_ready = frozenset({"one"})
        for feedback in graded.add([seen], cast(Any, world)):
            found += [x for x in feedback.losses if x is not None]
    return found


def expected(p: Distribution, drafter: Chain | Picked, form: str) -> np.ndarray[Any, Any]:
    """The mean loss at each graded token, over every text there is."""
    found = np.zeros(len(LIVE))
    for text, prob in texts(p, TOKENS):
        found += prob * np.array(losses(p, drafter, text, form=form))
    return found


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(grading, "STRETCH", SHORT)
    yield


def steady(seed: int, size: int = 2) -> Distribution:
    """A distribution that does not depend on the text."""
    row = random_distribution(size, seed)(())
    return lambda history: row


@pytest.mark.parametrize("form", ["rb", "ratio"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_models_graded_stretches_count_the_rounds_of_as_long_a_text(
    seed: int, length: int, form: str
) -> None:
    """In a world without memory the stretches side by side are a text of the distribution, so the mean is
    exact."""
    p, drafter = steady(seed), Chain(steady(seed + 10), length)
    assert expected(p, drafter, form).sum() == pytest.approx(count(p, drafter, len(LIVE)), abs=1e-12)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lookups_losses_are_its_own_rounds_where_it_is_scored(seed: int) -> None:
    """Whatever the distribution: it is followed through what is left out, so each token's loss has the true
    mean."""
    p = random_distribution(2, seed)
    drafter = Picked(lambda history: (1, *history[::-1], 0, 1), 3)
    true = np.zeros(TOKENS + 1)
    true[0] = 1.0
    for (_, at), prob in ends(p, drafter, TOKENS).items():
        if at <= TOKENS:
            true[at] += prob
    assert expected(p, drafter, "ratio") == pytest.approx(true[LIVE], abs=1e-12)
