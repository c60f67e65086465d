"""What the papers' bandits play, round by round: their formulas on plain histories, written again here.

Each policy of the catalogue hears the same script of outcomes as its formula; choices without chance must be
the formula's own, and drawn ones must have had the formula's chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log, sqrt
from random import Random

import pytest

from draftwise.core.arms import Context, Decision
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.policies.bandit import BanditPolicy, ExpertPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.recorders.bandit import Bandit

Heard = list[tuple[int, float]]
"""What was played so far: (arm, reward)."""

K = 3


def mean(heard: Heard, arm: int) -> float:
    mine = [r for a, r in heard if a == arm]
    return sum(mine) / len(mine)


def pulls(heard: Heard, arm: int) -> int:
    return sum(a == arm for a, _ in heard)


def highest(heard: Heard, index: Callable[[int], float], arms: int) -> set[int]:
    """Each arm once, then the highest index, or those level with it but for rounding."""
    for arm in range(arms):
        if not pulls(heard, arm):
            return {arm}
    values = [index(arm) for arm in range(arms)]
    return {arm for arm, value in enumerate(values) if value > max(values) - 1e-12}


def ucb(beta: float, ahead: int = 0) -> Callable[[Heard, int], set[int]]:
    """Mean + beta sqrt(2 ln t / n): Auer et al. 2002 with beta 1, MetaSD with 0.01; TapOut's t is `ahead`."""

    def choose(heard: Heard, arms: int) -> set[int]:
        def index(arm: int) -> float:
            return mean(heard, arm) + beta * sqrt(2 * log(len(heard) + ahead) / pulls(heard, arm))

        return highest(heard, index, arms)

    return choose


def tuned(heard: Heard, arms: int) -> set[int]:
    """Auer et al. 2002, section 4: sqrt(ln t / n min(1/4, V)), V = variance + sqrt(2 ln t / n)."""

    def index(arm: int) -> float:
        mine, t = [r for a, r in heard if a == arm], len(heard)
        variance = sum(r * r for r in mine) / len(mine) - mean(heard, arm) ** 2
        v = variance + sqrt(2 * log(t) / len(mine))
        return mean(heard, arm) + sqrt(log(t) / len(mine) * min(0.25, v))

    return highest(heard, index, arms)


def ucbspec(heard: Heard, arms: int) -> set[int]:
    """BanditSpec, section 4, in tokens: Y in [1, L + 1], delta 1/2."""
    length, delta, t = 5, 0.5, len(heard)

    def index(arm: int) -> float:
        n = pulls(heard, arm)
        inside = arms * t**2 * (1 + n) ** 0.5 / delta
        radius = length / 2 * sqrt((1 + n) / n**2 * (1 + 2 * log(inside)))
        return 1 + length * mean(heard, arm) + radius

    return highest(heard, index, arms)


def discounted(heard: Heard, arms: int) -> set[int]:
    """Garivier and Moulines 2008: rewards, counts and t with gamma 0.98; MetaSD's beta 0.01."""
    weights = [0.98 ** (len(heard) - 1 - s) for s in range(len(heard))]

    def index(arm: int) -> float:
        n = sum(w for w, (a, _) in zip(weights, heard, strict=True) if a == arm)
        total = sum(w * r for w, (a, r) in zip(weights, heard, strict=True) if a == arm)
        return total / n + 0.01 * sqrt(2 * log(sum(weights)) / n)

    return highest(heard, index, arms)


def discounted_as_printed(heard: Heard, arms: int) -> set[int]:
    """MetaSD, Algorithm 6: discounted rewards over a count that is not; beta 1."""

    def index(arm: int) -> float:
        n, ago = pulls(heard, arm), len(heard) - 1
        total = sum(0.98 ** (ago - s) * r for s, (a, r) in enumerate(heard) if a == arm)
        return total / n + sqrt(2 * log(len(heard)) / n)

    return highest(heard, index, arms)


def windowed(heard: Heard, arms: int) -> set[int]:
    """Garivier and Moulines 2008: the last 100 rounds alone; MetaSD's beta 0.01."""
    return ucb(0.01)(heard[-100:], arms)


def windowed_as_printed(heard: Heard, arms: int) -> set[int]:
    """MetaSD, Algorithm 8: means and counts of the last 100 rounds, ln t of all; beta 1."""
    last = heard[-100:]

    def index(arm: int) -> float:
        return mean(last, arm) + sqrt(2 * log(len(heard)) / pulls(last, arm))

    return highest(last, index, arms)


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
        ("tapout-seq-ucbtuned", tuned, "blended"),
    ],
)
def test_the_arm_of_the_highest_index_is_played(
    name: str, formula: Callable[[Heard, int], set[int]], reward: str
) -> None:
    policy, recorder = bandit(name)
    arms, heard, rng = len(policy.arms), Heard(), Random(0)
    outcome, worth = outcomes(1, arms), REWARDS[reward]
    for _ in range(1000):
        decision = policy.choose(Context(), rng)
        assert decision.arm in formula(heard, arms), len(heard)
        assert decision.propensity == 1.0
        came = outcome(decision.arm)
        hear(policy, recorder, decision, came, 0)
        heard.append((decision.arm, worth(came)))
    assert len({arm for arm, _ in heard}) == arms


