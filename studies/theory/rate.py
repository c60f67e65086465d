"""Tokens lost against the best arm by a learner that prices seconds at the rate observed so far.

    python -m studies.theory.rate [--pictures docs/pictures]

Arms are drafters and lengths, and no draft. Feedback shows the outcome of every arm in every round, some
rounds late; the learner plays the arm with the most tokens minus rate times seconds, by the means so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.common.command import add_pictures, command, start
from studies.common.plot import panels, save

PAGE = "docs/explanation/auto.md"

LENGTHS = (1, 2, 4, 8)
CLEAR = ((0.8, 0.04), (0.6, 0.02), (0.3, 0.0))
"""Of each drafter the chance that a token is right, and its seconds beside a pass of 1 second."""
PASS = 0.01  # seconds more for each token in the pass

Vector = NDArray[np.float64]
Rate = Callable[[float, float, float, float], tuple[float, float]]
"""Tokens and seconds so far, and those of the last round: the inputs of the current rate."""


def total(tokens: float, seconds: float, more: float, took: float) -> tuple[float, float]:
    """The rate of all rounds."""
    return tokens + more, seconds + took


def lately(tokens: float, seconds: float, more: float, took: float) -> tuple[float, float]:
    """The rate of some ten rounds, as in `auto`."""
    return 0.85 * tokens + more, 0.85 * seconds + took


def rounds(drafters: Sequence[tuple[float, float]], n: int, seed: int) -> tuple[Vector, Vector]:
    """Tokens of every arm in every round, shape (n, arms), and its seconds; the first arm drafts nothing."""
    rng = np.random.default_rng(seed)
    tokens, seconds = [np.ones(n)], [1.0]
    for chance, step in drafters:
        right = rng.geometric(1.0 - chance, n) - 1
        for length in LENGTHS:
            tokens.append(1.0 + np.minimum(right, length))
            seconds.append(1.0 + (step + PASS) * length)
    return np.stack(tokens, 1), np.array(seconds)


def best_arm(drafters: Sequence[tuple[float, float]]) -> int:
    """The arm of the highest rate in the mean."""
    rates = [1.0]
    for chance, step in drafters:
        for length in LENGTHS:
            expected = sum(chance**k for k in range(length + 1))
            rates.append(expected / (1.0 + (step + PASS) * length))
    return int(np.argmax(rates))


def play(tokens: Vector, seconds: Vector, rate: Rate | float, *, delay: int = 1) -> Vector:
    """Tokens and seconds after every round, shape (rounds, 2); `rate` may be known from the start."""
    won, spent, known, price = 0.0, 0.0, np.zeros(tokens.shape[1]), 1.0
    seen, record = (0.0, 0.0), np.zeros((len(tokens), 2))
    for t in range(len(tokens)):
        if t >= delay:
            known += tokens[t - delay]
        # one round in which every arm wins half of what it may, so that none is ruled out unseen
        mean = (known + 0.5 * (seconds > 1.0) + 1.0) / (max(0, t - delay + 1) + 1.0)
        arm = int(np.argmax(mean - price * seconds))
        won, spent = won + tokens[t, arm], spent + seconds[arm]
        record[t] = won, spent
        if callable(rate):
            seen = rate(*seen, tokens[t, arm], seconds[arm])
            price = max(seen[0] / seen[1], 1.0)
        else:
            price = rate
    return record


def lost(
    rate: Rate | float,
    drafters: Sequence[tuple[float, float]],
    marks: Sequence[int],
    *,
    delay: int = 1,
    seeds: int = 12,
) -> Vector:
    """Tokens that the best arm would have written in the same time, less those written: (seeds, marks).

    It is the best in the mean, and its rate is that of the very rounds that were played.
    """
    best, at, losses = best_arm(drafters), np.array(marks) - 1, []
    for seed in range(seeds):
        tokens, seconds = rounds(drafters, marks[-1], seed)
        record = play(tokens, seconds, rate, delay=delay)[at]
        its = tokens[:, best].cumsum()[at] / ((at + 1) * seconds[best])
        losses.append(its * record[:, 1] - record[:, 0])
    return np.array(losses)


def exponent(rounds: Sequence[int], losses: Vector) -> float:
    """The slope of ln losses against ln rounds: 1 is linear growth, 1/2 the square root, 0 none."""
    return float(np.polyfit(np.log(np.asarray(rounds)), np.log(losses), 1)[0])


def spread(values: Vector) -> Vector:
    """The standard error of the mean over seeds, the first axis."""
    error: Vector = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return error


def draw(marks: Sequence[int], curves: Mapping[str, Vector], gaps: Sequence[float], by_gap: Vector) -> Any:
    """Two panels: loss against rounds, and at the last of them against the gap between two drafters."""
    figure, (left, right) = panels(2, height=3.2)
    for name, values in curves.items():
        left.errorbar(marks, values.mean(axis=0), spread(values), label=name)
    left.set_xscale("log", base=2)
    left.set(xlabel="rounds", ylabel="tokens lost")
    left.set_title("Three drafters, four lengths, or none")
    right.plot(gaps, by_gap, marker="o")
    right.set(xlabel="one drafter's lead in chance", ylabel="tokens lost", ylim=(0, None))
    right.set_title(f"Two drafters, {marks[-1]} rounds")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    parser = command(__doc__, PAGE)
    add_pictures(parser)
    folder, marks = parser.parse_args().pictures, [2**k for k in range(6, 15)]
    tokens, seconds = rounds(CLEAR, 1 << 18, 1)
    highest = float((tokens.mean(0) / seconds).max())
    ways: dict[str, tuple[Rate | float, int]] = {
        "rate known": (highest, 1),
        "rate of all rounds": (total, 1),
        "rate of all rounds, 32 rounds late": (total, 32),
        "rate of ten rounds": (lately, 1),
    }
    curves = {name: lost(rate, CLEAR, marks, delay=delay) for name, (rate, delay) in ways.items()}
    for name, values in curves.items():
        mean = values.mean(axis=0)
        share = mean[-1] / (highest * marks[-1] * seconds[best_arm(CLEAR)])
        grows = exponent(marks[4:], np.maximum(mean[4:], 1e-9))
        print(f"{name:36} {mean.round(1)} +-{spread(values)[-1]:.1f}  {share:.2%}  exponent {grows:.2f}")
    gaps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # between two free drafters, in the chance of a right token
    by_gap = np.array([lost(total, ((0.7, 0.0), (0.7 - gap, 0.0)), marks[-1:]).mean() for gap in gaps])
    print("by gap", dict(zip(gaps, by_gap.round(1).tolist(), strict=True)))
    save(draw(marks, curves, gaps, by_gap), folder / "rate.svg")


if __name__ == "__main__":
    start(main)
