"""The papers' main orderings, on the bundled models: every table of docs/explanation/findings.md.

    python -m studies.speed.findings --trace general/ --specialists specialists/ --costs trace/costs.json

Both traces are replayed under each table of `--costs`, in several orders of their prompts with as many seeds.
An ordering is the claim that one method is faster than another. It is confirmed if the whole 95 % interval of
the ratio of total times lies above 1 (bootstrap over prompts and orders, both methods on the same ones),
reversed if it lies below, and not confirmed if it contains 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random

import numpy as np

from draftwise.core.arms import Arm, Stop
from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.oracle import exactly, fixed
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.adaptive import AdaEDL
from draftwise.policies.arms import tapout_rules
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.compose import bandit
from draftwise.policies.learners.ucb import UCB1
from studies.common.command import command, listed, start
from studies.common.paired import Real, cell, ratio, verdict

PAGE = "docs/explanation/findings.md"

THRESHOLDS = (0.75, 1.0, 1.25)
"""Factors on the threshold of each of TapOut's rules: three arms a rule, around its own."""
APPENDIX = {rule.rule: (rule.threshold,) for rule in tapout_rules()} | {"svip": (0.2, 0.4, 0.6)}
"""TapOut's five rules with the thresholds of its appendix A.2, which has several for SVIP alone."""
PUBLISHED = {
    "max-confidence": (0.4, 0.6, 0.8),
    "svip": (0.3, 0.6, 0.775),
    "adaedl": (0.3, 0.6, 0.9),
} | dict.fromkeys(("svip-difference", "logit-margin"), (0.2,))
"""Thresholds in print: TapOut's own (0.8, 0.6, 0.2, 0.2), Transformers' and Kangaroo's confidence, SVIP's
paper and code, and both ends and the middle of the range that AdaEDL sweeps its first lambda over."""


@dataclass(frozen=True)
class Ran:
    """The results of a method in each order on each prompt, shape (orders, prompts)."""

    seconds: Real
    rounds: Real
    accepted: Real

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens a round."""
        return float(self.accepted.sum() / self.rounds.sum())


@dataclass
class World:
    """A trace under one table of costs."""

    trace: Trace
    costs: Costs
    label: str
    orders: int = 5

    def __post_init__(self) -> None:
        self.stages = [ReplayState(recording) for recording in self.trace]
        models = [name for name, grades in self.trace.header.drafters.items() if grades]
        self.models, self.model = models, models[0]
        self.costs = replace(self.costs, others=self.costs.of(self.model))  # all models are of one size
        self.known: dict[tuple[str, tuple[str, ...]], Ran] = {}

    def run(self, name: str, drafters: Sequence[str] = ()) -> Ran:
        """A policy that `made` knows, over some of the drafters."""
        key = name, tuple(drafters or self.trace.drafters)
        if key not in self.known:
            self.known[key] = self.play(lambda: made(name, key[1], self.trace.header.length))
        return self.known[key]

    def play(self, make: Callable[[], Method]) -> Ran:
        """Every order with a seed and a policy of its own."""
        sums = np.zeros((3, self.orders, len(self.stages)))
        for order in range(self.orders):
            loop = Replay(self.trace, make(), self.costs, seed=order)
            places = list(range(len(self.stages)))
            if order:
                Random(order).shuffle(places)
            for at in places:
                for round in loop.replay(self.stages[at]):
                    sums[:, order, at] += round.seconds.total, 1.0, round.accepted
        return Ran(*sums)

    @cached_property
    def fixed(self) -> dict[tuple[str, int], Real]:
        """Seconds of each prompt with each drafter and length."""
        found = [fixed(stage, self.costs) for stage in self.stages]
        return {arm: np.array([one[arm] for one in found]) for arm in found[0]}

    def best_fixed(self, drafters: Sequence[str], lengths: Sequence[int]) -> tuple[str, Real]:
        """The drafter and length with the least total time in hindsight, with the seconds of each prompt."""
        arms = [arm for arm in self.fixed if arm[0] in drafters and arm[1] in lengths]
        best = min(arms, key=lambda arm: self.fixed[arm].sum())
        return f"{best[0]} {best[1]}", self.fixed[best]

    def exact(self, drafter: str) -> Real:
        """Seconds of DISCO's oracle, which drafts exactly what will be accepted."""
        return np.array([exactly(stage, self.costs)[drafter] for stage in self.stages])


