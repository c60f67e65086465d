"""What the papers' rules decide, round by round: their formulas on plain histories, written again here.

Each policy of the catalogue hears the same script of outcomes as its formula, for 1,000 rounds. Choices
without chance must be the formula's own; drawn ones must have had its chance or follow from the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import ceil, e, exp, inf, log, log2, sqrt
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.core import stops
from draftwise.core.arms import Context, Decision
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.policies.arms import tapout_rules
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.classifiers.stopping import Disco, save
from draftwise.policies.recorders.bandit import Bandit
from draftwise.policies.tokens import BetaBank, TokenPolicy

ROUNDS, K = 1000, 3
Real = Any
Formula = Callable[[Any, Real, int], Real]
"""The index of each arm from the arms played, their rewards and the number of arms."""


def counts(played: Any, arms: int, values: Any = None) -> Real:
    """How often each arm was played, or its sum of `values`."""
    return np.bincount(played, values, arms).astype(float)


def best(formula: Formula, played: Any, rewards: Real, arms: int) -> set[int]:
    """The first arm untried, else those of the highest index, or level with it but for rounding."""
    with np.errstate(all="ignore"):  # an untried arm has no mean
        index = formula(played, rewards, arms)
    untried = np.flatnonzero(~np.isfinite(index))
    return set(untried[:1].tolist() or np.flatnonzero(index > index.max() - 1e-12).tolist())


def ucb(beta: float, ahead: int = 0) -> Formula:
    """Mean + beta sqrt(2 ln t / n): Auer et al. 2002 with beta 1, MetaSD with 0.01; TapOut's t is `ahead`."""

    def index(played: Any, rewards: Real, arms: int) -> Real:
        n = counts(played, arms)
        return counts(played, arms, rewards) / n + beta * np.sqrt(2 * np.log(len(played) + ahead) / n)

    return index


def tuned(ahead: int = 0) -> Formula:
    """Auer et al. 2002, section 4: sqrt(ln t / n min(1/4, V)), V = variance + sqrt(2 ln t / n)."""

    def index(played: Any, rewards: Real, arms: int) -> Real:
        n, ln_t = counts(played, arms), np.log(len(played) + ahead)
        mean = counts(played, arms, rewards) / n
        v = counts(played, arms, rewards**2) / n - mean**2 + np.sqrt(2 * ln_t / n)
        return mean + np.sqrt(ln_t / n * np.minimum(0.25, v))

    return index


def ucbspec(played: Any, rewards: Real, arms: int) -> Real:
    """BanditSpec, section 4, in tokens: Y in [1, L + 1], delta 1/2."""
    length, delta, t, n = 5, 0.5, len(played), counts(played, arms)
    radius = length / 2 * np.sqrt((1 + n) / n**2 * (1 + 2 * np.log(arms * t**2 * (1 + n) ** 0.5 / delta)))
    return 1 + length * counts(played, arms, rewards) / n + radius


def discounted(played: Any, rewards: Real, arms: int) -> Real:
    """Garivier and Moulines 2008: rewards, counts and t with gamma 0.98; MetaSD's beta 0.01."""
    weights = 0.98 ** np.arange(len(played))[::-1]
    n = counts(played, arms, weights)
    return counts(played, arms, weights * rewards) / n + 0.01 * np.sqrt(2 * np.log(weights.sum()) / n)


def discounted_as_printed(played: Any, rewards: Real, arms: int) -> Real:
    """MetaSD, Algorithm 6: discounted rewards over a count that is not; beta 1."""
    weights, n = 0.98 ** np.arange(len(played))[::-1], counts(played, arms)
    return counts(played, arms, weights * rewards) / n + np.sqrt(2 * np.log(len(played)) / n)


def windowed(played: Any, rewards: Real, arms: int) -> Real:
    """Garivier and Moulines 2008: the last 100 rounds alone; MetaSD's beta 0.01."""
    return ucb(0.01)(played[-100:], rewards[-100:], arms)


def windowed_as_printed(played: Any, rewards: Real, arms: int) -> Real:
    """MetaSD, Algorithm 8: means and counts of the last 100 rounds, ln t of all; beta 1."""
    n = counts(played[-100:], arms)
    return counts(played[-100:], arms, rewards[-100:]) / n + np.sqrt(2 * np.log(len(played)) / n)


