"""The papers' main orderings, by replay: the tables of docs/explanation/findings.md.

    python -m studies.speed.findings --trace mixed/ --specialists domains/ --costs measured --costs c=0

`--trace` has one model and lookups, `--specialists` a generalist model and then one for each category of its
prompts, named after it. Both are replayed under each table of `--costs` (`measured`: the trace's own), in
several orders of their prompts with as many seeds. An ordering is the claim that one method is faster than
another. It is confirmed if the whole 95 % interval of the ratio of total times lies above 1 (bootstrap over
prompts and orders, both methods on the same ones), reversed if it lies below, and not confirmed if it
contains 1.

What is tuned (a threshold, a length, "lookup, else model") is tuned on one half of the prompts and measured
on the other, both ways.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from draftwise.measure.trace import Trace
from draftwise.policies.arms import TAPOUT_RULES
from draftwise.policies.auto.drafts import LENGTHS
from studies.common.command import command, listed, start
from studies.common.tables import Real, cell, heading, middle, ratio, resampled, row, verdict
from studies.common.traces import costs_of
from studies.speed.world import World, tuned

PAGE = "docs/explanation/findings.md"
DIVERGENCE, EFFICIENCY = "block-divergence", "block-efficiency"


@dataclass(frozen=True)
class Side:
    """One side of a claim under one table of costs; `detail` is what differs between tables."""

    name: str
    seconds: Real
    accepted: float | None = None
    detail: str = ""


SideOf = Callable[[World], Side]


@dataclass(frozen=True)
class Claim:
    """`first` takes less time than `second`, in a paper's words; a name is that of a policy over `who`."""

    says: str
    first: str | SideOf
    second: str | SideOf
    who: str = "specialists"

    def sides(self, world: World) -> tuple[Side, Side]:
        """Both under one table of costs."""
        return self._side(self.first, world), self._side(self.second, world)

    def _side(self, of: str | SideOf, world: World) -> Side:
        if not isinstance(of, str):
            return of(world)
        ran = world.run(of, world.team(self.who))
        return Side(f"`{of}`", ran.seconds, ran.mean_accepted)


def hindsight(who: str, world: World, lengths: Sequence[int] = ()) -> Side:
    """The best fixed drafter and length, chosen after the fact."""
    name, seconds = world.best_fixed(world.team(who), lengths or range(1, world.trace.header.length + 1))
    return Side("best fixed", seconds, detail=name)


def tuned_length(who: str, world: World) -> Side:
    """A tuned drafter and length, one for all prompts."""
    arms = {f"{arm[0]} {arm[1]}": s for arm, s in world.fixed.items() if arm[0] in world.team(who)}
    name, seconds = tuned(arms)
    return Side("tuned length", seconds, detail=name)


def tuned_rule(name: str, thresholds: Iterable[float], longest: int, world: World) -> Side:
    """A stop rule of the first model, tuned."""
    runs = {f"{x:g}": world.run(f"{name}={x:g}&length={longest}", [world.model]) for x in thresholds}
    which, seconds = tuned({x: ran.seconds for x, ran in runs.items()})
    return Side(f"tuned `{name.split('?')[0]}`", seconds, detail=which)


def tuned_classifier(world: World) -> Side:
    """DISCO's classifier as a stop rule, its threshold tuned; 0 never stops."""
    thresholds = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    which, seconds = tuned({f"{x:g}": world.classified.seconds(world.costs, x) for x in thresholds})
    return Side("tuned classifier", seconds, detail=which)


def alone(world: World, n: int = 0) -> Side:
    """One model for all prompts, by its number: the generalist, or another one, or the last."""
    name = world.models[: n + 1][-1]
    return Side(f"`{name}`", world.fixed[name, 5])


def own(world: World) -> Side:
    """Each prompt with the specialist of its category, as a router without errors."""
    arms = [(world.specialist(category), 5) for category in world.categories]
    return Side("own specialist", np.array([world.fixed[arm][i] for i, arm in enumerate(arms)]))


def otherwise(world: World) -> Side:
    """ "Lookup, else model"."""
    rule, seconds = world.otherwise
    return Side("lookup, else model", seconds, detail=rule)


