"""Every picture of the report: one function each, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records import Results
from . import drafting, heat, learning, simulated, speed, values
from .missing import Missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "SIMULATED", "Missing", "Picture"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: the name of its file, its section, title and caption, and the function that draws it."""

    name: str
    section: str
    title: str
    caption: str
    draw: Callable[[Results], Figure]


PICTURES = (
    Picture(
        "speedup",
        "Speed",
        "Speed-up by method",
        "Total time of plain decoding divided by that of the method, on the same prompts. Lines "
        "are 95 % bootstrap intervals over prompts (at least five prompts). Methods left of the "
        "line at 1 are slower than plain decoding. The axis does not start at zero.",
        speed.speedup,
    ),
    Picture(
        "intervals",
        "Speed",
        "Speed-up by category, with intervals",
        "The fastest methods of each kind and the slowest method; the heat map below has every "
        "method. The line at 1 is plain decoding. The axis does not start at zero.",
        speed.intervals,
    ),
    Picture(
        "categories",
        "Speed",
        "Speed-up of every method by category",
        "Purple is faster than plain decoding, orange slower. The colour scale is logarithmic: "
        "0.5 and 2 are equally strong.",
        heat.categories,
    ),
    Picture(
        "phases",
        "Speed",
        "Time per token by phase",
        "Where the time of each method goes, the fastest method at the top.",
        speed.phases,
    ),
    Picture(
        "batches",
        "Speed",
        "Throughput by batch size",
        "After BanditSpec, Figure 1: the best draft length decreases as the batch size grows.",
        speed.batches,
    ),
    Picture(
        "beside",
        "Speed",
        "Comparison with other runs",
        "With the workloads `mixed` and `phased` at a batch size above 1 this is MetaSD, Table "
        "17: batches of several categories against batches of one category.",
        speed.beside,
    ),
    Picture(
        "values",
        "Learning",
        "Estimated value of each drafter",
        "After TapOut, Figure 5: the value that the policy reports, or, where it reports none, "
        "the mean accepted tokens of its rounds so far. A line is a drafter (the mean of its "
        "arms, weighted by their rounds), a band the range of its arms with five "
        "rounds or more. Policies with a single drafter have one line for each of their six most "
        "played arms.",
        values.values,
    ),
    Picture(
        "best-choices",
        "Learning",
        "Choices of the best arm",
        "After MetaSD, Figure 3: the share of rounds that played the best of this run's fixed "
        "arms in the prompt's category, or its drafter where the policy does not have that arm.",
        learning.best_choices,
    ),
    Picture(
        "regret",
        "Learning",
        "Cumulative regret",
        "Rounds and seconds in excess of the best of this run's fixed arms over all prompts, "
        "which is named above each panel. Below zero is better than all of these; an arm that was "
        "not run may be better still.",
        learning.regret,
    ),
    Picture(
        "divergence",
        "Learning",
        "Overlap of drafter and target over rounds",
        "After MetaSD, Figure 6: 1 \N{MINUS SIGN} TV, the overlap of the distributions of drafter "
        "and target, averaged over the draft.",
        learning.divergence,
    ),
    Picture(
        "drafters",
        "Drafting",
        "Drafters by category",
        "The share of rounds of each drafter. `none` is a round without a draft.",
        drafting.drafters,
    ),
    Picture(
        "arms",
        "Drafting",
        "Draft lengths and stop rules by category",
        "The share of rounds of each draft length or stop rule. `none` is a round without a draft.",
        drafting.arms,
    ),
    Picture(
        "lengths",
        "Drafting",
        "Draft length along a text",
        "After DISCO, Figure 2: tokens drafted in each round, and those of the oracle, which "
        "takes the least time.",
        drafting.lengths,
    ),
    Picture(
        "oracle-lengths",
        "Drafting",
        "Draft lengths of the oracle",
        "After DISCO, Figure 4: the share of the oracle's rounds with each draft length.",
        drafting.oracle_lengths,
    ),
    Picture(
        "rewards",
        "Drafting",
        "Draft length by reward",
        "After TapOut, Figure 3.",
        drafting.rewards,
    ),
    Picture(
        "entropy",
        "Drafting",
        "Entropy of accepted and rejected tokens",
        "After TapOut, Figure 2. Boxes are quartiles; whiskers reach to the last value within 1.5 "
        "times the interquartile range.",
        drafting.entropy,
    ),
)

SIMULATED = (
    Picture(
        "simulated-regret",
        "Simulation",
        "Regret",
        "Rounds and time in excess of the best arm's. Lines are means over seeds, bands one standard error.",
        simulated.curves,
    ),
    Picture(
        "simulated-best",
        "Simulation",
        "Choices of the best arm",
        "Mean over seeds, between one mark and the next.",
        simulated.best_arm,
    ),
    Picture(
        "simulated-pulls",
        "Simulation",
        "Arms by policy",
        "The share of rounds of each arm, over all seeds.",
        simulated.pulls,
    ),
)
