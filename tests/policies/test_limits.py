"""Policies learn where all drafts of a text are limited and where drafters are late: all arms are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from draftwise.core.accept import block
from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome, Window
from draftwise.core.request import Request
from draftwise.core.roles import Scores
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.catalogue.auto import team
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.recorders.cursors import Path
from draftwise.policies.recorders.full_information import Grading
from draftwise.testing.distributions import Distribution, markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

SIZE = 8
CYCLE = np.roll(np.eye(SIZE), 1, axis=1)  # each token is followed by the next one
ENDLESS = 1 << 30


def wrong() -> Distribution:
    return markov(CYCLE[:, ::-1])


class Late(SimDrafter):
    """Is ready from its `first` round of a text on."""

    first = 0

    def ready(self, request: Request) -> bool:
        return request.rounds >= self.first


class Narrow(SimTarget):
    """Verifies drafts of four tokens at most, as one whose memory cannot be taken back further."""

    def reach(self, request: Request) -> int:
        return 4


def play(
    name: str,
    *,
    target: SimTarget | None = None,
    late: int = 0,
    longest: int = ENDLESS,
    tokens: int = 200,
    texts: int = 1,
) -> tuple[Counter[str], Loop]:
    """How often each drafter was played; the second is right throughout, the first never."""
    good = Late(markov(CYCLE), sampled=False)
    good.first = late
    drafters = {"bad": SimDrafter(wrong(), sampled=False), "good": good}
    made = method(name, [*drafters])
    loop = Loop(target or SimTarget(markov(CYCLE), SIZE), drafters, made.policy, made.recorder)
    played: Counter[str] = Counter()
    for _ in range(texts):
        loop.add([0, 1, 2], Sampling(max_new_tokens=tokens), max_draft=longest)
        while loop.open:
            for round in loop.step():
                assert not round.fault
                played[round.arm.drafter] += 1
    return played, loop


LEARN = ("metasd-ucb", "metasd-sh", "metasd-petc", "metasd-ducb", "metasd-swucb", "ucb1", "ucbspec", "linucb")


@pytest.mark.parametrize("name", LEARN)
@pytest.mark.parametrize("limit", ["longest", "reach", "tokens"])
def test_the_better_drafter_is_found_where_all_drafts_are_limited(name: str, limit: str) -> None:
    if limit == "tokens":  # an answer has no room for a whole draft
        shared = f"{name}?per_query=false" if "metasd" in name or name == "ucbspec" else name
        played, _ = play(shared, tokens=4, texts=200)
    elif limit == "longest":
        played, _ = play(name, longest=2)
    else:
        played, _ = play(name, target=Narrow(markov(CYCLE), SIZE))
    assert played["good"] > 2 * played["bad"]


@pytest.mark.parametrize("name", ["tapout-seq-ucb1?drafter=good", "tapout-seq-ts?drafter=good"])
def test_every_stop_rule_is_tried_where_all_drafts_are_limited(name: str) -> None:
    _, loop = play(name, target=Narrow(markov(CYCLE), SIZE))
    assert isinstance(loop.policy, BanditPolicy) and loop.policy.shared is not None
    assert all(loop.policy.shared.estimates())


def test_a_limited_draft_that_is_right_throughout_moves_no_threshold() -> None:
    """All of the longest draft that could be was accepted: AdaEDL's lambda stays."""
    made, good = method("adaedl?drafter=good", ["good"]), SimDrafter(markov(CYCLE), sampled=False)
    loop = Loop(Narrow(markov(CYCLE), SIZE), {"good": good}, made.policy, made.recorder)
    loop.add([0, 1, 2], Sampling(max_new_tokens=100))
    thresholds = set()
    while loop.open:
        rounds = loop.step()
        thresholds |= {round.decision.stops[0].threshold for round in rounds if round.drafted == 4}
    assert thresholds == {0.6}


class Always(AutoPolicy):
    """Plays the lookup in every round, and keeps what the recorder says of its drafts."""

    windows: list[Window]

    def choose(self, context: Context, rng: Random) -> Decision:
        self._text(context)
        return Decision(1)

    def learn(self, feedback: Feedback) -> None:
        self.windows += feedback.windows


@pytest.mark.parametrize("longest", [ENDLESS, 2])
def test_a_limited_draft_of_a_lookup_had_no_less_to_offer(longest: int) -> None:
    """For `auto` a lookup that runs out of tokens was wrong there; one whose draft was limited was not."""
    policy = Always(*team(["ngram"], [8]))
    policy.windows = []
    loop = Loop(SimTarget(markov(CYCLE), SIZE), {"ngram": NgramDrafter()}, policy, AutoRecorder(policy))
    loop.add([*range(SIZE)] * 3, Sampling(max_new_tokens=60), max_draft=longest)
    while loop.open:
        loop.step()
    depths = {len(window.accepts) for window in policy.windows}
    assert all(set(window.accepts) == {1.0} for window in policy.windows)
    assert depths == {2} if longest == 2 else 8 in depths


