"""`draftwise simulate`: how policies learn on simulated texts, without models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from draftwise.errors import UserError

from .bench import draw
from .options import Policies, policy_names
from .progress import progress
from .show import Result, table

if TYPE_CHECKING:
    from draftwise.measure.simulate import Acceptance, Player, SimArm, World

POLICIES = "random,ucb1,metasd-ucb,ucbspec,exp3spec,tapout-seq-ts,hedgespec,linucb"
DRIFTS = ("none", "phases", "texts", "runs")
REWARDS = ("auto", "accepted", "blended", "rate")
BEST, WORST = 0.8, 0.4  # acceptance rates where --chances is not given
LONGEST = 250  # tokens of a draft
MOST = 500_000_000  # arms times tokens of all texts, which are held at once: about 2 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Acceptance rates, the cost of drafts, and the delay of feedback."""

    drafters: Annotated[
        int, Option(help="Number of drafters; their acceptance rates fall from 0.8 to 0.4.", min=1, max=1000)
    ] = 3
    chances: Annotated[
        str, "The acceptance rate of each drafter instead, as 0.8,0.6; / separates phases."
    ] = ""
    lengths: Annotated[str, "Draft lengths; an arm is a drafter and a length, 0 is plain decoding."] = "5"
    costs: Annotated[str, "Cost of a draft token in target passes: one number, or one for each drafter."] = (
        "0.05"
    )
    drift: Annotated[
        str,
        "none; phases: the rates change every --every tokens; texts: with each text; runs: easy and "
        "hard stretches of random length, --every tokens on average.",
    ] = "none"
    every: Annotated[int, Option(help="Tokens between two changes.", min=1, max=10_000_000)] = 500
    tokens: Annotated[int, Option(help="Tokens in a text.", min=1, max=10_000_000)] = 2000
    texts: Annotated[int, Option(help="Number of texts, one after another.", min=1, max=1_000_000)] = 1
    delay: Annotated[
        int, Option(help="Rounds between a decision and its feedback.", min=0, max=1_000_000)
    ] = 0
    reward: Annotated[
        str,
        "Reward of all bandits: accepted, blended (TapOut), rate (tokens per second), or auto "
        "(accepted for drafts of one length, else rate, as in the catalogue).",
    ] = "auto"

    def phases(self) -> list[list[float]]:
        """The acceptance rates in each phase; with drift, each drafter is the best one in one phase."""
        if self.chances:
            phases = [numbers("--chances", phase, high=1.0) for phase in self.chances.split("/")]
            if len({len(phase) for phase in phases}) > 1:
                raise UserError(f"--chances {self.chances}: give the same number of drafters in every phase")
            return phases
        step = (BEST - WORST) / max(self.drafters - 1, 1)
        first = [BEST - step * i for i in range(self.drafters)]
        turns = self.drafters if self.drift in ("phases", "texts") else 2 if self.drift == "runs" else 1
        return [first[-i:] + first[:-i] if i else first for i in range(turns)]

    def acceptance(self) -> Acceptance:
        from draftwise.measure.simulate import Runs, Stationary, Switching

        phases = self.phases()
        if self.drift not in DRIFTS:
            raise UserError(f"--drift {self.drift}: choose from {', '.join(DRIFTS)}")
        if (self.drift == "none") != (len(phases) == 1):
            raise UserError(
                f"--drift {self.drift} with {len(phases)} phases: separate phases by / for a drift"
            )
        if self.drift == "none":
            return Stationary(phases[0])
        if self.drift == "runs":
            if len(phases) != 2:
                raise UserError(f"--drift runs with {len(phases)} phases: give two, easy/hard")
            return Runs(phases[0], phases[1], easy_run=self.every, hard_run=self.every)
        return Switching(phases, every=self.every if self.drift == "phases" else 0)

    def arms(self) -> tuple[SimArm, ...]:
        """All pairs of drafter and length, with their costs; length 0 is one arm."""
        from draftwise.measure.simulate import SimArm

        count, costs = len(self.phases()[0]), numbers("--costs", self.costs)
        if len(costs) not in (1, count):
            raise UserError(f"--costs {self.costs}: give one number, or one for each of {count} drafters")
        values = numbers("--lengths", self.lengths, high=LONGEST)
        lengths = [int(n) for n in values]
        if lengths != values:
            raise UserError(f"--lengths {self.lengths}: give whole numbers")
        costs = costs * count if len(costs) == 1 else costs
        drafting = [SimArm(d, n, costs[d]) for d in range(count) for n in lengths if n]
        return tuple([SimArm(0, 0)] if 0 in lengths else []) + tuple(drafting)

    def world(self) -> World:
        from draftwise.measure.simulate import World, by_rate, by_reward
        from draftwise.policies.recorders.bandit import blended

        if self.reward not in REWARDS:
            raise UserError(f"--reward {self.reward}: choose from {', '.join(REWARDS)}")
        arms = self.arms()
        if (size := len(arms) * self.tokens * self.texts) > MOST:
            raise UserError(
                f"--tokens {self.tokens} in --texts {self.texts} for {len(arms)} arms (--drafters times "
                f"--lengths) are {size:,}, more than fit into memory: give at most {MOST:,} in all"
            )
        auto = "accepted" if len({arm.length for arm in arms}) == 1 else "rate"
        reward = auto if self.reward == "auto" else self.reward
        worth = {"accepted": None, "blended": by_reward(arms, blended), "rate": by_rate(arms)}[reward]
        return World(
            acceptance=self.acceptance(),
            arms=arms,
            tokens=(self.tokens,) * self.texts,
            delay=self.delay,
            worth=worth,
        )


