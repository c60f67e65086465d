"""What a policy may choose among: drafters, lengths, stop rules and products of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

from ..core import stops
from ..core.arms import NEVER, Arm, Context, Stop
from ..errors import UserError

LONGEST = 4096  # tokens in a draft
TOGETHER = "all"  # the drafter that asks all others
TAPOUT_RULES = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")


def make_arms(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> tuple[Arm, ...]:
    """The product of the named dimensions: `drafters`, `lengths` (0 = no draft) and `stops`, joined by `*`.

    `stops` are TapOut's five rules at its thresholds.

    Raises:
        UserError: an unknown dimension, a length that is no whole number, no drafter to draft, or a single
            one of which nothing is left to choose.
    """
    wanted = arms.split("*")
    unknown = set(wanted) - {"drafters", "lengths", "stops"}
    if unknown or len(set(wanted)) < len(wanted):
        raise UserError(f"arms={arms}: give drafters, lengths, stops or products such as drafters*lengths")
    if drafter and wanted == ["drafters"]:
        raise UserError(f"drafter={drafter} leaves one arm: add arms=lengths or arms=stops, or leave it out")
    several = "drafters" in wanted and not drafter
    who = [d for d in drafters if d != "none"] if several else []
    who = who or [one(drafters, drafter)]
    how_far = _lengths(lengths) if "lengths" in wanted else [positive(length)]
    rules = tapout_rules() if "stops" in wanted else (NEVER,)
    product = [Arm(d, n, stop=s) for d in who for n in how_far if n > 0 for s in rules]
    return tuple(([Arm("none", 0)] if 0 in how_far else []) + product)


def _lengths(text: str) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        raise UserError(f"lengths={text}: give comma-separated whole numbers, such as 1,2,4,8") from None
    if wrong := [n for n in found if not 0 <= n <= LONGEST]:
        raise UserError(f"lengths={text}: a draft cannot have {wrong[0]} tokens; give 0 to {LONGEST}")
    return found


def tapout_rules() -> tuple[Stop, ...]:
    """Return the five arms of TapOut (arXiv 2511.02017, Table 1)."""
    return tuple(Stop(rule, stops.DEFAULTS[rule]) for rule in TAPOUT_RULES)


def one(drafters: Sequence[str], drafter: str) -> str:
    """Return the given drafter, or the first one.

    Raises:
        UserError: it was not given, or there is none.
    """
    if drafter:
        if drafter not in drafters:
            raise UserError(f"drafter={drafter}: choose from {', '.join(drafters) or 'no drafters at all'}")
        return drafter
    real = [d for d in drafters if d != "none"]
    if not real:
        raise UserError("this policy needs a drafter: give one, such as ngram, or use the policy none")
    return real[0]


def positive(length: int, option: str = "length") -> int:
    """Return a draft length of at least 1, and at most `LONGEST`.

    Raises:
        UserError: it is less, or more.
    """
    if length < 1:
        raise UserError(
            f"{option}={length}: a draft has at least 1 token; use the policy none for plain decoding"
        )
    if length > LONGEST:
        raise UserError(f"{option}={length}: a draft has at most {LONGEST} tokens")
    return length


def parse_stop(text: str) -> Stop:
    """Return a stop rule written as `svip` or `svip(0.6)`.

    Raises:
        UserError: an unknown rule, or a threshold that is no number.
    """
    name, bracket, number = text.partition("(")
    if name not in stops.DEFAULTS:
        raise UserError(
            f"stop={text}: choose from {', '.join(stops.DEFAULTS)}, with a threshold as svip(0.6)"
        )
    if not bracket:
        return Stop(name, stops.DEFAULTS[name])
    try:
        threshold = float(number[:-1]) if number.endswith(")") else nan
    except ValueError:
        threshold = nan
    if not isfinite(threshold):
        raise UserError(f"stop={text}: the threshold is not a number; write svip(0.6)")
    return Stop(name, threshold)


def in_use(arms: Sequence[Arm], context: Context) -> Sequence[int]:
    """The arms whose drafters are in use; all of them if none is, since a draft then comes out empty."""
    if not context.unavailable:
        return range(len(arms))
    return [i for i, arm in enumerate(arms) if arm.drafter not in context.unavailable] or range(len(arms))
