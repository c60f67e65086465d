"""Full information: what a text says of the arms that did not write it, compared with their own decoding."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Arm, Context, Decision, Stop
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Grade
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, GradeJob
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.policies.recorders.full_information import Grading
from draftwise.testing.distributions import Distribution, Vector
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import loop_with
from tests.effort import THOROUGH, some

V, PROMPT = 6, [0, 1, 2, 3, 1, 2]


def distribution(seed: int, sharp: float = 1.6) -> Distribution:
    """Logits that depend on the last two tokens: a text that neither repeats at once nor never."""
    table = np.random.default_rng(seed).normal(size=(V, V, V)) * sharp

    def logits(history: Sequence[int]) -> Vector:
        return np.asarray(table[history[-2], history[-1]], dtype=np.float64)

    return logits


def mixed(own: Distribution, other: Distribution, share: float) -> Distribution:
    return lambda history: share * own(history) + (1 - share) * other(history)


TARGET = distribution(1)


def drafters() -> dict[str, Drafter]:
    return {
        "good": SimDrafter(mixed(TARGET, distribution(2), 0.8)),
        "bad": SimDrafter(distribution(3)),
        "picked": SimDrafter(mixed(TARGET, distribution(4), 0.6), sampled=False),
        "ngram": NgramDrafter(max=2),
        "suffix": SuffixDrafter(min_prob=0.0),
    }


ARMS = (
    Arm("none", 0),
    Arm("good", 1),
    Arm("good", 4),
    Arm("good", 6, stop=Stop("max-confidence", 0.5)),
    Arm("good", 6, stop=Stop("cumulative", 0.2)),
    Arm("good", 6, stop=Stop("svip-difference", 0.05)),
    Arm("bad", 3),
    Arm("picked", 5),
    Arm("ngram", 2),
    Arm("ngram", 5, stop=Stop("max-confidence", 0.4)),
    Arm("suffix", 4),
)


class Ear(BanditPolicy):
    """Plays at random and keeps every vector of losses."""

    def __init__(self, arms: tuple[Arm, ...]) -> None:
        super().__init__(arms, Uniform)
        self.losses: list[tuple[float | None, ...]] = []

    def learn(self, feedback: Feedback) -> None:
        if feedback.losses:
            self.losses.append(feedback.losses)


class Picked(Ear):
    """Plays only drafters that pick: then the text is the seed's own, whoever drafts."""

    def choose(self, context: Context, rng: Random) -> Decision:
        allowed = [k for k, arm in enumerate(ARMS) if arm.drafter in ("none", "picked", "ngram", "suffix")]
        return Decision(rng.choice(allowed))


def hear(
    sampling: Sampling, *, n: int = 1, batch: int = 1, team: Any = None, **options: Any
) -> tuple[Ear, list[Round]]:
    ear = Ear(ARMS)
    loop = Loop(SimTarget(TARGET, V), team or drafters(), ear, Grading(ARMS, **options))
    rounds = list(loop.run([PROMPT] * n, sampling, batch=batch))
    assert not any(loop.faults.values()), loop.faults
    return ear, rounds


def alone(arm: Arm, sampling: Sampling, n: int = 1) -> list[Round]:
    policy = BanditPolicy((arm,), Fixed)
    loop = Loop(SimTarget(TARGET, V), drafters(), policy, Bandit(reward("accepted"), 6))
    return list(loop.run([PROMPT] * n, sampling))


@pytest.mark.parametrize("tokens", [1, 7, 60, 200])
@pytest.mark.parametrize("form", ["rb", "ratio", "product"])
def test_greedy_every_arms_own_rounds_come_out_exactly(form: str, tokens: int) -> None:
    sampling = Sampling(max_new_tokens=tokens)
    ear, _ = hear(sampling, form=form)
    assert len(ear.losses) == tokens
    own = [len(alone(arm, sampling)) for arm in ARMS]
    assert len(set(own)) >= 8 or tokens < 200, "arms differ, so that it can fail"
    for i, arm in enumerate(ARMS):
        losses = [row[i] for row in ear.losses]
        assert set(losses) <= {0.0, 1.0}
        assert begun(losses) == own[i], arm.name
    many, _ = hear(sampling, n=3, batch=3, form=form)
    assert sorted(map(str, many.losses)) == sorted(map(str, ear.losses * 3)), "in a batch as alone"


def begun(losses: Sequence[float | None]) -> float:
    """The rounds begun on a text."""
    return sum(x or 0.0 for x in losses)


