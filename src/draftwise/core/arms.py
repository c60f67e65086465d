"""The arms that a policy chooses among, and its decision. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Stop:
    """When a draft ends early: a rule and its threshold.

    The token that triggers the rule stays in the draft, which keeps early stopping lossless.

    Attributes:
        rule: A name of `draftwise.core.stops.RULES`.
        threshold: In that rule's own units: a probability, the root of an entropy in nats, a perplexity.
        scorer: The classifier of a learned rule, with a method `score(signals)` that returns a
            probability; compared by identity.
        shortest: Minimum draft length: no rule applies before.
        deeper: Of `gain` in a tree: the least expected tokens of a depth after which another is drafted.
    """

    rule: str = "never"
    threshold: float = 0.0
    scorer: Any = None
    shortest: int = 1
    deeper: float = 0.0


NEVER = Stop()


@dataclass(frozen=True, slots=True)
class HandOver:
    """With a match of at least `match` tokens the second part of a composite draft adds at most `tokens`.

    It takes over at the end of the first part, or as soon as there is such a match if `inside`. Of several
    hand-overs the last one whose match is there counts.
    """

    match: int
    tokens: int
    inside: bool = True


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: the drafter, the maximum draft length, and the rule for stopping early.

    Attributes:
        drafter: The drafter's name in the loop.
        length: Maximum draft length in tokens, of each branch in a tree; 0 is plain decoding.
        width: The branches of a tree; 1 for chains.
        stop: One rule for the whole draft, or one per draft position; the last applies to all later ones.
    """

    drafter: str
    length: int
    width: int = 1
    stop: Stop | tuple[Stop, ...] = NEVER

    @property
    def stops(self) -> tuple[Stop, ...]:
        """The stop rules, one per draft position; the last applies to all later positions."""
        return self.stop if isinstance(self.stop, tuple) else (self.stop,)

    @property
    def name(self) -> str:
        """A short label, unique among different arms: `ngram:5`, `zoo:code:4~svip(0.6)`."""
        if self.length == 0:
            return "none"
        rules = ",".join(f"{s.rule}({s.threshold:g})" for s in self.stops if s.rule != "never")
        wide = f"x{self.width}" if self.width > 1 else ""
        return f"{self.drafter}:{self.length}{wide}" + (f"~{rules}" if rules else "")


@dataclass(slots=True)
class Context:
    """What a policy may use to choose an arm before a round: numbers only.

    Attributes:
        request: The request's id; the same in `Feedback` and in `Policy.close`.
        batch_size: Requests in this round.
        position: Tokens written since the prompt.
        last_accepted: Draft tokens accepted in the previous round; -1 before the first round.
        hints: One finite score per drafter by name, 0 = no draft available; empty unless the policy
            `reads_hints`. A disabled drafter has none.
        unavailable: Drafters that cannot draft for this request now: they failed or are not ready.
        length: Tokens of the text, the prompt included.
        token: Its last token; -1 if that is unknown.
        remaining: Tokens that may still be written; infinite if that is unknown.
    """

    request: int = 0
    batch_size: int = 1
    position: int = 0
    last_accepted: int = -1
    hints: Mapping[str, float] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()
    length: int = 0
    token: int = -1
    remaining: float = inf


@dataclass(slots=True, unsafe_hash=True)
class Decision:
    """The chosen arm, the probability with which it was chosen, and the stop rules in force at that time.

    Attributes:
        arm: An index into `Policy.arms`.
        propensity: The probability in (0, 1] of choosing this arm; 1 for deterministic choices, NaN if it
            has no closed form. Delayed feedback is divided by it.
        stops: One rule per draft position, the last for all later ones; at least one.
        hand_overs: From which match on the second part of a cascade takes over, the shortest first; empty: as
            the drafter itself says.
    """

    arm: int
    propensity: float = 1.0
    stops: tuple[Stop, ...] = (NEVER,)
    hand_overs: tuple[HandOver, ...] = ()
