"""Rounds needed to tell two drafters apart: block divergence against block efficiency, on the bundled models.

    python -m studies.theory.divergence [--prompts 170] [--new-tokens 64] [--pictures docs/pictures]

MetaSD (arXiv 2604.05417) rewards a round with its block divergence, the mean of 1 - TV between the raw
distributions of target and drafter over the drafted tokens, in place of its block efficiency, accepted over
drafted. Its Theorem 1 compares R = gap^2 / max(variance) of two drafters: the larger R, the fewer rounds tell
their means apart. Here every round has a random drafter, so all drafters are measured on the same texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, Graders, RoundRecord, Target
from draftwise.core.sampling import Sampling
from studies.common.command import add_pictures, command, start

PAGE = "docs/explanation/theory.md"

LENGTH = 5  # MetaSD's draft length
ROUNDS = (1, 2, 5, 10, 20, 50, 100, 200)
Values = NDArray[np.float64]


class Draw:
    """A policy that samples a drafter for every round and learns nothing."""

    reads_hints = False

    def __init__(self, drafters: Iterable[str], length: int) -> None:
        self.arms = tuple(Arm(name, length) for name in drafters)

    def choose(self, context: Context, rng: Random) -> Decision:
        return Decision(rng.randrange(len(self.arms)), 1.0 / len(self.arms))

    def learn(self, feedback: Feedback) -> None: ...

    def close(self, request: int) -> None: ...


class Both:
    """A recorder that keeps both rewards of every round: (arm, divergence, efficiency)."""

    reads = frozenset({"overlap", "rows"})

    def __init__(self) -> None:
        self.rounds: list[tuple[int, float, float]] = []

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        for seen in batch:
            known = seen.outcome
            if not known.censored:
                self.rounds.append((known.arm, known.overlap, known.accepted / known.drafted))
        return [Feedback(seen.request.id, seen.decision) for seen in batch]

    def close(self, request: Request) -> Sequence[Feedback]:
        return ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two drafters under one reward, the better by block efficiency first."""

    better: str
    worse: str
    gap: float
    variance: float

    @property
    def r(self) -> float:
        """MetaSD's R = gap^2 / max(variance); 0 where the reward puts them the wrong way round."""
        if self.gap <= 0.0:
            return 0.0
        return self.gap**2 / self.variance if self.variance else float("inf")

    @property
    def needed(self) -> float:
        """1 / R, which the rounds needed to tell the two apart grow with."""
        return 1.0 / self.r if self.r else float("inf")


Rewards = dict[str, dict[str, Values]]


def measure(
    target: Target,
    drafters: dict[str, Drafter],
    prompts: Iterable[Sequence[int]],
    sampling: Sampling,
    *,
    length: int = LENGTH,
    batch: int = 1,
) -> Rewards:
    """Both rewards of every full round: reward name -> drafter -> one number per round."""
    recorder = Both()
    loop = Loop(target, drafters, Draw(drafters, length), recorder)
    for round in loop.run(prompts, sampling, batch=batch):
        if round.fault:
            raise RuntimeError(round.fault)
    kept: dict[str, Any] = {"divergence": {}, "efficiency": {}}
    for arm, name in enumerate(drafters):
        rows = np.array([known[1:] for known in recorder.rounds if known[0] == arm]).reshape(-1, 2)
        kept["divergence"][name], kept["efficiency"][name] = rows.T
    return kept


def pairs(rewards: Rewards) -> list[tuple[Pair, Pair]]:
    """Every pair of drafters, under block divergence and under block efficiency."""
    speed = {name: float(values.mean()) for name, values in rewards["efficiency"].items()}
    order = sorted(speed, key=speed.__getitem__, reverse=True)
    return [
        (_pair(rewards["divergence"], a, b), _pair(rewards["efficiency"], a, b))
        for a, b in combinations(order, 2)
    ]


def _pair(values: dict[str, Values], better: str, worse: str) -> Pair:
    a, b = values[better], values[worse]
    return Pair(better, worse, float(a.mean() - b.mean()), float(max(a.var(), b.var())))


def clear(rewards: Rewards, pair: Pair, errors: float = 3.0) -> bool:
    """Return whether the sample itself tells the two apart by block efficiency."""
    a, b = (rewards["efficiency"][name] for name in (pair.better, pair.worse))
    error = float(np.sqrt(a.var() / len(a) + b.var() / len(b)))
    return float(a.mean() - b.mean()) > errors * error


def wrong(
    values: dict[str, Values], pair: Pair, rounds: Sequence[int] = ROUNDS, *, draws: int = 4000, seed: int = 0
) -> Values:
    """The chance that after n rounds each the worse drafter has the higher mean; equal means count half."""
    rng = np.random.default_rng(seed)
    better, worse = (rng.choice(values[name], (draws, max(rounds))) for name in (pair.better, pair.worse))
    ahead = (worse - better).cumsum(axis=1)
    at = np.asarray(rounds) - 1
    tied = np.abs(ahead[:, at]) <= 1e-9
    return np.asarray((ahead[:, at] > 1e-9).mean(axis=0) + 0.5 * tied.mean(axis=0))


