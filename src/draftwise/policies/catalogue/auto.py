"""Draftwise: `auto`, the default policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ...core.arms import Arm
from ...errors import UserError
from ...registry import entry
from ...specs import parse_drafter
from ..auto.drafts import DEEPEST, LENGTHS, WIDTH
from ..auto.policy import SLOW, AutoPolicy
from ..auto.recorder import SHARE, AutoRecorder
from .compose import Method

MOST_WIDE = 8  # a pass reads 64 nodes
LOOKUPS = ("ngram", "suffix", "retrieval")


def auto(
    drafters: Sequence[str],
    *,
    length: Annotated[int, "tokens in a draft at most, up to 16"] = LENGTHS[-1],
    share: Annotated[float, "share of the time for lookups that do not draft, and for models"] = SHARE,
    cascades: Annotated[float, "ms of a pass from which a lookup may continue a model's draft"] = 1e3 * SLOW,
    width: Annotated[int, "nodes of a head's tree for a token of its depth, at most; 1: no trees"] = WIDTH,
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
    if not cascades >= 0.0:
        raise UserError(f"auto?cascades={cascades}: give milliseconds of a target pass, 0 or more")
    if not 1 <= width <= MOST_WIDE:
        raise UserError(f"auto?width={width}: give 1 to {MOST_WIDE} nodes")
    lengths = [*(n for n in LENGTHS if n < length), length]
    policy = AutoPolicy(*team(drafters, lengths, width), cascades_from=1e-3 * cascades)
    return Method(policy, AutoRecorder(policy, share=share))


def team(
    drafters: Sequence[str], lengths: Sequence[int], width: int = WIDTH
) -> tuple[tuple[Arm, ...], tuple[str, ...], tuple[bool, ...]]:
    """The arms of `AutoPolicy` with these lengths and width, its drafters, and which are lookups."""
    real = tuple(name for name in drafters if name != "none")
    chains = (Arm(name, n) for name in real for n in lengths)
    wide = filter(has_width, real) if width > 1 else ()
    trees = (Arm(name, n, width) for name in wide for n in lengths if n <= DEEPEST)
    arms = (Arm("none", 0), *chains, *trees)
    return arms, real, tuple(parse_drafter(name).name in LOOKUPS for name in real)


def has_width(drafter: str) -> bool:
    """Return whether this drafter has an option `width`, and it was not given."""
    spec = parse_drafter(drafter)
    return "width" in entry("drafters", spec.name).options and "width" not in spec.options