def foreseen(world: World) -> Side:
    """DISCO's oracle with the model."""
    return Side("DISCO's oracle", world.exact(world.model))


def tapout(longest: int, *, greedy: bool = True) -> list[Claim]:
    """TapOut's, arXiv 2511.02017, on one model drafter; more thresholds are tried where texts are sampled."""
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
        "UCB1 beats a reward of tokens per second": f"{seq}&reward=rate",
    }
    families: dict[str, tuple[float, ...]] = {
        "max-confidence?threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "svip?threshold": (0.3, 0.5, 0.6, 0.775, 0.9, 1.1, 1.3, 1.6),
        "adaedl?form=tapout&start": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    }
    if not greedy:  # the least sure drafts of sampled text pay where greedy ones do not
        for name, more in zip(families, ((0.1,), (2.0, 2.5, 3.0), (0.1, 0.2)), strict=True):
            families[name] += more
    return [Claim(says, seq, other, "model") for says, other in others.items()] + [
        Claim(f"UCB1 beats tuned {name.split('?')[0]}", seq, partial(tuned_rule, name, xs, longest), "model")
        for name, xs in families.items()
    ]


def disco(longest: int, *, greedy: bool = True) -> list[Claim]:
    """DISCO's, arXiv 2405.04304, on one model drafter."""
    best, length = partial(hindsight, "model"), partial(tuned_length, "model")
    heuristic = f"hf-heuristic?start=5&longest={longest}"
    thresholds = (*(() if greedy else (0.1,)), 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    confident = partial(tuned_rule, "max-confidence?threshold", thresholds, longest)
    return [
        Claim("the oracle beats the best static length", foreseen, best),
        Claim("the best static length beats the heuristic", best, heuristic, "model"),
        Claim("a tuned confidence beats the tuned length", confident, length),
        Claim("a tuned classifier beats the tuned length", tuned_classifier, length),
        Claim("a tuned classifier beats a tuned confidence", tuned_classifier, confident),
    ]


def banditspec() -> list[Claim]:
    """BanditSpec's, arXiv 2505.15141, on all drafters."""
    best, tuned_one = partial(hindsight, "everyone", lengths=(5,)), partial(tuned_length, "model")
    lengths = "ucbspec?arms=lengths&reward=rate&per_query=false"
    return [
        Claim("UCBSpec beats EXP3Spec", "ucbspec", "exp3spec", "everyone"),
        Claim("UCBSpec beats the best single drafter", "ucbspec", best, "everyone"),
        Claim("with a tenth of its radius", "ucbspec?strength=0.1", best, "everyone"),
        Claim("UCBSpec beats a random choice", "ucbspec", "random", "everyone"),
        Claim("UCBSpec over lengths beats the tuned length", lengths, tuned_one, "model"),
    ]


def practice(longest: int) -> list[Claim]:
    """What a policy is worth against a rule without learning, on all drafters."""
    names = ("ucbspec", "exp3spec", "ucb1", "linucb", "hedgespec", f"auto?length={min(longest, LENGTHS[-1])}")
    rule, best = '"lookup, else model"', partial(hindsight, "everyone")
    return [
        *(Claim(f"{name.split('?')[0]} beats {rule}", name, otherwise, "everyone") for name in names),
        Claim(f"the tuned drafter and length beat {rule}", partial(tuned_length, "everyone"), otherwise),
        Claim("auto beats the best fixed drafter and length", names[-1], best, "everyone"),
    ]


def metasd(reward: str, router: str) -> list[Claim]:
    """MetaSD's, arXiv 2604.05417, on the specialists; divergence as `reward` needs a trace with overlaps."""
    ucb, exp3, sh, petc = (f"metasd-{name}?reward={reward}" for name in ("ucb", "exp3", "sh", "petc"))
    best = partial(hindsight, "specialists", lengths=(5,))
    claims = [
        Claim("UCB beats the generalist", ucb, alone),
        Claim("the own specialist beats the generalist", own, alone),
        Claim("UCB beats the own specialist", ucb, own),
        Claim("UCB beats the best single specialist", ucb, best),
        Claim("UCB beats a random choice", ucb, "random"),
        Claim("UCB beats EXP3", ucb, exp3),
        Claim("UCB beats sequential halving", ucb, sh),
        Claim("UCB beats explore then commit", ucb, petc),
        Claim("explore then commit: 4 beats 32", petc, f"{petc}&constant=32"),
        Claim("strength 0.01 beats UCB1's own", ucb, f"{ucb}&beta=1"),
    ]
    if router:
        claims.append(Claim("UCB beats the router", ucb, f"router:{router}"))
        claims.append(Claim("HedgeSpec beats the router", "hedgespec", f"router:{router}"))
    if reward == DIVERGENCE:
        for says, ours in (("", ucb), (", UCB1's radius", f"{ucb}&beta=1"), (", EXP3", exp3)):
            theirs = ours.replace(DIVERGENCE, EFFICIENCY)
            claims.append(Claim(f"block divergence beats block efficiency{says}", ours, theirs))
    return claims


def hedgespec() -> list[Claim]:
    """HedgeSpec's, arXiv 2510.20064, on the specialists, and on more and more model drafters."""
    others = ("ucbspec", "exp3spec", f"metasd-ucb?reward={EFFICIENCY}", "random")
    claims = [Claim(f"HedgeSpec beats {other}", "hedgespec", other) for other in others]
    best = partial(hindsight, "specialists", lengths=(5,))
    claims += [
        Claim("HedgeSpec beats the generalist", "hedgespec", alone),
        Claim("HedgeSpec beats the own specialist", "hedgespec", own),
        Claim("HedgeSpec beats the best single specialist", "hedgespec", best),
        Claim("NormalHedge beats Hedge", "hedgespec", "hedgespec-hedge"),
        Claim("an unbiased estimate beats the product", "hedgespec", "hedgespec?form=product"),
        Claim("graded every 16 tokens, it beats UCBSpec", "hedgespec?every=16", "ucbspec"),
    ]
    for n in (1, 2, 3):
        some = f"length={n}"
        says = f"HedgeSpec beats UCBSpec, drafts of {n}"
        claims.append(Claim(says, f"hedgespec?{some}", f"ucbspec?{some}"))
    for n in (2, 3, 5, 7):
        claims.append(Claim(f"HedgeSpec beats UCBSpec, {n} models", "hedgespec", "ucbspec", str(n)))
    claims.append(Claim("HedgeSpec beats EXP3Spec, 5 models", "hedgespec", "exp3spec", "5"))
    claims.append(Claim("graded every 16 tokens, UCBSpec, 5 models", "hedgespec?every=16", "ucbspec", "5"))
    for n in range(5):
        says = f"HedgeSpec with 5 models beats model {n + 1}"
        claims.append(Claim(says, "hedgespec", partial(alone, n=n), "5"))
    return claims


# -- figures that are no ratios of two methods ---------------------------------------------------------------

Figure = Callable[[World], Iterator[str]]


def arm_values(world: World) -> Iterator[str]:
    """TapOut's Figures 5 and 6: the mean reward of each rule played alone, beside its time."""
    longest = world.trace.header.length
    yield heading("rule", "mean blended reward", "time over that of the fastest")
    runs = {rule: world.run(f"{rule}?length={longest}", [world.model]) for rule in TAPOUT_RULES}
    times = {rule: float(ran.seconds.mean(0).sum()) for rule, ran in runs.items()}
    for rule, ran in sorted(runs.items(), key=lambda pair: -pair[1].mean_value):
        yield row(rule, f"{ran.mean_value:.3f}", f"{times[rule] / min(times.values()):.3f}")


def f1(world: World) -> Iterator[str]:
    """DISCO's Table 5: F1 of its classifier and of static lengths, over tokens up to the first rejection."""
    of, longest = world.classified, world.trace.header.length
    sizes = [each[1].shape for each in of.drafts]
    always, always_draws = of.scores(partial(static_yes, sizes, longest))
    for threshold in (0.2, 0.3, 0.4, 0.5):
        value, draws = of.scores(partial(of.says, threshold))
        low, high = middle(draws - always_draws)
        more = f"above always yes by {cell(value - always, low, high)}"
        yield f"- classifier, {threshold}: {cell(value, *middle(draws))}, {more}"
    for n in range(1, longest + 1):
        value, draws = of.scores(partial(static_yes, sizes, n))
        cells = cell(value, *middle(draws))
        yield f"- {n} tokens: {cells}" + (" (always yes)" if n == longest else "")


def static_yes(sizes: Sequence[tuple[int, ...]], n: int, i: int) -> Real:
    """Yes to the first `n` tokens of each draft of prompt `i`."""
    return np.broadcast_to(np.arange(sizes[i][1]) < n, sizes[i])


def by_domain(world: World) -> Iterator[str]:
    """Accepted tokens a round of every model in every category."""
    runs = {name: world.run(f"static-5?drafter={name}") for name in world.trace.drafters}
    yield heading("category", *runs)
    for category in dict.fromkeys(world.categories):
        at = np.array([category == own for own in world.categories])
        cells = [f"{r.accepted[:, at].sum() / r.rounds[:, at].sum():.2f}" for r in runs.values()]
        yield row(f"{category} ({at.sum()})", *cells)


def rewards(world: World) -> Iterator[str]:
    """MetaSD's Table 2 and Figures 5 to 7: rewards, how often they are zero, the halves of texts.

    Halves are compared for each model, and for each in proportion to the mean of all.
    """
    of_models = {name: world.rewards(name) for name in world.models}
    for reward, which in ((EFFICIENCY, 0), (DIVERGENCE, 1))[: 1 + world.trace.header.overlap]:
        values = {name: [text[which, :, -1] for text in texts] for name, texts in of_models.items()}
        halves = np.array([[split(one) for one in texts] for texts in values.values()])
        draw = resampled(len(world.stages))
        later = np.divide(*(draw @ halves[..., half].mean(0) for half in (1, 0)))
        for (name, texts), own in zip(values.items(), halves, strict=True):
            every, relative = np.concatenate(texts), (draw @ own[:, 1]) / (draw @ own[:, 0]) / later
            relation = cell(float(np.median(relative)), *middle(relative))
            facts = f"mean {every.mean():.3f}, zero at {100 * np.mean(every == 0):.1f} % of places"
            changes = f"second half over first {cell(*ratio(*own.T))}, in proportion {relation}"
            yield f"- `{name}`, {reward}: {facts}; {changes}"
        best = halves[1:].argmax(0)
        same = 100 * np.mean(best[:, 0] == best[:, 1])
        yield f"- {reward}: both halves have the same best specialist in {same:.0f} % of texts"


def split(values: Real) -> list[float]:
    """The means of both halves."""
    return [float(half.mean()) for half in np.array_split(values, 2)]


def exploration(world: World) -> Iterator[str]:
    """MetaSD's Figure 2: R of its Theorem 1, by N_max: the larger, the fewer rounds tell two drafters apart.

    Squared gaps of two specialists in a text over the larger variance there, sums over texts and pairs; and
    the share of texts where both rewards have the same best specialist.
    """
    rewards = [world.rewards(name) for name in world.team("specialists")]
    if len(rewards) < 2:
        return
    means = np.array([[text.mean(1) for text in of] for of in rewards])  # (models, texts, 2, N_max)
    spread = np.array([[text.var(1) for text in of] for of in rewards])
    pairs = list(combinations(range(len(rewards)), 2))
    gaps = sum((means[a] - means[b]) ** 2 for a, b in pairs)
    noise = sum(np.maximum(spread[a], spread[b]) for a, b in pairs)
    yield heading("N_max", "R, block efficiency", "R, block divergence", "ratio", "same best")
    best, draw = means.argmax(0), resampled(len(gaps))
    for n in range(world.trace.header.length):
        value = gaps[:, :, n].sum(0) / noise[:, :, n].sum(0)
        both = (draw @ gaps[:, :, n]) / (draw @ noise[:, :, n])
        low, high = middle(both[:, 1] / both[:, 0])
        same = 100 * np.mean(best[:, 0, n] == best[:, 1, n])
        ratios = cell(value[1] / value[0], low, high, 2)
        yield row(n + 1, f"{value[0]:.4f}", f"{value[1]:.4f}", ratios, f"{same:.0f} %")


def tails(world: World) -> Iterator[str]:
    """Milliseconds a token, the median and the 99th percentile over prompts and orders."""
    tokens = np.array([stage.recording.committed for stage in world.stages])
    for name in ("hedgespec", "ucbspec", "exp3spec", f"metasd-ucb?reward={EFFICIENCY}"):
        each = 1e3 * world.run(name, world.team("specialists")).seconds / tokens
        half, most = np.quantile(each, [0.5, 0.99])
        yield f"- `{name}`: {half:.2f} ms a token, 99th percentile {most:.2f}"


def table(claims: Sequence[Claim], worlds: Sequence[World]) -> Iterator[str]:
    """Claims in Markdown: verdict, the second side's time over the first's, and what both accept a round."""
    yield heading("ordering", "first", "second", *(world.label for world in worlds), "accepted")
    for claim in claims:
        sides = [claim.sides(world) for world in worlds]
        first, second = sides[0]
        shown = " and ".join("-" if a is None else f"{a:.2f}" for a in (first.accepted, second.accepted))
        print(claim.says, file=sys.stderr, flush=True)
        yield row(claim.says, first.name, second.name, *(_cell(*pair) for pair in sides), shown)


def _cell(first: Side, second: Side) -> str:
    value, low, high = ratio(first.seconds, second.seconds)
    which = "".join(f", `{side.detail}`" for side in (first, second) if side.detail)
    return f"{verdict(low, high)}: {cell(value, low, high)}{which}"


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--trace", type=Path, required=True, help="one model and lookups")
    parser.add_argument("--drafters", type=listed, default=[], help="of --trace; default: all")
    parser.add_argument("--specialists", type=Path, help="several models, recorded with --overlap")
    parser.add_argument("--router", default="", help="a router over the specialists")
    parser.add_argument("--costs", action="append", required=True, help="may be repeated")
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--only", type=listed, default="", help="papers, such as TapOut,DISCO")
    options = parser.parse_args()
    worlds = _worlds(options.trace, options.costs, options.orders, options.drafters)
    longest, greedy = worlds[0].trace.header.length, worlds[0].trace.header.greedy
    sections: list[tuple[str, list[Claim], list[World], list[Figure]]] = [
        ("TapOut", tapout(longest, greedy=greedy), worlds, [arm_values]),
        ("DISCO", disco(longest, greedy=greedy), worlds, [f1]),
        ("BanditSpec", banditspec(), worlds, []),
    ]
    if len(worlds[0].models) < len(worlds[0].trace.drafters):  # there are lookups
        sections.append(("Practice", practice(longest), worlds, []))
    if options.specialists:
        wide = _worlds(options.specialists, options.costs, options.orders)
        reward = DIVERGENCE if wide[0].trace.header.overlap else EFFICIENCY
        sections.append(("BanditSpec, with specialists", banditspec(), wide, []))
        figures: list[Figure] = [by_domain, rewards, *[exploration][: wide[0].trace.header.overlap]]
        sections.append(("MetaSD", metasd(reward, options.router), wide, figures))
        sections.append(("HedgeSpec", hedgespec(), wide, [tails]))
    titles = [title for title, *_ in sections]
    wanted = options.only or titles
    if unknown := set(wanted) - set(titles):
        parser.error(f"--only {sorted(unknown)[0]}: choose from {', '.join(titles)}")
    for title, claims, where, more in (section for section in sections if section[0] in wanted):
        print(f"\n## {title}\n\n{len(where[0].stages)} prompts.\n", flush=True)
        for line in table(claims, where):
            print(line, flush=True)
        for figure in more:
            for world in where if figure in (arm_values, tails) else where[:1]:
                print(f"\n{world.label}:\n\n" + "\n".join(figure(world)), flush=True)


def _worlds(folder: Path, costs: Sequence[str], orders: int, drafters: Sequence[str] = ()) -> list[World]:
    trace = Trace(folder, drafters)
    tables = [costs_of(folder, name) for name in costs]
    return [World(trace, table, table.name or "measured", orders) for table in tables]


if __name__ == "__main__":
    start(main)
