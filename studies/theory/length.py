"""Stopping-time regret against the length of the text: for which learners it grows logarithmically.

    python -m studies.theory.length [--pictures docs/pictures]

Stationary arms with a clear best one, then arms whose gap shrinks as the text grows, the hardest case of each
length, then a text constructed against UCB1.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.simulate import SimArm, Stationary, punish
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbspec import UCBSpec
from draftwise.policies.learners.ucbtuned import UCBTuned
from studies.common.command import pictures, start
from studies.common.plot import panels, save
from studies.theory.measure import Makers, Vector, doublings, exponent, fit, regrets, spread

PAGE = "docs/explanation/theory.md"

ARMS = tuple(SimArm(i) for i in range(4))
CLEAR = Stationary([0.8, 0.6, 0.5, 0.4])

CONFIDENT: Makers = {"UCB1": UCB1, "UCBSpec": UCBSpec, "UCB-Tuned": UCBTuned}
PUBLISHED: Makers = {"MetaSD-UCB, 0.01": lambda arms: UCB1(arms, strength=0.01)}
LOSSES: Makers = {"EXP3Spec": EXP3Spec}
CAUGHT: Makers = {"UCB1": UCB1} | LOSSES


def on_clear_arms(makers: Makers, marks: Sequence[int], seeds: int) -> dict[str, Vector]:
    """Regret at each mark, shape (seeds, marks), where the best drafter has a chance of 0.8, the next 0.6."""
    return regrets(makers, CLEAR, ARMS, marks, seeds=range(seeds))


def on_hard_arms(makers: Makers, marks: Sequence[int], texts: int) -> dict[str, Vector]:
    """Mean regret at each mark, where the best arm's lead is 3 / sqrt(tokens), over at least six texts each.

    The lead shrinks with the length so that no learner can tell the arms apart much before the end: the
    minimax case (Bubeck and Cesa-Bianchi 2012, chapter 3), in which regret is at least of order sqrt(B).
    Shorter texts are more in number, 200 at most; `texts` / 4 is the number of the longest.
    """
    found: dict[str, list[float]] = {name: [] for name in makers}
    for mark in marks:
        acceptance = Stationary([0.6 + 3.0 / mark**0.5, 0.6, 0.6, 0.6])
        seeds = range(max(6, min(200, texts * marks[-1] // (4 * mark))))
        for name, regret in regrets(makers, acceptance, ARMS, [mark], seeds=seeds).items():
            found[name].append(float(regret.mean()))
    return {name: np.array(regret) for name, regret in found.items()}


def against(makers: Makers, marks: Sequence[int]) -> dict[str, Vector]:
    """Regret at each mark, shape (1, marks), on the text that the adversary of UCB1 writes."""
    acceptance = punish(UCB1(len(ARMS)), marks[-1] + 5, rng=Random(0))
    return regrets(makers, acceptance, ARMS, marks, seeds=[0])


def locked(regret: Vector, mark: int) -> float:
    """The share of texts with a loss above a twentieth of a round per token: stuck on a wrong arm."""
    return float(np.mean(regret[:, -1] > 0.05 * mark))


def report(marks: Sequence[int], regret: dict[str, Vector]) -> None:
    """One line per learner: regret with its standard error, and the fits from 4096 tokens on."""
    late = [i for i, mark in enumerate(marks) if mark >= 4096]
    x = [marks[i] for i in late]
    for name, values in regret.items():
        mean, y = values.mean(axis=0), values.mean(axis=0)[late]
        r2 = "  ".join(f"{shape} {fit(x, y, shape)[0]:.4f}" for shape in ("log", "sqrt", "linear"))
        error = spread(values)[-1]
        print(f"{name:18} {mean[late[0]]:9.1f} {mean[-1]:10.1f} +-{error:6.1f}   R2 {r2}", end="")
        print(f"   {fit(x, y, 'log')[1]:.1f} per ln B", end="")
        print(f"   exponent {exponent(x, y):.2f}   on a wrong arm {locked(values, marks[-1]):.0%}")


def draw(
    marks: Sequence[int], clear: dict[str, Vector], short: Sequence[int], hard: dict[str, Vector]
) -> Any:
    """Two panels: clear arms on a logarithmic length, the hardest arms on two logarithmic axes."""
    figure, (left, right) = panels(2, height=3.4)
    for name, values in clear.items():
        left.plot(marks, values.mean(axis=0), label=name, linestyle="--" if name in PUBLISHED else "-")
    left.set_xscale("log", base=2)
    left.set(ylim=(0, 420), xlabel="tokens B", ylabel="rounds more than the best arm")
    left.set_title("A clear best arm")
    for mean in hard.values():
        right.plot(short, mean)
    root = [2.0 * mark**0.5 for mark in short]
    right.plot(short, root, color="black", linewidth=0.8, linestyle=":", label="2 sqrt(B)")
    right.set_xscale("log", base=2)
    right.set(yscale="log", xlabel="tokens B")
    right.set_title("A lead of 3 / sqrt(B)")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    """Print the fits and draw the picture."""
    folder = pictures(__doc__, PAGE)
    marks, short = doublings(9, 20), doublings(9, 16)
    clear = on_clear_arms(CONFIDENT | LOSSES, marks, seeds=12)
    greedy = on_clear_arms(PUBLISHED, marks[:-3], seeds=100)
    print(f"clear arms: regret at 4096 and {marks[-1]} tokens, 12 texts")
    report(marks, clear)
    print(f"clear arms: regret at 4096 and {marks[-4]} tokens, 100 texts")
    report(marks[:-3], greedy)
    hard = on_hard_arms(CONFIDENT | LOSSES, short, texts=24)
    print(f"hardest arms, {short[0]} to {short[-1]} tokens")
    for name, mean in hard.items():
        print(f"{name:18} {mean.round(1)}   exponent {exponent(short, mean):.2f}")
    print("the text against UCB1")
    for name, values in against(CAUGHT, short).items():
        print(f"{name:18} {values[0].round(0)}")
    shorter = {name: np.pad(v, ((0, 0), (0, 3)), constant_values=np.nan) for name, v in greedy.items()}
    save(draw(marks, clear | shorter, short, hard), folder / "regret-length.svg")


if __name__ == "__main__":
    start(main)
