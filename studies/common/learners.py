"""Every learner that needs no features: bandits (feedback for one arm) and full information (for all)."""

from __future__ import annotations

from typing import Any

from draftwise.policies.learners.adanormalhedge import AdaNormalHedge
from draftwise.policies.learners.beta import BetaThompson
from draftwise.policies.learners.commit import ExploreThenCommit
from draftwise.policies.learners.ducb import DiscountedUCB
from draftwise.policies.learners.exp3 import EXP3
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.learners.gaussian import GaussianThompson
from draftwise.policies.learners.halving import SequentialHalving
from draftwise.policies.learners.hedge import Hedge
from draftwise.policies.learners.leader import FollowTheLeader
from draftwise.policies.learners.normalhedge import NormalHedge
from draftwise.policies.learners.swucb import SlidingWindowUCB
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbspec import UCBSpec
from draftwise.policies.learners.ucbtuned import UCBTuned
from draftwise.policies.learners.uniform import Uniform

BANDITS: tuple[Any, ...] = (
    Fixed,
    Uniform,
    UCB1,
    UCBTuned,
    UCBSpec,
    DiscountedUCB,
    SlidingWindowUCB,
    GaussianThompson,
    BetaThompson,
    EXP3,
    EXP3Spec,
    SequentialHalving,
    ExploreThenCommit,
)
EXPERTS: tuple[Any, ...] = (FollowTheLeader, Hedge, AdaNormalHedge, NormalHedge)
