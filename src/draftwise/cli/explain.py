"""Why the policy `auto` chose each arm, for every 16 tokens."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from draftwise.errors import UserError

from .tables import table

if TYPE_CHECKING:
    from draftwise.generation.decoder import Decoder
    from draftwise.policies.auto.candidates import Reason
    from draftwise.policies.auto.policy import AutoPolicy

STRETCH = 16  # tokens in one row
CELL = "tokens for time: worth in tokens"


def gives_reasons(policy: object) -> AutoPolicy:
    """The policy itself, which can say why it chose an arm.

    Raises:
        UserError: it is not `auto`.
    """
    from draftwise.policies.auto.policy import AutoPolicy

    if not isinstance(policy, AutoPolicy):
        raise UserError("--explain: only the policy auto gives reasons; leave out --policy or --explain")
    return policy


def reasons_of(decoder: Decoder) -> list[Reason]:
    """The list to which the policy appends its reasons.

    Raises:
        UserError: the policy is not `auto`.
    """
    policy = gives_reasons(decoder.loop.policy)
    policy.reasons = []
    return policy.reasons


def show_reasons(reasons: Sequence[Reason], drafters: Sequence[str]) -> None:
    """A table on standard error."""
    asked = [name for name in drafters if name != "none"]
    heads = ("tokens", "tokens/s", "played", *(f"{name} ({CELL})" for name in asked))
    table(heads, list(rows(reasons, asked)), stream=sys.stderr)


def rows(reasons: Sequence[Reason], drafters: Sequence[str]) -> Iterator[list[str]]:
    """One row for 16 tokens: position, rate, arms played, and the means of each drafter's expected tokens,
    milliseconds and gain in tokens; no numbers while its cost is unknown."""
    for stretch, group in groupby(reasons, lambda reason: reason.position // STRETCH):
        mine = list(group)
        played = Counter("off" if r.paused else r.arm.name for r in mine)
        yield [
            f"{stretch * STRETCH}-{(stretch + 1) * STRETCH - 1}",
            f"{sum(r.rate for r in mine) / len(mine):.0f}",
            ", ".join(f"{name} x{n}" for name, n in played.most_common()),
            *(_promise(mine, i) for i in range(len(drafters))),
        ]


def _promise(reasons: Sequence[Reason], drafter: int) -> str:
    mine = [worth for reason in reasons for worth in reason.candidates if worth.drafter == drafter]
    candidates = [worth for worth in mine if not worth.trial]
    if not candidates:
        return "being tried" if mine else "-"
    n = len(candidates)
    tokens, seconds, gain = (
        sum(getattr(w, key) for w in candidates) / n for key in ("tokens", "seconds", "gain")
    )
    return f"{tokens:.1f} for {1000 * seconds:.1f} ms: {gain:+.1f}"