def made(name: str, drafters: Sequence[str], longest: int) -> Method:
    """A policy by its name; `thresholds`, `appendix` and `published` have several thresholds of a rule."""
    around = {rule.rule: [x * rule.threshold for x in THRESHOLDS] for rule in tapout_rules()}
    sets: dict[str, Mapping[str, Sequence[float]]]
    sets = {"thresholds": around, "appendix": APPENDIX, "published": PUBLISHED}
    return many_thresholds(drafters[0], longest, sets[name]) if name in sets else method(name, drafters)


def many_thresholds(drafter: str, longest: int, of: Mapping[str, Sequence[float]]) -> Method:
    """TapOut's UCB1 with several thresholds a rule as arms; each AdaEDL moves, by its own rounds."""
    stops = [Stop(rule, x) for rule, several in of.items() for x in several]
    arms = tuple(Arm(drafter, longest, stop=stop) for stop in stops)
    moving = tuple(AdaEDL(start=s.threshold, form="tapout") if s.rule == "adaedl" else None for s in stops)
    return bandit(arms, UCB1, reward="blended", per_query=False, moving=moving)


@dataclass(frozen=True)
class Side:
    """One side of a claim under one table of costs; `detail` is what differs between tables."""

    name: str
    seconds: Real
    accepted: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Claim:
    """`first` takes less time than `second`, in a paper's words."""

    says: str
    first: Callable[[World], Side]
    second: Callable[[World], Side]


def policy(name: str, who: Callable[[World], Sequence[str]]) -> Callable[[World], Side]:
    """A policy as one side of a claim."""

    def side(world: World) -> Side:
        ran = world.run(name, who(world))
        return Side(f"`{name}`", ran.seconds, ran.mean_accepted)

    return side


def hindsight(who: Callable[[World], Sequence[str]], lengths: Sequence[int] = ()) -> Callable[[World], Side]:
    """The best fixed drafter and length, chosen after the fact."""

    def side(world: World) -> Side:
        name, seconds = world.best_fixed(who(world), lengths or range(1, world.trace.header.length + 1))
        return Side("best fixed", seconds, detail=name)

    return side


def foreseen(world: World) -> Side:
    """DISCO's oracle with the model."""
    return Side("DISCO's oracle", world.exact(world.model))


def model(world: World) -> list[str]:
    """The one model drafter that stop rules need."""
    return [world.model]


def several(world: World, most: int = 99) -> list[str]:
    """All model drafters, or the first of them."""
    return world.models[:most]


def everyone(world: World) -> list[str]:
    """All drafters."""
    return world.trace.drafters


def pair(says: str, first: str, second: str, who: Callable[[World], Sequence[str]]) -> Claim:
    """A claim about two policies over the same drafters."""
    return Claim(says, policy(first, who), policy(second, who))


def tapout(longest: int) -> list[Claim]:
    """TapOut's, arXiv 2511.02017, on one model drafter."""
    seq = f"tapout-seq-ucb1?length={longest}"
    others = {
        "sequence level beats token level (UCB1)": f"tapout-token-ucb1?length={longest}",
        "sequence level beats token level (Thompson)": f"tapout-token-ts?length={longest}",
        "sequence-level UCB1 beats Static-6": "static-6",
        "the blended reward beats the simple one": f"{seq}&reward=simple",
        "UCB1 beats UCB-Tuned": f"tapout-seq-ucbtuned?length={longest}",
        "more thresholds as arms are worse (0.75, 1, 1.25 times its own)": "thresholds",
        "more thresholds as arms are worse (SVIP's 0.2, 0.4, 0.6)": "appendix",
        "more thresholds as arms are worse (those in print)": "published",
    }
    return [pair(says, seq, other, model) for says, other in others.items()]


def metasd() -> list[Claim]:
    """MetaSD's, arXiv 2604.05417, on all model drafters."""
    ucb, wide, other = "metasd-ucb", "metasd-ucb?beta=1", "reward=block-efficiency"
    return [
        pair("UCB beats EXP3", ucb, "metasd-exp3", several),
        pair("UCB beats sequential halving", ucb, "metasd-sh", several),
        pair("block divergence beats block efficiency", ucb, f"{ucb}?{other}", several),
        pair("the same with UCB1's own radius", wide, f"{wide}&{other}", several),
        Claim("UCB beats the best single drafter", policy(ucb, several), hindsight(several, (5,))),
    ]