REWARDS: dict[str, Callable[[Outcome], float]] = {
    "divergence": lambda o: sum(o.overlaps) / 5,
    "accepted": lambda o: o.accepted / 5,
    "blended": lambda o: 0.5 * o.accepted / 128 + 0.5 * o.accepted / o.drafted,
    "simple": lambda o: o.accepted / 128,
}


def outcomes(seed: int, arms: int) -> Callable[[int], Outcome]:
    """Arms of different worth, the middle one best; it falls to the worst in round 150."""
    rng = Random(seed)
    count = [0]

    def outcome(arm: int) -> Outcome:
        count[0] += 1
        good = 0.8 - 0.15 * abs(arm - arms // 2) - (0.5 if arm == arms // 2 and count[0] > 150 else 0.0)
        drafted = rng.randint(3, 5)
        accepted = next((k for k in range(drafted) if rng.random() > good), drafted)
        overlaps = tuple(min(1.0, max(0.0, rng.gauss(good, 0.1))) for _ in range(drafted))
        return Outcome(arm, accepted, drafted, 0.1, overlaps=overlaps)

    return outcome


def bandit(name: str) -> tuple[BanditPolicy, Bandit]:
    built = method(name, ["a", "b", "c"])
    assert isinstance(built.policy, BanditPolicy) and isinstance(built.recorder, Bandit)
    return built.policy, built.recorder


def hear(policy: BanditPolicy, recorder: Bandit, decision: Decision, outcome: Outcome, request: int) -> None:
    reward = recorder.reward(outcome, recorder.longest)
    assert reward is not None
    told = Outcome(outcome.arm, outcome.accepted, outcome.drafted, reward=reward)
    policy.learn(Feedback(request, decision, (told,)))


def play(name: str, reward: str, check: Callable[[Any, Real, list[float], Decision], None]) -> list[int]:
    """Run a bandit for 1,000 rounds; `check` sees the history before each decision; the arms played."""
    policy, recorder = bandit(name)
    rng, outcome, worth = Random(0), outcomes(1, len(policy.arms)), REWARDS[reward]
    played, rewards, chances = np.zeros(ROUNDS, int), np.zeros(ROUNDS), list[float]()
    for t in range(ROUNDS):
        decision = policy.choose(Context(), rng)
        check(played[:t], rewards[:t], chances, decision)
        came = outcome(decision.arm)
        hear(policy, recorder, decision, came, 0)
        played[t], rewards[t] = decision.arm, worth(came)
        chances.append(decision.propensity)
    assert len(set(played.tolist())) == len(policy.arms)
    return played.tolist()


@pytest.mark.parametrize(
    ("name", "formula", "reward"),
    [
        ("metasd-ucb", ucb(0.01), "divergence"),
        ("metasd-ucb?beta=1&reward=block-efficiency", ucb(1.0), "accepted"),
        ("metasd-ducb", discounted, "divergence"),
        ("metasd-swucb", windowed, "divergence"),
        ("metasd-ducb?beta=1&printed=true", discounted_as_printed, "divergence"),
        ("metasd-swucb?beta=1&printed=true", windowed_as_printed, "divergence"),
        ("ucbspec", ucbspec, "accepted"),
        ("ucb1", ucb(1.0), "accepted"),
        ("tapout-seq-ucb1", ucb(1.0), "blended"),
        ("tapout-seq-ucb1?printed=true", ucb(1.0, ahead=1), "blended"),
        ("tapout-seq-ucb1?reward=simple", ucb(1.0), "simple"),
        ("tapout-seq-ucbtuned", tuned(), "blended"),
        ("tapout-seq-ucbtuned?printed=true", tuned(ahead=1), "blended"),
    ],
)
def test_the_arm_of_the_highest_index_is_played(name: str, formula: Formula, reward: str) -> None:
    arms = len(bandit(name)[0].arms)

    def check(played: Any, rewards: Real, _: list[float], decision: Decision) -> None:
        assert decision.arm in best(formula, played, rewards, arms), len(played)
        assert decision.propensity == 1.0

    play(name, reward, check)


def test_thompson_sampling_plays_the_highest_draw_of_the_posteriors() -> None:
    """TapOut, sequence level: prior N(1/2, 1/4) and noise of variance 1/4, so precisions are 4 + 4 n."""
    twin = Random(0)

    def check(played: Any, rewards: Real, _: list[float], decision: Decision) -> None:
        precision = 4 + 4 * counts(played, 5)
        mean = (2 + 4 * counts(played, 5, rewards)) / precision
        draws = mean + [twin.gauss(0.0, 1.0) for _ in range(5)] / np.sqrt(precision)
        assert decision.arm == draws.argmax()

    play("tapout-seq-ts", "blended", check)


def exp3(played: Any, rewards: Real, chances: list[float]) -> Real:
    """MetaSD, Algorithm 7: (1 - gamma) w / sum + gamma / K, w *= exp(gamma r / (p K)); gamma 0.4."""
    gains = counts(played, K, rewards / chances)
    weights = np.exp(0.4 / K * (gains - gains.max()))
    return 0.6 * weights / weights.sum() + 0.4 / K


def exp3spec(played: Any, rewards: Real, chances: list[float]) -> Real:
    """BanditSpec: exp(-eta_t sum (L + 1 - Y) / (L p)), eta_t = sqrt(ln K / (t K)), in tokens with L = 5."""
    losses = counts(played, K, (5 + 1 - (1 + 5 * rewards)) / 5 / chances)
    weights = np.exp(-sqrt(log(K) / ((len(played) + 1) * K)) * (losses - losses.min()))
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("name", "formula", "reward"),
    [("metasd-exp3", exp3, "divergence"), ("exp3spec", exp3spec, "accepted")],
)
def test_an_arm_is_drawn_with_the_printed_chance(
    name: str, formula: Callable[[Any, Real, list[float]], Real], reward: str
) -> None:
    def check(played: Any, rewards: Real, chances: list[float], decision: Decision) -> None:
        assert decision.propensity == pytest.approx(formula(played, rewards, chances)[decision.arm], rel=1e-9)

    play(name, reward, check)