def test_grading_late_says_the_same_of_every_token() -> None:
    sampling = Sampling(max_new_tokens=100)
    at_once, _ = hear(sampling, form="ratio")
    late, _ = hear(sampling, form="ratio", every=16)
    assert at_once.losses == late.losses


def test_thinned_windows_are_every_mth() -> None:
    sampling = Sampling(max_new_tokens=60)
    whole, _ = hear(sampling, windows="all")
    some, _ = hear(sampling, windows="all", thin=3)
    assert len(some.losses) >= 18 and some.losses == whole.losses[::3]


@pytest.mark.parametrize("form", some(["rb", "ratio"], 2))
def test_sampled_the_losses_have_the_mean_of_every_arms_own_rounds(form: str) -> None:
    sampling = Sampling(max_new_tokens=24, temperature=1.0)
    n = 200 if THOROUGH else 80
    ear, _ = hear(sampling, n=n, form=form)
    for i, arm in enumerate(ARMS):
        if arm.drafter in ("ngram", "suffix"):
            continue  # compared with real drafts in the greedy tests; their sampled mean is in the next
        ours = np.array([begun([row[i] for row in ear.losses[24 * k : 24 * k + 24]]) for k in range(n)])
        own = np.bincount([r.request for r in alone(arm, sampling, n)])
        spread = np.sqrt(ours.var() / n + own.var() / n) or 1e-9
        assert abs(ours.mean() - own.mean()) < 4 * spread, (arm.name, ours.mean(), own.mean())


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_sampled_lookups_too(name: str) -> None:
    """A picked draft is right or wrong for good: with the seed, its own rounds on the text are known."""
    i = next(k for k, arm in enumerate(ARMS) if arm.drafter == name)
    for seed in range(20):
        sampling = Sampling(max_new_tokens=40, temperature=0.7, seed=seed)
        ear = Picked(ARMS)
        loop = Loop(SimTarget(TARGET, V), drafters(), ear, Grading(ARMS, form="ratio"))
        list(loop.run([PROMPT], sampling))
        losses = [row[i] for row in ear.losses]
        assert begun(losses) == len(alone(ARMS[i], sampling))


@pytest.mark.parametrize("windows", ["all", "rounds"])
def test_windows_say_how_long_a_round_from_there_would_be(windows: str) -> None:
    sampling = Sampling(max_new_tokens=60)
    ear, rounds = hear(sampling, windows=windows)
    text = [*PROMPT, *(t for r in rounds for t in r.tokens)]
    starts = range(60) if windows == "all" else np.cumsum([0, *(len(r.tokens) for r in rounds)])[:-1]
    complete = [
        s for s in starts if s + 6 <= 60
    ]  # a window waits for its six tokens; the budget drops the rest
    assert len(ear.losses) == len(complete)
    good = drafters()["good"]
    i = ARMS.index(Arm("good", 4))
    for row, start in zip(ear.losses, complete, strict=True):
        request = _request(text[: len(PROMPT) + start], sampling)
        (draft,) = good.draft([Job(request, 4)])
        here = text[len(PROMPT) + start :]
        right = next(
            (k for k, pair in enumerate(zip(draft.tokens, here, strict=False)) if pair[0] != pair[1]), 4
        )
        assert row[i] == pytest.approx(1 - (1 + right) / 7)


def _request(tokens: Sequence[int], sampling: Sampling) -> Request:
    return Request(99, list(tokens), len(PROMPT), sampling, Random(0), Random(0))


def test_the_acceptance_loss_asks_only_for_the_next_token() -> None:
    sampling = Sampling(max_new_tokens=40)
    ear, rounds = hear(sampling, windows="all", loss="acceptance")
    text = [*PROMPT, *(t for r in rounds for t in r.tokens)]
    assert len(ear.losses) == 40
    i = ARMS.index(Arm("bad", 3))
    wrong = [float(np.argmax(distribution(3)(text[:at])) != text[at]) for at in range(len(PROMPT), len(text))]
    assert [row[i] for row in ear.losses] == wrong


