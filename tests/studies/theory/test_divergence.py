"""Block divergence tells drafters apart in fewer rounds than block efficiency (MetaSD, Theorem 1)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from draftwise.core.sampling import Sampling
from draftwise.testing.distributions import Distribution as Logits
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from studies.theory.divergence import Pair, clear, measure, pairs, wrong
from studies.theory.enumeration import Chain, Distribution, near, random_distribution, rounds, texts

SHARES = (0.15, 0.3, 0.5, 0.8)  # how far each drafter is from the target: the first is the best


def exact(p: Distribution, q: Distribution, length: int) -> dict[str, tuple[float, float]]:
    """Mean and variance of both rewards by enumeration; a round starts after any two tokens of the text."""
    values: dict[str, list[tuple[float, float]]] = {"divergence": [], "efficiency": []}
    drafter = Chain(q, length)
    for start, prob in texts(p, 2):
        for tokens, chance in rounds(p, drafter, start).items():
            values["efficiency"].append(((len(tokens) - 1) / length, prob * chance))
        for draft, rows, chance in drafter.drafts(start):
            shared = [float(np.minimum(p(start + draft[:j]), row).sum()) for j, row in enumerate(rows)]
            values["divergence"].append((sum(shared) / length, prob * chance))
    out = {}
    for name, known in values.items():
        mean = sum(v * w for v, w in known)
        out[name] = mean, sum(w * (v - mean) ** 2 for v, w in known)
    return out


def test_by_enumeration_the_divergence_has_the_larger_ratio() -> None:
    p = random_distribution(3, 1)
    found = [exact(p, near(p, random_distribution(3, 2 + i), share), 3) for i, share in enumerate(SHARES)]
    ratios = {
        reward: [
            (better[reward][0] - worse[reward][0]) ** 2 / max(better[reward][1], worse[reward][1])
            for better, worse in combinations(found, 2)
        ]
        for reward in ("divergence", "efficiency")
    }
    for reward in ratios:
        means = [f[reward][0] for f in found]
        assert means == sorted(means, reverse=True)
    assert all(bd > 5 * be for bd, be in zip(*ratios.values(), strict=True))


def logits(distribution: Distribution) -> Logits:
    return lambda history: np.log(np.maximum(distribution(tuple(history[-3:])), 1e-300))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_in_the_loop_the_divergence_tells_drafters_apart_sooner(temperature: float) -> None:
    size = 8
    p = random_distribution(size, 1, sharp=2.0)
    team = {
        f"drafter {i}": SimDrafter(logits(near(p, random_distribution(size, 2 + i, sharp=2.0), share)))
        for i, share in enumerate(SHARES)
    }
    prompts = [[a, b] for a in range(size) for b in range(4)]
    sampling = Sampling(max_new_tokens=60, temperature=temperature, seed=1)
    rewards = measure(SimTarget(logits(p), size), dict(team), prompts, sampling)
    assert all(len(values) > 100 for values in rewards["efficiency"].values())
    told = [(bd, be) for bd, be in pairs(rewards) if clear(rewards, be)]
    assert len(told) >= 4
    assert np.median([bd.r / be.r for bd, be in told]) > 2.0
    early = {reward: np.mean([wrong(v, pair, [5])[0] for pair, _ in told]) for reward, v in rewards.items()}
    assert early["divergence"] < early["efficiency"] / 2


def test_the_chance_of_a_wrong_order_by_hand() -> None:
    """One round each of a fair coin and of a 3 in 4 coin: the worse leads with 1/8 and ties with 1/2."""
    values = {"a": np.array([1.0, 1.0, 1.0, 0.0]), "b": np.array([1.0, 0.0])}
    chance = wrong(values, Pair("a", "b", 0.25, 0.25), [1, 60])
    assert chance[0] == pytest.approx(0.125 + 0.25, abs=0.03)
    assert chance[1] < 0.01
    assert Pair("a", "b", 0.25, 0.5).r == 0.125
    assert Pair("a", "b", 0.25, 0.5).needed == 8.0
    assert Pair("a", "b", -0.1, 0.25).r == 0.0
    assert Pair("a", "b", -0.1, 0.25).needed == float("inf")