Course = Generator[int, float, None]


def halving(arms: int, budget: int, *, in_turn: bool) -> Course:
    """MetaSD, Algorithm 5 (in turn) and 4 (arm by arm, the latest first): the better half stays.

    A phase has T / (survivors ceil(log2 K)) pulls of each, one at least. Arm by arm, the best so far is taken
    once the budget is spent and every arm has played.
    """
    alive, last, t, seen, sums = list(range(arms)), 0, 0, np.zeros(arms), np.zeros(arms)
    while len(alive) > 1:
        quota = max(1, budget // (len(alive) * ceil(log2(arms))))
        alive.sort(key=lambda arm: (not in_turn and arm != last, arm))
        for last in alive * quota if in_turn else [arm for arm in alive for _ in range(quota)]:
            if not in_turn and t >= max(budget, arms):
                alive = alive[:0]
                break
            reward = yield last
            t, seen[last], sums[last] = t + 1, seen[last] + 1, sums[last] + reward
        order = sorted(alive or range(arms), key=lambda arm: -sums[arm] / seen[arm])
        alive = order[: (len(alive) + 1) // 2 or 1]
    while True:
        yield alive[0]


@pytest.mark.parametrize(
    ("name", "budget", "in_turn"),
    [
        ("metasd-sh", 0, True),
        ("metasd-sh?budget=300", 300, True),
        ("metasd-petc", ceil(4 * log(256)), False),
        ("metasd-petc?constant=40&horizon=1000", ceil(40 * log(1000)), False),
    ],
)
def test_halving_and_committing_play_what_their_algorithms_say(name: str, budget: int, in_turn: bool) -> None:
    course = halving(K, budget, in_turn=in_turn)
    expected = [next(course)]

    def check(_: Any, rewards: Real, __: list[float], decision: Decision) -> None:
        if len(rewards):
            expected.append(course.send(rewards[-1]))
        assert decision.arm == expected[-1], len(rewards)

    played = play(name, "divergence", check)
    assert len(set(played[-500:])) == 1


@pytest.mark.parametrize("name", ["tapout-token-ucb1", "tapout-token-ucb1?printed=true", "tapout-token-ts"])
def test_each_draft_position_has_a_learner_of_its_own(name: str) -> None:
    """TapOut, token level: 1 for an accepted token; rules are chosen anew where the last draft reached."""
    policy = method(name, ["a"]).policy
    assert isinstance(policy, TokenPolicy)
    rng, twin, script, names = Random(0), Random(0), Random(1), [rule.rule for rule in tapout_rules()]
    won, lost, reached, draws = np.zeros((128, 5)), np.zeros((128, 5)), 128, BetaBank(5, 1)
    for t in range(ROUNDS):
        decision = policy.choose(Context(), rng)
        rules = np.array([names.index(stop.rule) for stop in decision.stops])
        mine, n = won[:reached], (won + lost)[:reached]
        if name.endswith("ts") and reached:
            index = draws._seeded(twin).beta(1 + mine, 1 + lost[:reached])
        else:
            with np.errstate(all="ignore"):  # of those without a mean the first is tried
                index = mine / n + np.sqrt(2 * np.log(n.sum(1, keepdims=True) + ("printed" in name)) / n)
            index = np.where(n == 0, 99.0 - np.arange(5), index)
        at = np.arange(reached)
        assert (index[at, rules[:reached]] >= index.max(1, initial=-inf) - 1e-12).all(), t
        reached = script.randint(0, 6)
        accepted = next((k for k in range(reached) if script.random() > 0.9 - 0.1 * rules[k]), reached)
        won[range(accepted), rules[:accepted]] += 1
        lost[range(accepted, reached), rules[accepted:reached]] += 1
        policy.learn(Feedback(0, decision, (Outcome(0, accepted, reached, asked=128),)))
    assert (won + lost)[:6].all()


def normal_hedge(losses: Real, chances: Real) -> Real:
    """Chaudhuri, Freund and Hsu 2009: R sums the learner's loss less the arm's; c by halving an interval."""
    regrets = np.maximum(((losses * chances).sum(1, keepdims=True) - losses).sum(0), 0.0)
    if not regrets.any():
        return np.full(K, 1 / K)
    halves, low, high = regrets**2 / 2, 0.0, (1 + log(K)) / (regrets.max() ** 2 / 2)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(middle * halves).mean() < e else (low, middle)
    weights = regrets * np.exp(low * halves)
    return weights / weights.sum()


def hedge(losses: Real, _: Real) -> Real:
    """Weights exp(-eta sum of losses) with eta = sqrt(8 ln N / t), in round t."""
    sums = losses.sum(0)
    weights = np.exp(-sqrt(8 * log(K) / (len(losses) + 1)) * (sums - sums.min()))
    return weights / weights.sum()


@pytest.mark.parametrize(("name", "formula"), [("hedgespec", normal_hedge), ("hedgespec-hedge", hedge)])
def test_a_drafter_is_drawn_by_its_weight(name: str, formula: Callable[[Real, Real], Real]) -> None:
    policy = method(name, ["a", "b", "c"]).policy
    rng, script = Random(0), np.random.default_rng(1)
    losses = np.clip(script.normal([0.5, 0.45, 0.5], 0.3, (ROUNDS, K)), 0.0, 1.0)
    losses[300:] = losses[300:, ::-1] ** [[1.0, 1.2, 0.7]]  # another is best from then on
    chances = np.zeros((ROUNDS, K))
    for t in range(ROUNDS):
        chances[t] = formula(losses[:t], chances[:t])
        decision = policy.choose(Context(), rng)
        assert decision.propensity == pytest.approx(chances[t, decision.arm], rel=1e-6), t
        policy.learn(Feedback(0, decision, losses=tuple(losses[t].tolist())))
    assert len(set(chances[1:].argmax(1))) > 1


def test_disco_stops_where_its_network_says(tmp_path: Path) -> None:
    """DISCO: FFN(ten largest probabilities, their entropy, the position) < tau, for 1,000 tokens."""
    rng = np.random.default_rng(0)
    a, b, c, d = (rng.normal(size=shape).astype("float32") for shape in ((8, 12), 8, (1, 8), 1))
    a[:, 11] /= 20  # of positions up to 60
    save(Disco(a, b, c, d), tmp_path / "disco.safetensors")
    decision = method(f"disco?model={tmp_path / 'disco.safetensors'}&threshold=0.9", ["a"]).policy.choose(
        Context(), Random(0)
    )
    answers = []
    for _ in range(ROUNDS):
        row = np.sort(rng.dirichlet(np.full(20, 0.2)))[::-1][:10]
        place, entropy = int(rng.integers(60)), -(row[row > 0] * np.log(row[row > 0])).sum()
        hidden = np.maximum(a @ np.array([*row, entropy, place]) + b, 0.0)
        chance = 1 / (1 + exp(-float((c @ hidden)[0] + d[0])))
        signals = Signals(row[0], row[1], 0.0, row[0], place, tuple(row))
        answers.append(stops.stop(decision.stops[0], signals, position=3, previous=None, joint=1.0))
        assert answers[-1] == (chance < 0.9)
    assert 100 < sum(answers) < 900