def test_weighted_windows_are_right_on_average() -> None:
    """Scored at a round's end by importance, or later from the tokens that came: the same in the mean."""
    sampling = Sampling(max_new_tokens=120, temperature=1.0)
    means = {}
    for censored in ("weight", "wait"):
        ear = Ear((Arm("half", 4), Arm("good", 3)))
        ear.new_learner = Fixed
        team = drafters() | {"half": SimDrafter(mixed(TARGET, distribution(5), 0.5))}
        loop = Loop(SimTarget(TARGET, V), team, ear, Grading(ear.arms, windows="rounds", censored=censored))
        rounds = list(loop.run([PROMPT] * 12, sampling))
        if censored == "weight":  # no window waits
            assert len(ear.losses) == sum(r.finish_reason != "length" for r in rounds)
        losses = np.array([good for _, good in ear.losses], dtype=float)
        means[censored] = losses.mean(), losses.std() / len(losses) ** 0.5
    (weight, a), (wait, b) = means["weight"], means["wait"]
    assert abs(weight - wait) < 4 * (a**2 + b**2) ** 0.5
    assert 4 * a < 0.06  # sharp enough: without weights the mean is 0.1 above


def test_where_the_text_ends_of_itself_later_terms_are_nothing() -> None:
    sampling = Sampling(max_new_tokens=500, temperature=1.0, eos=frozenset({5}))
    ear, rounds = hear(sampling, windows="all")
    written = sum(len(r.tokens) for r in rounds)
    assert rounds[-1].finish_reason == "eos" and written < 400
    assert len(ear.losses) == written  # the last six windows were finished, not dropped


class Broken(SimDrafter):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        if len(jobs[0].request.tokens) > len(PROMPT) + 12:
            raise RuntimeError("no more")
        return super().grade(jobs)


class Unable(SimDrafter):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        raise RuntimeError("no")


class Dice(NgramDrafter):
    """Draws its tokens and cannot grade."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft.chain([0], probs=[1.0], dist=[np.eye(V)[0]]) for _ in jobs]


class Fails(NgramDrafter):
    """Has a match everywhere and raises when it is asked for a draft."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        raise RuntimeError("no draft")


@pytest.mark.parametrize(("drafter", "faults"), [(Broken(TARGET), 1), (Fails(), 1), (Dice(), 0)])
def test_the_others_go_on_without_one_that_fails_or_cannot_be_graded(drafter: Drafter, faults: int) -> None:
    team = drafters() | {"bad": drafter}
    ear = Ear(ARMS)
    loop = Loop(SimTarget(TARGET, V), team, ear, Grading(ARMS))
    rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=60)))
    assert loop.faults["bad"] == faults == sum(bool(r.fault) for r in rounds)
    i = ARMS.index(Arm("bad", 3))
    assert ear.losses[-1][i] is None and all(x is not None for k, x in enumerate(ear.losses[-1]) if k != i)
    plain = [t for r in alone(ARMS[0], Sampling(max_new_tokens=60)) for t in r.tokens]
    assert [t for r in rounds for t in r.tokens] == plain


def test_what_a_drafter_drew_is_not_held_against_the_text() -> None:
    ear = Ear((Arm("none", 0), Arm("dice", 3)))
    ear.new_learner = lambda n: Fixed(n, 1)
    zero = SimTarget(lambda history: np.eye(V)[0] * 9.0, V)
    loop = Loop(zero, {"dice": Dice()}, ear, Grading(ear.arms))
    rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=60)))
    assert any(r.accepted for r in rounds) and ear.losses and all(dice is None for _, dice in ear.losses)


@pytest.mark.parametrize("drafter", [Dice(), Unable(TARGET)])
def test_auto_goes_on_where_a_drafter_cannot_be_graded(drafter: Drafter) -> None:
    best = method("auto", ["bad"])
    zero = SimTarget(lambda history: np.eye(V)[0] * 9.0, V)
    loop = Loop(zero, {"bad": drafter}, best.policy, best.recorder)
    rounds = list(loop.run([PROMPT] * 3, Sampling(max_new_tokens=60)))
    is_unable = isinstance(drafter, Unable)
    assert (loop.faults["bad"] > 0) is is_unable is not any(r.drafted for r in rounds)
    assert [t for r in rounds for t in r.tokens] == [0] * 180


def test_hedgespec_finds_the_best_drafter_of_a_text() -> None:
    sampling = Sampling(max_new_tokens=600, temperature=1.0)
    team = drafters()
    loop = loop_with(SimTarget(TARGET, V), team, "hedgespec?length=4")
    rounds = list(loop.run([PROMPT], sampling))
    late = [r.arm.drafter for r in rounds[len(rounds) // 2 :]]
    own = {d: len(alone(Arm(d, 4), sampling)) for d in team}
    best = min(own, key=own.__getitem__)
    assert late.count(best) > 0.8 * len(late)
    assert len(rounds) < 1.15 * own[best]
