"""Learners: what holds for every one; and batches, sleepers and extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from math import e, exp, isnan, log
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.learners.halving import ExploreThenCommit, SequentialHalving
from draftwise.policies.learners.hedge import Hedge, NormalHedge, solve_scale
from draftwise.policies.learners.learner import Chooser, draw
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB, UCBSpec, UCBTuned
from draftwise.state.learned import fresh

ALL: list[Callable[[], Chooser]] = [
    lambda: Fixed(4, arm=2),
    lambda: Uniform(4),
    lambda: UCB1(4, strength=0.3),
    lambda: UCBTuned(4),
    lambda: UCBSpec(4, strength=0.5),
    lambda: DiscountedUCB(4, discount=0.9),
    lambda: SlidingWindowUCB(4, window=20),
    lambda: GaussianThompson(4, noise=0.1),
    lambda: EXP3(4, gamma=0.3),
    lambda: EXP3Spec(4),
    lambda: SequentialHalving(4, budget=60),
    lambda: ExploreThenCommit(4, horizon=500),
    lambda: Hedge(4, memory=0.99),
    lambda: NormalHedge(4, memory=0.99),
]
every = pytest.mark.parametrize("make", ALL, ids=[type(make()).__name__ for make in ALL])
EXPERTS: list[Any] = [Hedge, NormalHedge]
CHANCES = (0.2, 0.7, 0.4, 0.5)
RNG = Random(0)


def rounds(learner: Any, rng: Random, n: int) -> list[int]:
    """Play and teach n rounds, and tell what was played."""
    played = []
    for _ in range(n):
        arm, chance = learner.choose(range(4), rng)
        won = [float(rng.random() < p) for p in CHANCES]
        if hasattr(learner, "learn_all"):
            learner.learn_all([1.0 - x for x in won])
        else:
            learner.update(arm, won[arm], chance)
        played.append(arm)
    return played


def play(learner: Any, means: Sequence[float], n: int, allowed: Sequence[int] = ()) -> list[int]:
    """Play n rounds in which each arm earns its mean."""
    order = []
    for _ in range(n):
        arm, chance = learner.choose(allowed or range(len(means)), RNG)
        learner.update(arm, means[arm], chance)
        order.append(arm)
    return order


def batch(learner: Any, n: int) -> list[int]:
    """Choose n times before any answer."""
    return [learner.choose(range(learner.arms), RNG)[0] for _ in range(n)]


# -- every learner ---------------------------------------------------------------------------------------


@every
def test_only_allowed_arms_are_played(make: Callable[[], Any]) -> None:
    rng = Random(1)
    for learner, sets in ((make(), ([0, 1, 2, 3], [1, 3], [0], [0, 2, 3], [3])), (type(make())(1), ([0],))):
        for allowed in sets * 20:
            arm, chance = learner.choose(allowed, rng)
            assert arm in allowed
            assert not chance <= 0.0 and not chance > 1.0
            if hasattr(learner, "learn_all"):
                learner.learn_all([0.1 * i for i in range(learner.arms)])
            else:
                learner.update(arm, rng.random(), chance)


@every
def test_fresh_keeps_the_options_and_nothing_else(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 30)
    assert fresh(learner) == make()


@every
def test_abort_undoes_choose(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 40)
    learner.abort(learner.choose(range(4), Random(3))[0])  # eliminations that were due happen here
    before = asdict(learner)
    for arm in [learner.choose(range(4), Random(seed))[0] for seed in range(5)]:
        learner.abort(arm)
    assert asdict(learner) == before


@every
def test_feedback_from_before_a_restart_is_welcome(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 10)
    flying = [learner.choose(range(4), Random(seed)) for seed in range(3)]
    back = type(learner)(**{name: value for name, value in asdict(learner).items() if name != "flight"})
    for arm, chance in flying[:2]:
        if hasattr(back, "update"):
            back.update(arm, 0.5, chance)
    back.abort(flying[2][0])
    assert asdict(back).get("flight", 0) in (0, [0, 0, 0, 0])
    assert len(back.estimates()) == 4


@pytest.mark.parametrize("make", [make for make in ALL if type(make()) not in (Fixed, Uniform)])
def test_the_best_arm_is_played_most(make: Callable[[], Any]) -> None:
    played = [arm for seed in range(10) for arm in rounds(make(), Random(seed), 500)]
    assert max(range(4), key=played.count) == 1


@pytest.mark.parametrize("kind", [UCB1, UCBTuned, UCBSpec, DiscountedUCB, SlidingWindowUCB, GaussianThompson])
def test_a_batch_is_spread_before_any_answer(kind: Any) -> None:
    counts = [batch(kind(3), 9).count(arm) for arm in range(3)]
    assert min(counts) > 0 if kind is GaussianThompson else counts == [3, 3, 3]


def test_learners_that_learn_nothing() -> None:
    assert Fixed(3, arm=1).choose([0, 2], Random(0)) == (0, 1.0)
    assert Fixed(3, arm=1).estimates() == [0.0, 1.0, 0.0]
    rng = Random(0)
    picks = [Uniform(3).choose([0, 2], rng) for _ in range(4000)]
    assert {chance for _, chance in picks} == {0.5}
    assert sum(arm == 2 for arm, _ in picks) / 4000 == pytest.approx(0.5, abs=0.03)
    assert Uniform(4).estimates() == [0.25, 0.25, 0.25, 0.25]


class Last(Random):
    """The highest uniform number there is."""

    def random(self) -> float:
        return 1.0 - 2.0**-53


def test_a_rounding_error_never_draws_a_weight_of_zero() -> None:
    weights = [0.1] * 10 + [0.2, 0.0]
    for n in range(2, 11):
        arm, chance = draw(range(12 - n), weights[n:], Last())
        assert weights[n:][arm] > 0.0
        assert chance == pytest.approx(weights[n:][arm] / sum(weights[n:]))
    assert draw([5, 7], [0.0, 0.0], Last()) == (7, 0.5)


# -- UCB and Thompson sampling -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UCB1, UCBTuned, DiscountedUCB, SlidingWindowUCB])
def test_an_untried_arm_does_not_get_the_whole_batch(kind: Any) -> None:
    learner = kind(3)
    for arm in (0, 1) * 4:
        learner.update(arm, 0.9, 1.0)
    chosen = batch(learner, 8)
    assert chosen[0] == 2 and chosen.count(2) < 8


def test_a_greedy_strength_does_not_flood_an_arm_in_flight() -> None:
    # the arm in flight is rated 0.55, the mean over all, until its answer comes
    learner = UCB1(3, strength=0.01, pulls=[1.0, 1.0, 0.0], sums=[0.9, 0.2, 0.0])
    assert batch(learner, 6) == [2, 0, 0, 0, 0, 0]


def test_pulls_in_flight_shrink_the_bonus() -> None:
    assert batch(UCB1(2, pulls=[4.0, 4.0], sums=[2.0, 2.0]), 4) == [0, 1, 0, 1]


def test_tuned_bonus_of_an_arm_that_is_only_in_flight() -> None:
    # nothing is known of its variance: 1/4, so sqrt(ln 8 / 2 / 4)
    assert UCBTuned(2).bonus(0, 2, log(8)) == pytest.approx(0.5098334950844045, abs=1e-12)


def test_an_arm_that_left_the_window_is_untried_again() -> None:
    learner = SlidingWindowUCB(2, window=3)
    for arm, reward in [(0, 1.0), (0, 0.1), (1, 0.5), (1, 0.75), (1, 0.0)]:
        learner.update(arm, reward, 1.0)
    assert learner.pulls == [0.0, 3.0]
    assert learner.sums == [0.0, 1.25], "an empty sum is exactly 0"
    assert learner.choose([0, 1], RNG)[0] == 0


def test_the_chance_of_an_arm_is_said_to_be_unknown() -> None:
    assert isnan(GaussianThompson(3).choose(range(3), Random(0))[1])


# -- EXP3 ------------------------------------------------------------------------------------------------


def test_exp3_on_fewer_arms_mixes_over_those() -> None:
    assert EXP3(4, logs=[5000.0, 0.0, -5000.0, 0.0]).chances(range(4)) == pytest.approx([0.7, 0.1, 0.1, 0.1])
    assert EXP3(4, logs=[9.0, 0.0, 0.0, 0.0]).chances([1, 3]) == pytest.approx([0.5, 0.5])


def test_exp3_keeps_an_arm_that_was_out_of_favour_for_long() -> None:
    learner = EXP3(2)
    for arm, times in ((0, 10_000), (1, 10_100)):
        for _ in range(times):
            learner.update(arm, 1.0, 0.8)
    assert learner.chances([0, 1])[1] == pytest.approx(0.8, abs=1e-6)


def test_exp3spec_counts_rounds_in_flight() -> None:
    answered, waiting = EXP3Spec(2, losses=[1.0, 0.0], rounds=8), EXP3Spec(2, losses=[1.0, 0.0], rounds=5)
    batch(waiting, 3)
    assert waiting.chances([0, 1]) == answered.chances([0, 1])
    waiting.abort(0)
    assert waiting.chances([0, 1]) != answered.chances([0, 1])


def test_exp3spec_survives_a_vast_loss() -> None:
    learner = EXP3Spec(3)
    learner.update(0, 0.0, 1e-200)
    assert learner.chances(range(3)) == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("kind", [EXP3, EXP3Spec, *EXPERTS])
def test_propensities_sum_to_one_and_are_the_frequencies(kind: Any) -> None:
    learner, rng = kind(4), Random(3)
    for arm, reward in [(0, 0.3), (1, 0.9), (2, 0.1), (1, 1.0), (3, 0.5)]:
        if hasattr(learner, "learn_all"):
            learner.learn_all([1.0 - reward * (k == arm) for k in range(4)])
        else:
            learner.update(arm, reward, 0.25)
    for allowed in ([0, 1, 2, 3], [0, 1], [1]):
        chances, seen = dict.fromkeys(allowed, 0.0), dict.fromkeys(allowed, 0)
        for _ in range(8000):
            arm, chance = learner.choose(allowed, rng)
            learner.abort(arm)
            chances[arm], seen[arm] = chance, seen[arm] + 1
        assert sum(chances.values()) == pytest.approx(1.0, abs=1e-12)
        assert [seen[arm] / 8000 for arm in allowed] == pytest.approx([*chances.values()], abs=0.025)


REWARDS = ((0.2, 0.9, 0.5), (0.7, 0.1, 0.4))
"""Of three arms in two rounds."""


def delayed_mean(*, stale: bool) -> list[float]:
    """The expected losses held by EXP3Spec after two rounds that were both chosen before any answer.

    All nine pairs of choices are summed. `stale` weights the second by the chance of its own day, as
    the learner is told to; else by the weights at the time the answer comes.
    """
    mean, start = [0.0, 0.0, 0.0], [0.6, 0.0, 0.2]
    day = EXP3Spec(3, losses=list(start), rounds=4).chances(range(3))
    for first, second in product(range(3), repeat=2):
        learner = EXP3Spec(3, losses=list(start), rounds=4)
        learner.update(first, REWARDS[0][first], day[first])
        late = day[second] if stale else learner.chances(range(3))[second]
        learner.update(second, REWARDS[1][second], late)
        for arm in range(3):
            mean[arm] += day[first] * day[second] * (learner.losses[arm] - start[arm])
    return mean


def test_late_answers_are_unbiased_by_the_chance_of_their_day() -> None:
    # losses 1 - r, summed over both rounds: 0.8 + 0.3, 0.1 + 0.9, 0.5 + 0.6
    assert delayed_mean(stale=True) == pytest.approx([1.1, 1.0, 1.1], abs=1e-12)
    assert max(abs(a - b) for a, b in zip(delayed_mean(stale=False), [1.1, 1.0, 1.1], strict=True)) > 0.05


# -- halving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arms", "sizes"),
    [(2, [1]), (3, [2, 1]), (4, [2, 1]), (5, [3, 2, 1]), (6, [3, 2, 1]), (7, [4, 2, 1]), (8, [4, 2, 1])],
)
def test_the_rounded_up_logarithm_leaves_one(arms: int, sizes: list[int]) -> None:
    learner, seen = SequentialHalving(arms), [arms]
    for _ in range(40):
        play(learner, [i / 10 for i in range(arms)], 1)
        if len(learner.survivors) != seen[-1]:
            seen.append(len(learner.survivors))
    assert seen[1:] == sizes
    assert learner.survivors == [arms - 1], "the half with the higher mean stays"


def test_a_batch_waits_for_its_answers_before_eliminating() -> None:
    learner = SequentialHalving(4)
    assert batch(learner, 8) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert learner.survivors == [0, 1, 2, 3]
    for arm in range(4):
        learner.update(arm, arm / 4, 1.0)
    assert learner.choose(range(4), RNG)[0] in (2, 3)
    assert batch(ExploreThenCommit(4), 10) == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]


def test_an_arm_out_of_use_does_not_hold_up_a_phase() -> None:
    learner = SequentialHalving(4)
    assert play(learner, [0.1, 0.9, 0.3, 0.5], 3, allowed=[0, 2, 3]) == [0, 2, 3]
    # arm 1 was never seen and is dropped with arm 0; of 2 and 3 the better stays
    assert play(learner, [0.1, 0.9, 0.3, 0.5], 4, allowed=[0, 2, 3]) == [2, 3, 3, 3]
    assert learner.choose([0, 2], RNG)[0] == 2, "the best allowed arm when no survivor is"


def test_committing_takes_the_best_when_the_budget_is_spent() -> None:
    learner = ExploreThenCommit(4, budget=5)
    assert play(learner, [0.1, 0.9, 0.4, 0.3], 8) == [0, 1, 2, 3, 1, 1, 1, 1]


# -- full information ------------------------------------------------------------------------------------


def test_hedge_by_hand() -> None:
    learner = Hedge(2, rate=0.5, memory=0.5)
    learner.learn_all([0.0, 1.0])
    assert learner.estimates()[0] == pytest.approx(0.62245933120185456, abs=1e-12)
    learner.learn_all([1.0, 0.0])
    assert (learner.losses, learner.rounds) == ([1.0, 0.5], 1.5)


def test_normalhedge_compares_with_the_arms_awake_when_all_its_weight_sleeps() -> None:
    learner = NormalHedge(3, regrets=[0.0, 0.0, 0.0], weights=[1.0, 0.0, 0.0])
    learner.learn_all([None, 0.2, 0.6])
    # the mean loss of those awake is 0.4
    assert learner.regrets == pytest.approx([0.0, 0.2, -0.2])


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e4])
def test_normalhedge_scale_solves_its_equation(n: int, size: float) -> None:
    rng = Random(n)
    for _ in range(50):
        regrets = [size * rng.uniform(-1.0, 1.0) for _ in range(n - 1)] + [size * rng.random()]
        c = solve_scale(regrets)
        for scale in (c, solve_scale(regrets, start=rng.uniform(0.5, 2.0) * c)):
            mean = sum(exp(max(r, 0.0) ** 2 / (2 * scale)) for r in regrets) / n
            assert mean == pytest.approx(e, abs=1e-9)


def test_normalhedge_bears_regrets_too_small_to_square() -> None:
    learner = NormalHedge(3, memory=0.5)
    learner.learn_all([0.0, 1.0, 1.0])
    for _ in range(1200):
        learner.learn_all([0.0, 0.0, 0.0])
    assert sum(learner.weights) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", EXPERTS)
def test_sleeping_is_neither_praised_nor_blamed(kind: Any) -> None:
    learner = kind(3)
    for _ in range(50):
        learner.learn_all([0.5, 0.4, 0.6])
    before = learner.estimates()
    for _ in range(10):
        learner.learn_all([None, None, None])
    after = learner.estimates()
    assert sorted(range(3), key=before.__getitem__) == sorted(range(3), key=after.__getitem__)
    learner.learn_all([0.5, None, 0.5])
    assert learner.estimates()[1] == max(learner.estimates())


@pytest.mark.parametrize("kind", EXPERTS)
def test_forgetting_follows_a_change(kind: Any) -> None:
    steady, forgetful = kind(2), kind(2, memory=0.95)
    for learner in (steady, forgetful):
        for t in range(260):
            learner.learn_all([0.2, 0.8] if t < 200 else [0.8, 0.2])
    assert forgetful.estimates()[1] > 0.75
    assert steady.estimates()[1] < 0.5


# -- LinUCB ----------------------------------------------------------------------------------------------


def test_linucb_two_updates_by_hand() -> None:
    learner = LinUCB(2, 2)
    learner.update(0, 1.0, 1.0, [1.0, 0.0])
    assert learner.thetas[0] == pytest.approx([0.5, 0.0])
    learner.update(0, 0.0, 1.0, [1.0, 1.0])
    # A = [[3, 1], [1, 2]], b = (1, 0)
    assert learner.inverses[0] == pytest.approx([0.4, -0.2, -0.2, 0.6])
    assert learner.thetas[0] == pytest.approx([0.4, -0.2])
    assert learner.thetas[1] == [0.0, 0.0]
    assert learner.estimates() == pytest.approx([0.4, 0.0])
    assert fresh(learner) == LinUCB(2, 2)


def test_linucbs_index_is_guess_plus_strength_times_width() -> None:
    state: dict[str, Any] = {
        "thetas": [[0.4, -0.2], [0.0, 0.0]],
        "inverses": [[0.4, -0.2, -0.2, 0.6], [1.0, 0.0, 0.0, 1.0]],
    }
    # at (1, 2): arm 0 guesses 0 with x' A^-1 x = 2, arm 1 guesses 0 with 5
    assert LinUCB(2, 2, **state).choose([0, 1], RNG, [1.0, 2.0]) == (1, 1.0)
    # at (1, 0): 0.4 + s sqrt(0.4) against 0 + s: arm 1 from s = 1.0883
    assert LinUCB(2, 2, strength=1.08, **state).choose([0, 1], RNG, [1.0, 0.0])[0] == 0
    assert LinUCB(2, 2, strength=1.10, **state).choose([0, 1], RNG, [1.0, 0.0])[0] == 1


def test_linucbs_decisions_in_flight_shrink_the_width() -> None:
    # v = 1 falls to 1 / (1 + 3): arm 0 is worth 0.6 + 0.5 * 1/2 with three in flight, arm 1 x + 0.5
    for other, chosen in ((0.34, 0), (0.36, 1)):
        learner = LinUCB(2, 1, thetas=[[0.6], [other]], flight=[3, 0])
        assert learner.choose([0, 1], RNG, [1.0])[0] == chosen
        learner.abort(0)
        assert learner.flight[0] == 2 + (chosen == 0)
