"""The policy of whoever asks for none."""

from __future__ import annotations

from collections.abc import Sequence

from ... import registry
from ...core.arms import Arm
from ...errors import UserError
from ..auto.policy import LENGTHS, AutoPolicy
from ..auto.recorder import SHARE, Watch
from ..auto.without import PARTS
from .compose import Method

LOOKUPS = ("ngram", "suffix", "retrieval")


def auto(
    drafters: Sequence[str], *, length: int = LENGTHS[-1], share: float = SHARE, without: str = ""
) -> Method:
    """Who drafts, how far and when to stop, by measured tokens per second; or no draft at all (ours).

    `length` is the longest draft that may be asked for, of 16 at most. `share` is the part of all time that
    may go into watching drafters that do not play. `without` takes out one part of the policy, to see what it
    is worth.
    """
    if not 1 <= length <= LENGTHS[-1]:
        raise UserError(f"auto?length={length}: give 1 to {LENGTHS[-1]} tokens")
    if not 0.0 <= share < 1.0:
        raise UserError(f"auto?share={share}: give a part of the time, from 0 to below 1")
    if without and without not in PARTS:
        raise UserError(f"auto?without={without}: choose from {', '.join(PARTS)}")
    policy_of, watch_of = PARTS.get(without, (AutoPolicy, Watch))
    real = tuple(name for name in drafters if name != "none")
    lengths = [*(n for n in LENGTHS if n < length), length]
    arms = (Arm("none", 0), *(Arm(name, n) for name in real for n in lengths))
    lookups = tuple(registry.parse(name).name in LOOKUPS for name in real)
    policy = policy_of(arms, real, lookups)
    return Method(policy, watch_of(policy, share))
