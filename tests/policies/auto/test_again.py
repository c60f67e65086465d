"""Targets whose states cannot rewind: what a rejection leaves to be read again is the draft's price."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, RoundCost, Window
from draftwise.core.roles import RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.catalogue.auto import team
from draftwise.testing.target import SimTarget
from tests.core.turns import Anyone, Stateless

PLAIN, AGAIN = 0.030, 0.015  # seconds of a plain pass, and of what a rejection leaves to be read again


def policy() -> AutoPolicy:
    return AutoPolicy(*team(["ngram"], LENGTHS))


def passed(auto: AutoPolicy, tokens: int, seconds: float, *, again: int = 0, new: int = 1) -> None:
    """A round of one request, which wrote `new` tokens."""
    matched = [key for key, text in auto.texts.items() if text.matched]
    cost = RoundCost(0.0, seconds, tokens, again=again)
    auto.spent(cost, {0: (seconds, new)}, 0.0, matched=matched, is_trial=auto.trial)


def chosen(auto: AutoPolicy) -> Arm:
    return auto.arms[auto.choose(Context(hints={"ngram": 3.0}), Random(0)).arm]


def test_a_plain_pass_that_reads_again_is_the_price_of_the_draft_before_it() -> None:
    """Drafts and plain passes in turn, all rejected: drafting two tokens costs 10 ms more, and 15 later."""
    auto = policy()
    for _ in range(8):
        passed(auto, 1, PLAIN)
    for _ in range(60):
        passed(auto, 3, PLAIN + 0.010)
        passed(auto, 1, PLAIN + AGAIN, again=3)
        passed(auto, 1, PLAIN)
    passes = auto.passes(1)
    assert passes(1) == pytest.approx(PLAIN, rel=0.02)
    assert passes(3) == pytest.approx(PLAIN + 0.010 + AGAIN, rel=0.05)


@pytest.mark.parametrize("again", [3, 0])
def test_the_guard_sees_it(again: int) -> None:
    """One draft in two has a token right: 10 ms more for half a token of 30 pay, 25 ms do not."""
    auto = policy()
    for _ in range(8):
        passed(auto, 1, PLAIN)
    pauses = []
    for at in range(200):
        passed(auto, 3, PLAIN + 0.010, new=1 + at % 2)
        passed(auto, 1, PLAIN + (AGAIN if again else 0.0), again=again)
        pauses.append(auto.guards[0].pause)
    assert any(pauses) is (again > 0)


def test_a_clean_plain_pass_is_asked_for_first() -> None:
    """Where rejections cost later passes, no draft is made before plain decoding has a price."""
    auto = policy()
    passed(auto, 2, PLAIN)
    assert chosen(auto).length, "nothing was read again yet"
    passed(auto, 2, PLAIN, again=1)
    assert not chosen(auto).length
    passed(auto, 1, PLAIN + AGAIN, again=2)
    assert not chosen(auto).length
    passed(auto, 1, PLAIN)
    assert chosen(auto).length


def test_a_trial_must_pay_for_the_longer_pass() -> None:
    """A drafter of unknown cost that erred every time is not tried where a token in a pass costs a third."""
    auto = policy()
    for tokens, seconds in ((1, 0.010), (2, 0.0133)) * 20:
        passed(auto, tokens, seconds)
    assert chosen(auto) == Arm("ngram", 1), "nothing is known of it: it may be right every second time"
    for _ in range(6):
        auto.learn(Feedback(0, Decision(0), windows=(Window(0, auto.texts[0].contexts[0], (0.0,)),)))
    assert chosen(auto) == Arm("none", 0)


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
    auto = Watcher((Arm("same", 2),))
    auto.spent = []
    loop = Loop(Rereads(lambda text: np.array([0.7, 0.3]), 2), {"same": Same()}, auto, auto)
    for _ in loop.run([[1]], Sampling(max_new_tokens=9)):
        pass
    costs = [(spent.pass_tokens, spent.again) for spent in auto.spent if spent]
    assert costs and all(again == (3 if tokens > 1 else 0) for tokens, again in costs)
    assert {again for _, again in costs} == {0, 3}
