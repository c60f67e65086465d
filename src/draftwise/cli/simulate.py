"""`draftwise simulate`: how policies learn on simulated texts, without any model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from draftwise.errors import UserError

from . import show
from .options import AsJson, with_options
from .tables import table

if TYPE_CHECKING:
    from draftwise.measure.simulate import SimArm
    from draftwise.measure.simulate.distributions import Law
    from draftwise.measure.simulate.study import Player, World

POLICIES = "random,ucb1,metasd-ucb,ucbspec,exp3spec,tapout-seq-ts,hedgespec,linucb"
DRIFTS = ("none", "phases", "texts", "runs")
REWARDS = ("accepted", "blended", "rate")
BEST, WORST = 0.8, 0.4  # chances of drafters that are not named
SECONDS_UNSEEN = 2.0
LONGEST = 1000  # tokens of a draft
SEEDS = 100_000
LIMITS = {
    "drafters": (1, 1000),
    "every": (1, 10_000_000),
    "tokens": (1, 10_000_000),
    "texts": (1, 1_000_000),
    "delay": (0, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Who is right where, what drafting costs, and when feedback comes."""

    drafters: Annotated[int, Option(help="How many drafters, right at chances from 0.8 down to 0.4.")] = 3
    chances: Annotated[
        str,
        Option(help="Instead: each drafter's chance to be right, as 0.8,0.6; further phases after a /."),
    ] = ""
    lengths: Annotated[str, Option(help="Draft lengths, 0 = none; an arm is a drafter and a length.")] = "5"
    costs: Annotated[
        str, Option(help="Seconds a draft token, one for all or one a drafter; the target's pass takes 1.")
    ] = "0.05"
    drift: Annotated[
        str,
        Option(
            help="none; phases: the chances change every --every tokens; texts: from text to text; runs: "
            "easy and hard stretches of random length, --every on average."
        ),
    ] = "none"
    every: Annotated[int, Option(help="Tokens between two changes.")] = 500
    tokens: Annotated[int, Option(help="Tokens of a text.")] = 2000
    texts: Annotated[int, Option(help="Texts, one after the other.")] = 1
    delay: Annotated[int, Option(help="Rounds that are chosen before a round's feedback comes.")] = 0
    reward: Annotated[
        str, Option(help="accepted, blended (TapOut's) or rate (tokens per second), for all bandits.")
    ] = "accepted"

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise UserError(f"--{name} {value}: give {least} to {most:,}")

    def phases(self) -> list[list[float]]:
        """The chances of the drafters in each phase; with drift, one phase for each drafter to be best."""
        if self.chances:
            found = [numbers("--chances", phase, high=1.0) for phase in self.chances.split("/")]
            if len({len(phase) for phase in found}) > 1:
                raise UserError(f"--chances {self.chances}: give every phase as many drafters")
            return found
        step = (BEST - WORST) / max(self.drafters - 1, 1)
        first = [BEST - step * i for i in range(self.drafters)]
        turns = self.drafters if self.drift in ("phases", "texts") else 2 if self.drift == "runs" else 1
        return [first[-i:] + first[:-i] if i else first for i in range(turns)]

    def law(self) -> Law:
        """The acceptance law."""
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
        """Drafters times lengths, with what they cost; length 0 is one arm."""
        from draftwise.measure.simulate import SimArm

        count, costs = len(self.phases()[0]), numbers("--costs", self.costs)
        if len(costs) not in (1, count):
            raise UserError(f"--costs {self.costs}: give one number, or one for each of {count} drafters")
        asked = numbers("--lengths", self.lengths, high=LONGEST)
        lengths = [int(n) for n in asked]
        if lengths != asked:
            raise UserError(f"--lengths {self.lengths}: write whole numbers")
        costs = costs * count if len(costs) == 1 else costs
        drafting = [SimArm(d, n, costs[d]) for d in range(count) for n in lengths if n]
        return tuple([SimArm(0, 0)] if 0 in lengths else []) + tuple(drafting)

    def world(self) -> World:
        """All of it."""
        from draftwise.measure.simulate import by_rate, by_reward
        from draftwise.measure.simulate.study import World
        from draftwise.policies.recorders.rewards import blended

        if self.reward not in REWARDS:
            raise UserError(f"--reward {self.reward}: choose from {', '.join(REWARDS)}")
        arms = self.arms()
        worth = {"accepted": None, "blended": by_reward(arms, blended), "rate": by_rate(arms)}[self.reward]
        return World(
            law=self.law(), arms=arms, tokens=(self.tokens,) * self.texts, delay=self.delay, worth=worth
        )