def banditspec() -> list[Claim]:
    """BanditSpec's, arXiv 2505.15141, on all drafters."""
    best, small = hindsight(everyone, (5,)), policy("ucbspec?strength=0.1", everyone)
    return [
        pair("UCBSpec beats EXP3Spec", "ucbspec", "exp3spec", everyone),
        Claim("UCBSpec beats the best single drafter", policy("ucbspec", everyone), best),
        Claim("with a tenth of its radius", small, best),
    ]


def hedgespec() -> list[Claim]:
    """HedgeSpec's, arXiv 2510.20064, on more and more model drafters, and with less grading."""
    found = []
    for n in (2, 3, 5, 7):
        some = partial(several, most=n)
        found.append(pair(f"HedgeSpec beats UCBSpec, {n} models", "hedgespec", "ucbspec", some))
    return [*found, pair("graded every 16 tokens, all models", "hedgespec?every=16", "ucbspec", several)]


def disco(longest: int) -> list[Claim]:
    """DISCO's, arXiv 2405.04304, on one model drafter."""
    best, heuristic = hindsight(model), policy(f"hf-heuristic?start=5&longest={longest}", model)
    return [
        Claim("the oracle beats the best static length", foreseen, best),
        Claim("the best static length beats the heuristic", best, heuristic),
        Claim("the oracle beats the heuristic", foreseen, heuristic),
    ]


def table(claims: Sequence[Claim], worlds: Sequence[World]) -> Iterator[str]:
    """Claims in Markdown: verdict, the second side's time over the first's, and what both accept a round."""
    costs = "".join(f" {world.label} |" for world in worlds)
    yield f"| ordering | first | second |{costs} accepted |"
    yield "|---|---|---|" + "---|" * len(worlds) + "---|"
    for claim in claims:
        sides = [(claim.first(world), claim.second(world)) for world in worlds]
        cells = "".join(f" {_cell(*pair)} |" for pair in sides)
        first, second = sides[0]
        shown = " and ".join("-" if a is None else f"{a:.2f}" for a in (first.accepted, second.accepted))
        print(claim.says, file=sys.stderr, flush=True)
        yield f"| {claim.says} | {first.name} | {second.name} |{cells} {shown} |"


def _cell(first: Side, second: Side) -> str:
    value, low, high = ratio(first.seconds, second.seconds)
    which = "".join(f", `{side.detail}`" for side in (first, second) if side.detail)
    return f"{verdict(low, high)}: {cell(value, low, high)}{which}"


def main() -> None:
    """Print the tables of all papers."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--trace", type=Path, required=True, help="one model and lookups, greedy")
    parser.add_argument("--specialists", type=Path, help="several models, recorded with --overlap")
    parser.add_argument("--costs", action="append", required=True, help="may be repeated")
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--only", type=listed, default="", help="papers, such as TapOut,DISCO")
    parser.add_argument("--longest", type=int, default=0, help="tokens a draft; 0 = as many as the trace has")
    options = parser.parse_args()
    costs = [(text, read_costs(text)) for text in options.costs]
    plain = Trace(options.trace)
    worlds = [World(plain, c, c.name or "measured", options.orders) for _, c in costs]
    longest = options.longest or plain.header.length
    sections = [("TapOut", tapout(longest), worlds), ("DISCO", disco(longest), worlds)]
    sections += [("BanditSpec", banditspec(), worlds)]
    if options.specialists:
        models = Trace(options.specialists)
        wide = [World(models, c, c.name or "measured", options.orders) for _, c in costs]
        sections += [("BanditSpec, with specialists", banditspec(), wide), ("MetaSD", metasd(), wide)]
        sections.append(("HedgeSpec", hedgespec(), wide))
    titles = [title for title, *_ in sections]
    wanted = options.only or titles
    if unknown := set(wanted) - set(titles):
        parser.error(f"--only {sorted(unknown)[0]}: choose from {', '.join(titles)}")
    for title, claims, where in (section for section in sections if section[0] in wanted):
        print(f"\n## {title}\n\n{len(where[0].stages)} prompts.\n", flush=True)
        for line in table(claims, where):
            print(line, flush=True)


if __name__ == "__main__":
    start(main)
