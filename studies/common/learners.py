"""Every learner that needs no features: bandits (feedback for one arm) and full information (for all)."""

from __future__ import annotations

from typing import Any

from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.learners.halving import ExploreThenCommit, SequentialHalving
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB, UCBSpec, UCBTuned

BANDITS: tuple[Any, ...] = (
    Fixed,
    Uniform,
    UCB1,
    UCBTuned,
    UCBSpec,
    DiscountedUCB,
    SlidingWindowUCB,
    GaussianThompson,
    EXP3,
    EXP3Spec,
    SequentialHalving,
    ExploreThenCommit,
)
EXPERTS: tuple[Any, ...] = (Hedge, NormalHedge)