@pytest.mark.parametrize("name", ["metasd-sh", "metasd-petc", "metasd-sh?budget=40"])
@pytest.mark.parametrize("late", [1, 40, ENDLESS])
def test_a_drafter_that_is_ready_late_is_not_eliminated_before_it_has_played(name: str, late: int) -> None:
    played, loop = play(name, late=late, tokens=400)
    assert not any(loop.faults.values())
    assert played["bad"] == 400 if late == ENDLESS else played["good"] > played["bad"] - late - 10


class Ear(BanditPolicy):
    """Plays the first arm and keeps all losses."""

    def __init__(self, arms: tuple[Arm, ...]) -> None:
        super().__init__(arms, lambda n: Fixed(n))
        self.losses: list[tuple[float | None, ...]] = []

    def learn(self, feedback: Feedback) -> None:
        if feedback.losses:
            self.losses.append(feedback.losses)


@pytest.mark.parametrize("longest", [ENDLESS, 2])
def test_an_arm_that_plays_limited_drafts_is_graded_like_one_that_does_not_play(longest: int) -> None:
    ear = Ear((Arm("a", 5), Arm("b", 5)))
    team = {"a": NgramDrafter(max=2), "b": NgramDrafter(max=2)}
    loop = Loop(SimTarget(markov(CYCLE), SIZE), team, ear, Grading(ear.arms))
    loop.add([*range(SIZE)] * 2, Sampling(max_new_tokens=120), max_draft=longest)
    while loop.open:
        loop.step()
    assert ear.losses and all(a == b for a, b in ear.losses)


def test_siblings_with_one_token_count_once() -> None:
    twins = Draft((3, 3, 4), (-1, -1, -1))
    assert Path(twins).step(3, lambda token: {3: 0.5, 4: 0.2}[token]).overlap == pytest.approx(0.7)
    assert block(twins, (0,), [0.5, 0.5, 0.2])[0] == pytest.approx(0.7)


@pytest.mark.parametrize("picked", [False, True])
def test_a_request_for_picked_drafts_is_graded_by_them(picked: bool) -> None:
    """Drafter and target are the same: drawn drafts are always right, picked ones where the text follows."""
    table = np.full((SIZE, SIZE), 0.5 / SIZE) + 0.5 * CYCLE
    ear, own = Ear((Arm("sim", 5),)), 0
    for seed in range(40):
        team = {"sim": SimDrafter(markov(table))}
        loop = Loop(SimTarget(markov(table), SIZE), team, ear, Grading(ear.arms))
        loop.add([0, 1], Sampling(max_new_tokens=30, temperature=1.0, seed=seed), deterministic=picked)
        while loop.open:
            own += len(loop.step())
    graded = sum(losses[0] or 0.0 for losses in ear.losses)
    assert graded == pytest.approx(own, rel=0.1) and (own > 300) == picked


@pytest.mark.parametrize(("longest", "tokens"), [(0, 30), (ENDLESS, 1)])
def test_an_arm_that_cannot_draft_at_all_is_not_counted(longest: int, tokens: int) -> None:
    _, loop = play("ucb1", longest=longest, tokens=tokens, texts=3)
    assert isinstance(loop.policy, BanditPolicy) and loop.policy.shared is not None
    assert not any(loop.policy.shared.estimates()) and not any(getattr(loop.policy.shared, "pulls"))  # noqa: B009


class Border(SimTarget):
    """Verifies four tokens, and one token at every third place, as where rotary frequencies change."""

    def reach(self, request: Request) -> int:
        return 1 if len(request.tokens) % 3 == 0 else 4


class Rereads(SimTarget):
    """Says that every pass with a draft read three tokens again."""

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        self.info.latest.reread = 3 * sum(bool(draft.tokens) for _, draft in batch)
        return super().verify(batch)


def heard(name: str, target: type[SimTarget], *, longest: int = ENDLESS) -> tuple[list[Outcome], list[int]]:
    """What a policy hears of a drafter that is right throughout, and the tokens that it drafted."""
    seen, drafted = list[Outcome](), list[int]()

    class Listen(BanditPolicy):
        def learn(self, feedback: Feedback) -> None:
            seen.extend(feedback.outcomes)

    made, good = method(name, ["good"]), SimDrafter(markov(CYCLE), sampled=False)
    policy = Listen(made.policy.arms, Uniform)
    loop = Loop(target(markov(CYCLE), SIZE), {"good": good}, policy, made.recorder)
    loop.add([0, 1], Sampling(max_new_tokens=60), max_draft=longest)
    while loop.open:
        drafted += [round.drafted for round in loop.step()]
    return seen, drafted


def test_an_outcome_says_how_its_draft_was_limited_and_what_its_pass_read_again() -> None:
    seen, drafted = heard("static-4", Border)
    assert 1 in drafted and {one.drafted for one in seen} == {4}, "one cut in one pass alone is not counted"
    for longest, asked in ((ENDLESS, 4), (2, 2)):
        seen, _ = heard("static-5", Narrow, longest=longest)
        assert {(one.asked, one.drafted) for one in seen} == {(asked, asked)}
    seen, _ = heard("ucb1?arms=lengths&lengths=0,2", Rereads)
    assert {(one.drafted, one.cost.pass_tokens, one.cost.again) for one in seen if one.cost} == {
        (0, 1, 0),
        (2, 3, 3),
    }
