"""The policy of whoever asks for none."""

from __future__ import annotations

from collections.abc import Sequence

from .. import registry
from ..auto.policy import LENGTHS, AutoPolicy
from ..auto.watch import SHARE, Watch
from ..errors import UserError
from ..types import Arm
from .compose import Method

LOOKUPS = ("ngram", "suffix", "retrieval")


def auto(drafters: Sequence[str], *, share: float = SHARE) -> Method:
    """Who drafts, how far and when to stop, by measured tokens per second; or no draft at all (ours).

    `share` is the part of all time that may go into watching drafters that do not play.
    """
    if not 0.0 <= share < 1.0:
        raise UserError(f"auto?share={share}: give a part of the time, from 0 to below 1")
    real = tuple(name for name in drafters if name != "none")
    arms = (Arm("none", 0), *(Arm(name, length) for name in real for length in LENGTHS))
    lookups = tuple(registry.parse(name).name in LOOKUPS for name in real)
    policy = AutoPolicy(arms, real, lookups)
    return Method(policy, Watch(policy, share))
