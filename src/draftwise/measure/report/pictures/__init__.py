"""Every picture of the report: one function each, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records import Results
from . import drafting, learning, simulated, speed
from .missing import Missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "SIMULATED", "Missing", "Picture"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its file, section and title, what it tells, and the function that draws it."""

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
        "Ratio of total times; intervals are bootstrapped over prompts, where there are at least five. Left "
        "of the line is slower than plain decoding.",
        speed.speedup,
    ),
    Picture(
        "intervals",
        "Speed",
        "Speed-up by category, with intervals",
        "The fastest methods of each kind, and the slowest. Plain decoding is the line at 1. The map below "
        "has every method.",
        speed.intervals,
    ),
    Picture(
        "categories",
        "Speed",
        "Speed-up of every method by category",
        "Violet is faster than plain decoding, orange slower.",
        speed.categories,
    ),
    Picture(
        "phases",
        "Speed",
        "Time by phase",
        "What a token costs, and where the time goes.",
        speed.phases,
    ),
    Picture(
        "batches",
        "Speed",
        "Throughput over batch sizes",
        "After BanditSpec's Figure 1: the best draft length falls as the batch grows.",
        speed.batches,
    ),
    Picture(
        "beside",
        "Speed",
        "Beside other runs",
        "The workload `mixed` beside `phased`, at a batch size above 1, is MetaSD's Table 17: batches of "
        "several categories against batches of one.",
        speed.beside,
    ),
    Picture(
        "values",
        "Learning",
        "Learned value of each arm",
        "After TapOut's Figure 5: as the policy sees its arms, or, where that was not recorded, the mean "
        "accepted tokens of each arm's own rounds so far.",
        learning.values,
    ),
    Picture(
        "best-choices",
        "Learning",
        "Choices of the best arm",
        "After MetaSD's Figure 3: the share of rounds that played the best of this run's fixed arms in their "
        "category, or its drafter where the policy's own arms are others.",
        learning.best_choices,
    ),
    Picture(
        "regret",
        "Learning",
        "Cumulative regret",
        "Rounds and seconds more than the best of this run's fixed arms over all prompts, named above each "
        "half. Below zero is better than each of these; an arm that was not run may be better still.",
        learning.regret,
    ),
    Picture(
        "divergence",
        "Learning",
        "Block divergence over rounds",
        "After MetaSD's Figure 6: how much the laws of drafter and target overlap.",
        learning.divergence,
    ),
    Picture(
        "drafters",
        "Drafting",
        "Who drafted in which category",
        "Shares of the rounds.",
        drafting.drafters,
    ),
    Picture(
        "arms",
        "Drafting",
        "Which length or stop rule in which category",
        "Shares of the rounds.",
        drafting.arms,
    ),
    Picture(
        "lengths",
        "Drafting",
        "Draft length along a text",
        "After DISCO's Figure 2. The oracle drafts what takes the least time.",
        drafting.lengths,
    ),
    Picture(
        "oracle-lengths",
        "Drafting",
        "The oracle's draft lengths",
        "After DISCO's Figure 4.",
        drafting.oracle_lengths,
    ),
    Picture(
        "rewards",
        "Drafting",
        "Draft length by reward",
        "After TapOut's Figure 3.",
        drafting.rewards,
    ),
    Picture(
        "entropy",
        "Drafting",
        "Entropy of accepted tokens",
        "After TapOut's Figure 2. Boxes are quartiles, whiskers 1.5 times as far.",
        drafting.entropy,
    ),
)

SIMULATED = (
    Picture(
        "simulated-regret",
        "Simulation",
        "Regret",
        "Rounds and seconds more than those of the arm that is best alone. Mean over seeds; bands are one "
        "standard error.",
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
        "Who was played",
        "Shares of the rounds, over all seeds.",
        simulated.pulls,
    ),
)
