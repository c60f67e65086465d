"""Regret in rewards and in rounds can rank policies the opposite way (MetaSD, arXiv 2604.05417, Lemma 9).

    python -m studies.theory.proxy [--pictures docs/pictures]

Block divergence averages 1 - TV over the whole draft, including positions after the first rejection. A
drafter with a poor first token and good later ones has a higher block divergence than one that starts well
and gets worse, and commits fewer tokens per round. Every round here is independent of the ones before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from draftwise.policies.learners.ucb import UCB1
from studies.common.command import pictures, start
from studies.theory.enumeration import Chain, History, rounds

PAGE = "docs/explanation/theory.md"

BEST, LATE, EARLY = "best", "good late", "good early"
OVERLAPS = {  # 1 - TV at each draft position
    BEST: (0.95, 0.95, 0.95, 0.95, 0.95),
    LATE: (0.5, 0.8, 0.8, 0.8, 0.8),
    EARLY: (0.95, 0.9, 0.6, 0.3, 0.1),
}
Values = NDArray[np.float64]


def divergence(name: str) -> float:
    """The block divergence of a round, the same in every round."""
    return sum(OVERLAPS[name]) / len(OVERLAPS[name])


@cache
def chunks(name: str) -> Values:
    """By enumeration: entry n is the probability of n tokens in a round, the target's own included."""
    p, never = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    overlaps = OVERLAPS[name]

    def acceptance(history: History) -> Values:
        return overlaps[len(history)] * p + (1.0 - overlaps[len(history)]) * never

    out = np.zeros(len(overlaps) + 2)
    for tokens, prob in rounds(lambda history: p, Chain(acceptance, len(overlaps)), ()).items():
        out[len(tokens)] += prob
    return out


def length(name: str) -> float:
    """Mean tokens per round."""
    acceptance = chunks(name)
    return float(acceptance @ np.arange(len(acceptance)))


def mean_rounds(name: str, first: int, tokens: int) -> float:
    """Mean rounds for a text when `name` plays the `first` of them and the best drafter all others."""
    needed = _one_more(chunks(BEST), None, tokens)
    for _ in range(first):
        needed = _one_more(chunks(name), needed, tokens)
    return float(needed[tokens])


def _one_more(acceptance: Values, then: Values | None, tokens: int) -> Values:
    """Mean rounds for 0 to `tokens` tokens: one by `acceptance`, then `then` for the rest (None: itself)."""
    out = np.zeros(tokens + 1)
    rest = out if then is None else then
    for b in range(1, tokens + 1):
        out[b] = 1.0 + sum(
            float(acceptance[n] * rest[b - n]) for n in range(1, min(b, len(acceptance) - 1) + 1)
        )
    return out


def regrets(name: str, first: int, tokens: int) -> tuple[float, float]:
    """Regret in block divergence, and in rounds, of `first` rounds of `name` before the best drafter."""
    lost = mean_rounds(name, first, tokens) - mean_rounds(BEST, 0, tokens)
    return first * (divergence(BEST) - divergence(name)), lost


def learn(reward: str, marks: Sequence[int], names: Sequence[str], *, rng: Random) -> tuple[Values, Values]:
    """UCB1 on one reward, "divergence" or "efficiency": its regret in divergence and in rounds at each mark.

    Regret in rounds is against the arm with the most tokens per round, regret in divergence against the arm
    that has most of it, over as many rounds as were played. `marks` are lengths of the text in tokens.
    """
    learner, everyone = UCB1(len(names)), range(len(names))
    distributions = [np.cumsum(chunks(name)).tolist() for name in names]
    worth = [divergence(name) for name in names]
    longest = max(length(name) for name in names)
    written = played = 0
    earned, out = 0.0, []
    for mark in marks:
        while written < mark:
            arm, chance = learner.choose(everyone, rng)
            u = rng.random()
            tokens = next(
                n
                for n, total in enumerate(distributions[arm])
                if u < total or n == len(distributions[arm]) - 1
            )
            share = (tokens - 1) / (len(distributions[arm]) - 2)
            learner.update(arm, worth[arm] if reward == "divergence" else share, chance)
            written, played, earned = written + tokens, played + 1, earned + worth[arm]
        out.append((played * max(worth) - earned, played - written / longest))
    return np.array(out).T[0], np.array(out).T[1]


def simulated(marks: Sequence[int], texts: int) -> dict[str, tuple[Values, Values]]:
    """Mean regrets of UCB1 on either reward where the drafters are `good late` and `good early`."""
    out = {}
    for reward in ("divergence", "efficiency"):
        runs = [learn(reward, marks, (LATE, EARLY), rng=Random(seed)) for seed in range(texts)]
        out[reward] = (np.mean([r for r, _ in runs], axis=0), np.mean([r for _, r in runs], axis=0))
    return out


def draw(marks: Sequence[int], found: dict[str, tuple[Values, Values]], path: Path) -> None:
    """The regret of the first rounds by both measures, exactly; and two learners, simulated."""
    from studies.common.plot import panels, save

    figure, (left, right) = panels(2)
    for name in (LATE, EARLY):
        points = [regrets(name, first, 200) for first in range(0, 21, 2)]
        left.plot(*zip(*points, strict=True), "o-", ms=4, label=f"0 to 20 rounds {name}")
    left.set(title="Exact", xlabel="regret in block divergence", ylabel="regret in rounds")
    left.legend()
    for (reward, (divergence, lost)), colour in zip(found.items(), ("C0", "C1"), strict=True):
        right.plot(marks, lost, "-", color=colour, label=f"learns from {reward}: rounds")
        right.plot(marks, divergence, "--", color=colour, label=f"learns from {reward}: divergence")
    right.set(xscale="log", yscale="log", title="UCB1, simulated", xlabel="tokens", ylabel="regret")
    right.legend(fontsize=7)
    save(figure, path)


def main() -> int:
    folder = pictures(__doc__, PAGE)
    for name in OVERLAPS:
        print(f"{name:<12} divergence {divergence(name):.3f}, tokens per round {length(name):.3f}")
    print("\ntwenty rounds of one, then the best, for a text of 200 tokens: regret in divergence, in rounds")
    for name in (LATE, EARLY):
        print(f"{name:<12} {regrets(name, 20, 200)[0]:.2f} {regrets(name, 20, 200)[1]:.2f}")
    marks = [100, 200, 500, 1000, 2000, 5000, 10000, 20000]
    found = simulated(marks, 20)
    print(f"\nUCB1 between {LATE} and {EARLY}, tokens {marks}: regret in divergence, in rounds")
    for reward, (earned, lost) in found.items():
        print(f"{reward:<12} {earned.round(1).tolist()}\n{'':<12} {lost.round(1).tolist()}")
    draw(marks, found, folder / "proxy.svg")
    return 0


if __name__ == "__main__":
    start(main)
