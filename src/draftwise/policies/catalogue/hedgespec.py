"""Full information: every verified text grades all arms, whoever drafted it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ...core.arms import Arm
from ...errors import UserError
from ..arms import make_arms
from ..experts import ExpertPolicy
from ..learners.hedge import Hedge
from ..learners.learner import FullInformation
from ..learners.normalhedge import NormalHedge
from ..recorders.full_information import Grading
from .compose import Method


def hedgespec(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    form: str = "",
    windows: str = "cursor",
    loss: str = "length",
    censored: str = "wait",
    every: int = 1,
    thin: int = 1,
    play: str = "sample",
    memory: float = 1.0,
    per_query: bool = True,
) -> Method:
    """HedgeSpec: every verified text grades all drafters, NormalHedge weighs them (arXiv 2510.20064).

    `windows`, `form`, `loss`, `censored`, `every` and `thin` are those of
    `draftwise.policies.recorders.full_information`: each arm's own rounds on the text with the unbiased
    estimate by default, and the paper's forms (`windows=all`, `form=product`, `loss=acceptance`) for
    comparison. `form` left empty is rb, or ratio where `every` is above 1. `play=best` plays the heaviest arm
    instead of drawing one; `memory` below 1 forgets.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    graded = _graded(chosen, form, windows, loss, censored, every, thin)
    memory = _memory(memory)
    return _experts(graded, lambda n: NormalHedge(n, memory=memory), play, per_query)


def hedgespec_hedge(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    rate: float = 0.0,
    form: str = "",
    windows: str = "cursor",
    loss: str = "length",
    censored: str = "wait",
    every: int = 1,
    thin: int = 1,
    play: str = "sample",
    memory: float = 1.0,
    per_query: bool = True,
) -> Method:
    """HedgeSpec with Hedge, exponential weights, in place of NormalHedge (arXiv 2510.20064).

    `rate` 0 is sqrt(8 ln N / t), which needs no horizon; the paper's own is not known. The rest is as for
    `hedgespec`.
    """
    if rate < 0.0:
        raise UserError(f"hedgespec-hedge?rate={rate}: give 0 (by the round) or a positive number")
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    graded = _graded(chosen, form, windows, loss, censored, every, thin)
    memory = _memory(memory)
    return _experts(graded, lambda n: Hedge(n, rate=rate or None, memory=memory), play, per_query)


def _experts(
    graded: Grading, learner: Callable[[int], FullInformation], play: str, per_query: bool
) -> Method:
    if play not in ("sample", "best"):
        raise UserError(f"play={play}: choose from sample, best")
    how: Literal["sample", "best"] = "best" if play == "best" else "sample"
    return Method(ExpertPolicy(graded.arms, learner, per_query, how), graded)


def _graded(
    arms: tuple[Arm, ...], form: str, windows: str, loss: str, censored: str, every: int, thin: int
) -> Grading:
    form = form or ("rb" if every == 1 else "ratio")
    return Grading(arms, form, windows, loss, censored, every, thin)


def _memory(memory: float) -> float:
    if not 0.0 < memory <= 1.0:
        raise UserError(f"memory={memory}: give a number above 0 and up to 1 (nothing is forgotten)")
    return memory