def ahead(divergence: Pair, efficiency: Pair) -> float:
    """The ratio of R by block divergence to R by block efficiency."""
    return divergence.r / efficiency.r if efficiency.r else float("inf")


def report(title: str, rewards: Rewards) -> dict[str, Values]:
    """Print the results; the mean probability of a wrong order per reward, over the clear pairs."""
    print(f"\n{title}\n{'drafter':<20}{'rounds':>7}{'BD mean':>9}{'var':>8}{'BE mean':>9}{'var':>8}")
    for name in rewards["divergence"]:
        columns = [rewards[reward][name] for reward in ("divergence", "efficiency")]
        print(f"{name:<20}{len(columns[0]):7}", *(f"{c.mean():8.3f}{c.var():8.4f}" for c in columns))
    known = pairs(rewards)
    told = [(bd, be) for bd, be in known if clear(rewards, be)]
    print(f"{'pair':<40}{'R of BD':>9}{'R of BE':>9}{'ratio':>7}")
    for bd, be in known:
        mark = "" if clear(rewards, be) else "  (not clear)"
        name = f"{bd.better} > {bd.worse}"
        print(f"{name:<40}{bd.r:9.4f}{be.r:9.4f}{ahead(bd, be):7.2f}{mark}")
    ratios = [ahead(bd, be) for bd, be in told or known]
    print(
        f"clear pairs: {len(told)} of {len(known)}; median R of BD over R of BE {np.median(ratios):.2f}; "
        f"above 1 in {sum(r > 1.0 for r in ratios)}, ordered otherwise by BD {sum(r == 0.0 for r in ratios)}"
    )
    chances = {
        reward: np.mean([wrong(values, pair) for pair, _ in told or known], axis=0)
        for reward, values in rewards.items()
    }
    for reward, chance in chances.items():
        line = ", ".join(f"{n}: {c:.3f}" for n, c in zip(ROUNDS, chance, strict=True))
        print(f"wrong order by {reward} after n rounds: {line}")
    return chances


def draw(results: dict[str, tuple[Rewards, dict[str, Values]]], path: Path) -> None:
    """1 / R of every pair under both rewards, and the chance of a wrong order by rounds."""
    from studies.common.plot import panels, save

    figure, (left, right) = panels(2)
    for (title, (rewards, chances)), marker in zip(results.items(), "os", strict=True):
        known = [(bd.needed, be.needed) for bd, be in pairs(rewards) if clear(rewards, be)]
        left.plot([bd for bd, _ in known], [be for _, be in known], marker, ms=4, label=title)
        for reward, line in (("divergence", "-"), ("efficiency", "--")):
            colour = "C0" if marker == "o" else "C1"
            right.plot(ROUNDS, chances[reward], line + marker, ms=3, color=colour, label=f"{reward}, {title}")
    left.plot([1, 100], [1, 100], ":", color="gray", label="as good")
    left.set(xscale="log", yscale="log", title="1 / R = variance / gap², a dot per pair")
    left.set(xlabel="block divergence", ylabel="block efficiency")
    left.legend(loc="lower right")
    right.set(xscale="log", title="The worse of two leads", xlabel="rounds of each", ylabel="chance")
    right.legend(fontsize=7)
    save(figure, path)


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--prompts", type=int, default=170)
    parser.add_argument("--new-tokens", type=int, default=64)
    add_pictures(parser)
    options = parser.parse_args()
    results = {}
    for title, temperature in (("temperature 1", 1.0), ("greedy", 0.0)):
        rewards = on_the_zoo(options.prompts, options.new_tokens, temperature)
        results[title] = rewards, report(title, rewards)
    draw(results, options.pictures / "divergence.svg")
    return 0


def on_the_zoo(prompts: int, new_tokens: int, temperature: float) -> Rewards:
    """The bundled drafters on Spec-Bench prompts of every category."""
    from draftwise import Decoder
    from draftwise.data import spec_bench
    from draftwise.models.zoo import list_zoo

    names = [model.name for model in list_zoo()[1:]]
    decoder = Decoder.from_pretrained("zoo:target", drafters=names, policy="random")
    encoded = [decoder.encode(question.text) for question in spec_bench()]
    short = [ids for ids in encoded if len(ids) < 300]  # reading a long prompt takes the time of many rounds
    chosen = [short[i * len(short) // prompts] for i in range(min(prompts, len(short)))]
    sampling = Sampling(max_new_tokens=new_tokens, temperature=temperature, seed=1, eos=decoder.eos)
    return measure(decoder.loop.target, dict(decoder.loop.pool.drafters), chosen, sampling, batch=8)


if __name__ == "__main__":
    start(main)
