"""Draftwise: `auto`, the default policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ... import registry
from ...core.arms import Arm
from ...errors import UserError
from ..auto.policy import LENGTHS, AutoPolicy
from ..auto.recorder import SHARE, Watch
from ..auto.without import PARTS
from .compose import Method

LOOKUPS = ("ngram", "suffix", "retrieval")


def auto(
    drafters: Sequence[str],
    *,
    length: Annotated[int, "tokens in a draft at most, up to 16"] = LENGTHS[-1],
    share: Annotated[float, "share of the time for grading drafters that do not draft"] = SHARE,
    without: Annotated[str, "leave one part of the policy out, for ablations"] = "",
) -> Method:
    """Chooses drafter, draft length and stop rule, or no draft, by measured tokens per second.

    It measures what drafting and verification cost on this machine, grades all drafters on the text that the
    target confirms, and falls back to plain decoding where drafting does not pay.

    Source: Draftwise.
    """
    if not 1 <= length <= LENGTHS[-1]:
        raise UserError(f"auto?length={length}: give 1 to {LENGTHS[-1]} tokens")
    if not 0.0 <= share < 1.0:
        raise UserError(f"auto?share={share}: give a share of the time, from 0 to below 1")
    if without and without not in PARTS:
        raise UserError(f"auto?without={without}: choose from {', '.join(PARTS)}")
    policy_of, watch_of = PARTS.get(without, (AutoPolicy, Watch))
    real = tuple(name for name in drafters if name != "none")
    lengths = [*(n for n in LENGTHS if n < length), length]
    arms = (Arm("none", 0), *(Arm(name, n) for name in real for n in lengths))
    lookups = tuple(registry.parse(name).name in LOOKUPS for name in real)
    policy = policy_of(arms, real, lookups)
    return Method(policy, watch_of(policy, share))
