"""HedgeSpec (arXiv 2510.20064): full information; every verified text grades all arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from ...errors import UserError
from ..arms import make_arms
from ..bandit import ExpertPolicy
from ..learners.hedge import Hedge, NormalHedge
from ..learners.learner import FullInformation
from ..recorders.full_information import Grading
from .compose import Method
from .options import (
    Arms,
    Censored,
    Every,
    Form,
    Length,
    Lengths,
    Loss,
    Memory,
    Only,
    PerQuery,
    Play,
    Thin,
    Windows,
)


def hedgespec(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "1,2,4,8",
    drafter: Only = "",
    form: Form = "",
    windows: Windows = "cursor",
    loss: Loss = "length",
    censored: Censored = "wait",
    every: Every = 1,
    thin: Thin = 1,
    play: Play = "sample",
    memory: Memory = 1.0,
    per_query: PerQuery = True,
) -> Method:
    """NormalHedge weighs all drafters by their losses on the verified text, whichever drafter ran.

    By default each arm is graded on rounds of its own with an unbiased estimate. The forms of the paper are
    `windows=all`, `form=product` and `loss=acceptance`. `draftwise.policies.recorders.full_information`
    defines the options.

    Source: HedgeSpec (arXiv 2510.20064).
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    graded = Grading(chosen, _form(form, every), windows, loss, censored, every, thin)
    return _experts(graded, partial(NormalHedge, memory=_memory(memory)), play, per_query)


def hedgespec_hedge(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "1,2,4,8",
    drafter: Only = "",
    rate: Annotated[float, "learning rate; 0: sqrt(8 ln N / t) at round t"] = 0.0,
    form: Form = "",
    windows: Windows = "cursor",
    loss: Loss = "length",
    censored: Censored = "wait",
    every: Every = 1,
    thin: Thin = 1,
    play: Play = "sample",
    memory: Memory = 1.0,
    per_query: PerQuery = True,
) -> Method:
    """Hedge (exponential weights) weighs all drafters by their losses on the verified text.

    The other options are those of `hedgespec`. The paper gives no learning rate.

    Source: HedgeSpec (arXiv 2510.20064).
    """
    if rate < 0.0:
        raise UserError(f"hedgespec-hedge?rate={rate}: give 0 (by the round) or a positive number")
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    graded = Grading(chosen, _form(form, every), windows, loss, censored, every, thin)
    return _experts(graded, partial(Hedge, rate=rate or None, memory=_memory(memory)), play, per_query)


def _experts(
    graded: Grading, learner: Callable[[int], FullInformation], play: str, per_query: bool
) -> Method:
    if play not in ("sample", "best"):
        raise UserError(f"play={play}: choose from sample, best")
    how: Literal["sample", "best"] = "best" if play == "best" else "sample"
    return Method(ExpertPolicy(graded.arms, learner, per_query, play=how), graded)


def _form(form: str, every: int) -> str:
    return form or ("rb" if every == 1 else "ratio")


def _memory(memory: float) -> float:
    if not 0.0 < memory <= 1.0:
        raise UserError(f"memory={memory}: give a number above 0 and up to 1 (nothing is forgotten)")
    return memory
