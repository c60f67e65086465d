"""Targets whose states cannot rewind: what a rejection leaves to be read again is the draft's price."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome, RoundCost, Window
from draftwise.core.roles import RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.testing.target import SimTarget
from tests.core.turns import Anyone, Stateless

from .test_auto import policy

PLAIN, AGAIN = 0.030, 0.015  # seconds of a plain pass, and of what a rejection leaves to be read again


def passed(made: AutoPolicy, tokens: int, seconds: float, again: int = 0) -> None:
    spent = RoundCost(0.0, seconds, tokens, again=again)
    made.learn(Feedback(0, Decision(0), (Outcome(0, 0, tokens - 1, seconds, cost=spent),)))


def test_a_plain_pass_that_reads_again_is_the_price_of_the_draft_before_it() -> None:
    """Drafts and plain passes in turn, all rejected: drafting two tokens costs 10 ms more, and 15 later."""
    made = policy("a")
    for _ in range(8):
        passed(made, 1, PLAIN)
    for _ in range(60):
        passed(made, 3, PLAIN + 0.010)
        passed(made, 1, PLAIN + AGAIN, again=3)
        passed(made, 1, PLAIN)
    passes = made.passes[0]
    assert passes(1) == pytest.approx(PLAIN, rel=0.02)
    assert passes(3) == pytest.approx(PLAIN + 0.010 + AGAIN, rel=0.05)
    assert made.load.factor == pytest.approx(1.0, abs=0.05), "nor does the machine seem busy"


def test_the_guard_sees_it() -> None:
    """One token in two is accepted, 25 ms for half a token of 30: no."""
    made = policy("a")
    for _ in range(8):
        passed(made, 1, PLAIN)
    is_enabled = []
    for at in range(200):
        spent = RoundCost(0.0, PLAIN + 0.010, 3)
        made.learn(Feedback(0, Decision(0), (Outcome(0, at % 2, 2, PLAIN + 0.010, cost=spent),)))
        passed(made, 1, PLAIN + AGAIN, again=3)
        is_enabled.append(made.guard.is_enabled())
    assert not all(is_enabled)


def test_a_clean_plain_pass_is_asked_for_first() -> None:
    """Where rejections cost later passes, no draft is made before plain decoding has a price."""
    made = policy("a")
    context = Context(hints={"a": 3.0})

    def drafts() -> bool:
        return made.arms[made.choose(context, Random(0)).arm].length > 0

    passed(made, 2, PLAIN)
    assert drafts(), "nothing was read again yet"
    passed(made, 2, PLAIN, again=1)
    assert not drafts()
    passed(made, 1, PLAIN + AGAIN, again=2)
    assert not drafts()
    passed(made, 1, PLAIN)
    assert drafts()


def test_a_trial_must_pay_for_the_longer_pass() -> None:
    """A drafter of unknown cost that erred every time is not tried where a token in a pass costs a third."""
    made = policy("a")
    for tokens, seconds in ((1, 0.010), (2, 0.0133)) * 20:
        passed(made, tokens, seconds)
    context = Context(hints={"a": 3.0})

    def chosen() -> Arm:
        return made.arms[made.choose(context, Random(0)).arm]

    assert chosen() == Arm("a", 1), "nothing is known of it: it may be right every second time"
    for _ in range(6):
        made.learn(Feedback(0, Decision(0), (), (), (Window(0, made.contexts(0)[0], (0.0,)),)))
    assert chosen() == Arm("none", 0)


class Rereads(SimTarget):
    """Says that every pass with a draft read three tokens again."""

    def verify(self, batch):  # type: ignore[no-untyped-def]
        self.info.latest.reread = 3 * sum(bool(draft.tokens) for _, draft in batch)
        return super().verify(batch)


class Same(Stateless):
    def one(self, job: Job) -> Draft:
        return Draft.chain([0] * min(job.length, job.request.remaining % 2))


class Watcher(Anyone):
    """Keeps what each round spent."""

    spent: list[RoundCost]

    def add(self, *seen: object) -> tuple[()]:
        batch = seen[0]
        assert isinstance(batch, list)
        spent = [one.outcome.cost for one in batch if isinstance(one, RoundRecord)]
        self.spent += [one for one in spent if one]
        return ()


def test_the_loop_tells_how_many_tokens_a_pass_read_again() -> None:
    made = Watcher((Arm("same", 2),))
    made.spent = []
    loop = Loop(Rereads(lambda text: np.array([0.7, 0.3]), 2), {"same": Same()}, made, made)
    for _ in loop.run([[1]], Sampling(max_new_tokens=9)):
        pass
    found = [(spent.pass_tokens, spent.again) for spent in made.spent if spent]
    assert found and all(again == (3 if tokens > 1 else 0) for tokens, again in found)
    assert {again for _, again in found} == {0, 3}