def exp3(played: Sequence[tuple[int, float, float]]) -> list[float]:
    """MetaSD, Algorithm 7: (1 - gamma) w / sum + gamma / K, w *= exp(gamma r / (p K)); gamma 0.4."""
    weights = [exp(sum(0.4 * r / p / K for a, r, p in played if a == arm)) for arm in range(K)]
    return [0.6 * w / sum(weights) + 0.4 / K for w in weights]


def exp3spec(played: Sequence[tuple[int, float, float]]) -> list[float]:
    """BanditSpec: exp(-eta_t sum (L + 1 - Y) / (L p)), eta_t = sqrt(ln K / (t K)), in tokens with L = 5."""
    eta = sqrt(log(K) / ((len(played) + 1) * K))
    losses = [sum((5 + 1 - (1 + 5 * r)) / 5 / p for a, r, p in played if a == arm) for arm in range(K)]
    weights = [exp(-eta * loss) for loss in losses]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize(
    ("name", "formula", "reward"),
    [("metasd-exp3", exp3, "divergence"), ("exp3spec", exp3spec, "accepted")],
)
def test_an_arm_is_drawn_with_the_printed_chance(
    name: str, formula: Callable[[Sequence[tuple[int, float, float]]], list[float]], reward: str
) -> None:
    policy, recorder = bandit(name)
    played: list[tuple[int, float, float]] = []
    rng, outcome = Random(0), outcomes(1, K)
    for _ in range(200):
        decision = policy.choose(Context(), rng)
        assert decision.propensity == pytest.approx(formula(played)[decision.arm], rel=1e-9)
        came = outcome(decision.arm)
        hear(policy, recorder, decision, came, 0)
        played.append((decision.arm, REWARDS[reward](came), decision.propensity))


def test_halving_gives_a_pull_each_and_keeps_the_better_half() -> None:
    """MetaSD, Algorithm 5 with period 1: of 3 drafters 2, then 1, by all their pulls."""
    policy, recorder = bandit("metasd-sh")
    script = [(0, 0.2), (1, 0.9), (2, 0.5), (1, 0.1), (2, 0.6)]  # means then: 0.2, 0.5, 0.55
    for arm, overlap in script:
        decision = policy.choose(Context(), Random(0))
        assert decision.arm == arm
        hear(policy, recorder, decision, Outcome(arm, 1, 5, overlaps=(overlap,) * 5), 0)
    assert [policy.choose(Context(), Random(0)).arm for _ in range(3)] == [2, 2, 2]


def test_committing_comes_after_c_ln_b_rounds_and_stays() -> None:
    """MetaSD, Algorithm 4: with c = 4 and B = 256 at most 23 rounds explore, arm by arm."""
    policy, recorder = bandit("metasd-petc")
    rng, outcome, arms = Random(0), outcomes(1, K), list[int]()
    for _ in range(60):
        decision = policy.choose(Context(), rng)
        hear(policy, recorder, decision, outcome(decision.arm), 0)
        arms.append(decision.arm)
    quota = 23 // (3 * 2)  # of 3 survivors in the first of 2 phases
    assert arms[: 3 * quota] == [0] * quota + [1] * quota + [2] * quota
    assert set(arms[23:]) == {1}


@pytest.mark.parametrize(
    ("name", "anew"),
    [
        *((f"metasd-{x}", True) for x in ("ucb", "exp3", "sh", "petc", "ducb", "swucb")),
        ("ucbspec", True),
        ("exp3spec", True),
        ("ucb1", False),
        ("tapout-seq-ucb1", False),
        ("tapout-seq-ucbtuned", False),
        ("tapout-seq-ts", False),
    ],
)
def test_what_is_learnt_stays_in_its_text_where_the_paper_says_so(name: str, anew: bool) -> None:
    policy, recorder = bandit(name)
    untaught = [float(x) for x in policy._learner(99).estimates()]
    policy.close(99)
    rng, outcome = Random(0), outcomes(1, len(policy.arms))
    for _ in range(30):
        decision = policy.choose(Context(request=1), rng)
        hear(policy, recorder, decision, outcome(decision.arm), 1)
    assert policy._learner(1).estimates() != untaught
    assert (policy._learner(2).estimates() == untaught) is anew
    assert max(policy._learner(2).estimates()) < inf


@pytest.mark.parametrize("name", ["hedgespec", "hedgespec-hedge"])
@pytest.mark.parametrize("per_query", [True, False])
def test_full_information_stays_in_its_text_too(name: str, per_query: bool) -> None:
    policy = method(f"{name}?per_query={str(per_query).lower()}", ["a", "b", "c"]).policy
    assert isinstance(policy, ExpertPolicy)
    for _ in range(20):
        policy.learn(Feedback(1, Decision(0), losses=(0.9, 0.1, 0.9)))
    learnt, other = policy._learner(1).estimates(), policy._learner(2).estimates()
    assert learnt[1] > 0.9 and other == (pytest.approx([1 / 3] * 3) if per_query else learnt)
    policy.close(1)
    assert policy._learner(1).estimates() == (pytest.approx([1 / 3] * 3) if per_query else learnt)