@with_options
def simulate(
    world: WorldOptions,
    policies: Annotated[
        str, Option(help="Who learns, with commas between: names of `draftwise policies`.")
    ] = POLICIES,
    seeds: Annotated[int, Option(help="Repeat with so many seeds.")] = 20,
    out: Annotated[
        Path | None, Option(help="Also write simulation.json, report.html and pictures.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let policies learn on simulated texts: regret against the best arm, and how often it was played.

    A policy brings its learner and its scope; what it would read from a model is not simulated.
    """
    from draftwise.measure.simulate.study import study

    if not 1 <= seeds <= SEEDS:
        raise UserError(f"--seeds {seeds}: give 1 to {SEEDS:,}")
    simulated = world.world()
    players = [player(name, simulated.arms) for name in names(policies)]
    with progress() as tell:
        found = study(players, simulated, seeds=seeds, tell=tell)
    settings = asdict(world) | {"chances": world.phases(), "seeds": seeds}
    found = {"settings": settings | {"policies": [p.name for p in players]}} | found
    if out:
        _write(found, out)
    if as_json:
        show.dump(found)
    else:
        _print(found)
        if out:
            print(f"\n{out / 'report.html'}")


def names(policies: str) -> list[str]:
    """The policies as a list.

    Raises:
        UserError: a name is empty or stands twice.
    """
    found = [name.strip() for name in policies.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise UserError(f"--policies {policies!r}: write A,B, each once")
    return found


def numbers(option: str, text: str, *, low: float = 0.0, high: float = inf) -> list[float]:
    """Numbers with commas between.

    Raises:
        UserError: one is no number, or lies outside `low` to `high`.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: write numbers with commas, such as 0.8,0.6") from None
    if not all(isfinite(x) and low <= x <= high for x in found):
        limits = f"from {low:g} to {high:g}" if isfinite(high) else f"of at least {low:g}"
        raise UserError(f"{option} {text}: give finite numbers {limits}")
    return found


def player(name: str, arms: Sequence[SimArm]) -> Player:
    """The learner of a policy of the catalogue.

    Raises:
        UserError: there is no such policy, or it has nothing to learn.
    """
    from draftwise.measure.simulate import ByLastReward
    from draftwise.measure.simulate.study import Player
    from draftwise.policies.catalogue import method
    from draftwise.policies.contextual import ContextPolicy

    policy: Any = method(name, ["drafter-1", "drafter-2"]).policy
    if isinstance(policy, ContextPolicy):
        strength = policy.learner.strength
        return Player(name, lambda n: ByLastReward(n, strength=strength), keep=True)
    if not hasattr(policy, "new_learner") or len(policy.arms) < 2:
        raise UserError(
            f"--policies {name}: it has no learner over arms that could be simulated; leave it out"
        )
    if getattr(policy, "play", "sample") != "sample":
        raise UserError(f"--policies {name}: simulated learners draw their arm; leave play=best out")
    return Player(name, policy.new_learner, keep=not policy.per_query)


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Seeds done, on a terminal and once it takes long."""
    start = monotonic()
    with show.console(stderr=True).status("") as status:
        status.stop()

        def tell(done: int, total: int) -> None:
            if monotonic() - start > SECONDS_UNSEEN and sys.stderr.isatty():
                left = (monotonic() - start) / max(done, 1) * (total - done)
                status.update(f"seed {done} of {total}, {left:.0f} s left")
                status.start()

        yield tell


def _write(found: dict[str, Any], out: Path) -> None:
    import json

    from draftwise.measure import machine
    from draftwise.measure.report import write_report

    found = {"run": machine.run(), "machine": machine.describe()} | found
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.json").write_text(json.dumps(found), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; name a folder that can be written") from None
    write_report(out)


def _print(found: dict[str, Any]) -> None:
    """The same two tables as in the report."""
    from draftwise.measure.report import tables

    for one in (tables.policies(found), tables.simulated_arms(found)):
        table(one.heads, [[cell.text for cell in row] for row in one.rows])
        print()
