"""What a policy chooses among, and what it chose. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop rule and its number: draft on, or let the target look?

    The token that triggered the rule stays in the draft, which is what keeps early stopping lossless.
    `rule` is a name of `draftwise.core.stops`; `threshold` is in that rule's own units. `scorer` is the
    classifier that a learned rule asks (`draftwise.policies.classifiers.stopping`), told apart by identity.
    No rule fires before the draft has `shortest` tokens.
    """

    rule: str = "never"
    threshold: float = 0.0
    scorer: Any = None
    shortest: int = 1


NEVER = Stop()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: who drafts, at most how many tokens, and when to stop early.

    `stop` is one rule for the whole draft, or one per draft position. `length` 0 is plain decoding.
    """

    drafter: str
    length: int
    width: int = 1
    stop: Stop | tuple[Stop, ...] = NEVER

    @property
    def stops(self) -> tuple[Stop, ...]:
        """The stop rules, one per draft position, the last for all later ones."""
        return self.stop if isinstance(self.stop, tuple) else (self.stop,)

    @property
    def name(self) -> str:
        """A short label, unique among arms that differ: `ngram:5`, `zoo:code:4~svip(0.6)`."""
        if self.length == 0:
            return "none"
        rules = ",".join(f"{s.rule}({s.threshold:g})" for s in self.stops if s.rule != "never")
        wide = f"x{self.width}" if self.width > 1 else ""
        return f"{self.drafter}:{self.length}{wide}" + (f"~{rules}" if rules else "")


@dataclass(frozen=True, slots=True)
class Context:
    """All a policy may look at before a round: numbers only.

    `position` counts the tokens written, `length` those of the prompt as well; `last_accepted` is -1 before
    the first round, `hints` holds one cheap score per drafter (0 = nothing to offer), `unavailable` names
    those that are out of use here.
    """

    request: int = 0
    batch_size: int = 1
    position: int = 0
    last_accepted: int = -1
    hints: Mapping[str, float] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()
    length: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen arm, the probability it was chosen with, and the stop rules as they stood then.

    `stops` has one rule per draft position, the last for all later ones. Late feedback needs this propensity.
    """

    arm: int
    propensity: float = 1.0
    stops: tuple[Stop, ...] = (NEVER,)
