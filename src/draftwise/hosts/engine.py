"""What an engine reports between its steps, and what its text shows about the drafts that it verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from ..core.drafter_pool import EMPTY
from ..core.drafts import Draft
from ..core.roles import Policy
from ..errors import UserError


@dataclass(frozen=True, slots=True)
class Engine:
    """The properties of the target that drafters are checked against: vocabulary size and context window."""

    vocab_size: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one request after an engine's step, identified by the engine's `key`.

    `new` are the tokens that the step wrote, the last of `length` in all; `text` returns the tokens from a
    position on. `prompt` is the length of the prompt and `room` how many tokens may still follow. `verified`
    is how many drafted tokens the step verified (-1: all that were proposed), `ends` the tokens that end a
    text, and `overlaps` the target's raw probabilities of the drafted tokens, if available.
    """

    key: Hashable
    length: int
    new: Sequence[int]
    text: Callable[[int], list[int]]
    prompt: int
    room: int
    verified: int = -1
    ends: frozenset[int] = frozenset()
    overlaps: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Target scores derived from the text: at each position, the token that was written has probability 1."""

    draft: Draft
    tokens: Sequence[int]
    raw: Sequence[float] = ()

    def choice(self, node: int) -> int:
        """The token that was written."""
        return self.tokens[node + 1]

    def prob(self, node: int) -> float:
        """1 if the drafted token was written."""
        return float(node < len(self.tokens) and self.draft.tokens[node] == self.tokens[node])

    def residual(self, node: int) -> int:
        """The token that was written instead."""
        return self.tokens[node]

    def logprob(self, node: int, token: int) -> float:
        """Unknown."""
        return nan

    def chance(self, node: int, token: int) -> float:
        """1 for the token that was written."""
        return float(self.tokens[node + 1] == token)

    def distributions(self, nodes: Sequence[int]) -> Any:
        """None: the rows are one-hot, and no caller needs them."""
        return None

    def overlaps(self) -> Sequence[float]:
        """The target's raw probability of each drafted token; if unknown, whether it was accepted."""
        if self.raw:
            return self.raw
        found, alive = [], True
        for node in range(len(self.draft.tokens)):
            alive = alive and bool(self.prob(node))
            found.append(float(alive))
        return found


def verified(row: Row, draft: Draft) -> Draft:
    """The part of a draft that the engine verified."""
    n = len(draft.tokens)
    if row.verified < 0 or row.verified >= n:
        return draft
    if not row.verified:
        return EMPTY
    k = row.verified
    return Draft.chain(draft.tokens[:k], probs=draft.probs[:k], signals=draft.signals[:k])


def chains_only(policy: Policy, drafters: Collection[str]) -> None:
    """Reject a policy that drafts trees: engines with their own verification verify chains only.

    Raises:
        UserError: it has such an arm, or an arm of a drafter that is missing.
    """
    for arm in policy.arms:
        if arm.width > 1 or (arm.length and arm.drafter not in drafters):
            raise UserError(
                f"the arm {arm.name} drafts trees, and this engine verifies chains: name another policy"
            )
