"""Seconds for a million simulated rounds with every learner: `python -m studies.theory.million`.

Seven arms, texts of 65536 tokens sampled when needed, the learner kept from text to text. Seconds are those
of the process on one core; the spread is that of the five fifths of the million, each times five.
"""

from __future__ import annotations

from random import Random
from time import process_time
from typing import Any

from draftwise.measure.simulate import ByLastReward, SimArm, Stationary, simulate
from studies.common.command import command, start
from studies.common.learners import BANDITS, EXPERTS

PAGE = "docs/explanation/theory.md"

LEARNERS: tuple[Any, ...] = (*BANDITS, ByLastReward, *EXPERTS)
CHANCES = (0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3)


def fifths(learner: Any, rounds: int, arms: int, *, tokens: int = 65_536) -> list[float]:
    """Seconds of each fifth of so many rounds or slightly more, scaled to the exact number."""
    acceptance, rng = Stationary((CHANCES * arms)[:arms]), Random(0)
    taken = []
    for _ in range(5):
        start, done = process_time(), 0
        while done < rounds / 5:
            done += simulate(learner, acceptance, [SimArm(i) for i in range(arms)], [tokens], rng=rng).rounds
        taken.append((process_time() - start) * rounds / 5 / done)
    return taken


def main() -> None:
    """Print one line per learner."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--arms", type=int, default=7)
    options = parser.parse_args()
    for kind in LEARNERS:
        taken = fifths(kind(options.arms), options.rounds, options.arms)
        low, high = 5 * min(taken), 5 * max(taken)
        print(f"{kind.__name__:20} {sum(taken):6.1f} s   ({low:.1f} to {high:.1f})", flush=True)


if __name__ == "__main__":
    start(main)