def simulate(
    world: WorldOptions,
    policies: Policies = POLICIES,
    seeds: Annotated[int, Option(help="Number of random seeds.", min=1, max=100_000)] = 20,
    out: Annotated[
        Path | None,
        Option(help="Also write simulation.json, a report and pictures to this folder.", metavar="DIR"),
    ] = None,
) -> Result:
    """Simulate how policies learn: regret against the best arm, and how often it was played.

    Simulated are a policy's learner and its scope; what it would read from a model is not.

    Examples:
    draftwise simulate
    draftwise simulate --policies ucb1,exp3spec --chances 0.8,0.5/0.5,0.8 --drift phases --out simulated
    """
    from draftwise.measure.simulate import study
    from draftwise.measure.writing import make_folder

    simulated = world.world()
    players = [player(name, simulated.arms) for name in policy_names(policies)]
    if out:
        make_folder(out)
    with progress("simulating") as tell:
        results = study(players, simulated, seeds=seeds, progress=partial(tell, "seeds"))
    settings = asdict(world) | {"chances": world.phases(), "seeds": seeds}
    results = {"settings": settings | {"policies": [p.name for p in players]}} | results
    if out:
        _write(results, out)
    return Result(results, partial(_print, results, out))


def numbers(option: str, text: str, *, high: float = inf) -> list[float]:
    """Comma-separated numbers."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: give comma-separated numbers, such as 0.8,0.6") from None
    if not all(isfinite(x) and 0.0 <= x <= high for x in values):
        limits = f"from 0 to {high:g}" if isfinite(high) else "of at least 0"
        raise UserError(f"{option} {text}: give finite numbers {limits}")
    return values


def player(name: str, arms: Sequence[SimArm]) -> Player:
    """The learner of a policy of the catalogue."""
    from draftwise.measure.simulate import ByLastReward, Player
    from draftwise.policies.bandit import ContextPolicy
    from draftwise.policies.catalogue import method

    policy: Any = method(name, ["drafter-1", "drafter-2"]).policy
    if isinstance(policy, ContextPolicy):
        strength = policy.learner.strength
        return Player(name, lambda n: ByLastReward(n, strength=strength), keep=True)
    if not hasattr(policy, "new_learner") or len(policy.arms) < 2:
        raise UserError(f"--policies {name}: it has no learner over arms to simulate; leave it out")
    if getattr(policy, "play", "sample") != "sample":
        raise UserError(f"--policies {name}: simulated learners sample their arm; leave play=best out")
    return Player(name, policy.new_learner, keep=not policy.per_query)


def _write(results: dict[str, Any], out: Path) -> None:
    from draftwise.measure import machine
    from draftwise.writing import write_json

    write_json(out / "simulation.json", {"run": machine.run(), "machine": machine.describe()} | results)
    draw(out)


def _print(results: dict[str, Any], out: Path | None) -> None:
    """The same two tables as in the report."""
    from draftwise.measure.report import tables

    for one in (tables.policies(results), tables.simulated_arms(results)):
        table(one.heads, [[cell.text for cell in row] for row in one.rows])
        print()
    print("±: one standard error over the seeds")
    if out:
        print(f"\n{out / 'report.html'}")
