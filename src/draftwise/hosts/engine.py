"""What an engine tells between its steps, and what its text says of the drafts that it verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from ..core.drafts import Draft
from ..core.roles import Policy
from ..core.team import EMPTY
from ..errors import UserError


@dataclass(frozen=True, slots=True)
class Engine:
    """What drafters are checked against: the size of the target's vocabulary and of its window."""

    vocab_size: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request as it stands after an engine's step, by a `key` that the engine knows it by.

    `new` are the tokens that the step wrote, the last of `length` in all, of which `text` gives those from a
    position on; `prompt` is the length of the prompt and `room` how many tokens may still follow. `verified`
    is how many drafted tokens the step really looked at (-1: all that were proposed), `ends` the tokens that
    end a text, and `overlaps` the target's raw probabilities of the drafted tokens, where it gives them.
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
    """The target's scores as a text shows them: at each position, all on the token that came."""

    draft: Draft
    tokens: Sequence[int]
    raw: Sequence[float] = ()

    def choice(self, node: int) -> int:
        """The token that came."""
        return self.tokens[node + 1]

    def prob(self, node: int) -> float:
        """1 where the drafted token came."""
        return float(node < len(self.tokens) and self.draft.tokens[node] == self.tokens[node])

    def residual(self, node: int) -> int:
        """The token that came instead."""
        return self.tokens[node]

    def logprob(self, node: int, token: int) -> float:
        """Unknown."""
        return nan

    def chance(self, node: int, token: int) -> float:
        """1 for the token that came."""
        return float(self.tokens[node + 1] == token)

    def laws(self, nodes: Sequence[int]) -> Any:
        """One-hot rows, which no caller needs."""
        return None

    def overlaps(self) -> Sequence[float]:
        """The target's raw probability of each drafted token; without it, whether it was accepted."""
        if self.raw:
            return self.raw
        found, alive = [], True
        for node in range(len(self.draft.tokens)):
            alive = alive and bool(self.prob(node))
            found.append(float(alive))
        return found


def verified(row: Row, draft: Draft) -> Draft:
    """The part of a draft that the engine looked at."""
    n = len(draft.tokens)
    if row.verified < 0 or row.verified >= n:
        return draft
    if not row.verified:
        return EMPTY
    k = row.verified
    return Draft.chain(draft.tokens[:k], probs=draft.probs[:k], signals=draft.signals[:k])


def chains_only(policy: Policy, drafters: Collection[str]) -> None:
    """Refuse a policy that drafts trees: an engine that verifies by itself verifies chains.

    Raises:
        UserError: it has such an arm, or one of a drafter that is not there.
    """
    for arm in policy.arms:
        if arm.width > 1 or (arm.length and arm.drafter not in drafters):
            raise UserError(
                f"the arm {arm.name} drafts trees, and this engine verifies chains: name another policy"
            )
