"""The arms that a policy chooses among, and its decision. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop rule and its threshold: continue drafting, or verify now?

    The token that triggers the rule stays in the draft, which keeps early stopping lossless. `rule` is a name
    in `draftwise.core.stops`; `threshold` is in the units of that rule. `scorer` is the classifier of a
    learned rule (`draftwise.policies.classifiers.stopping`), compared by identity. No rule applies before the
    draft has `shortest` tokens.
    """

    rule: str = "never"
    threshold: float = 0.0
    scorer: Any = None
    shortest: int = 1


NEVER = Stop()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: the drafter, the maximum draft length, and the rule for stopping early.

    `stop` is one rule for the whole draft, or one per draft position. `length` 0 is plain decoding.
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


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy may use to choose an arm before a round: numbers only.

    `position` counts the tokens written; `length` also includes the prompt. `last_accepted` is -1 before the
    first round. `hints` holds one cheap score per drafter (0: no draft available). `unavailable` names the
    drafters that cannot be used for this request.
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
    """The chosen arm, the probability with which it was chosen, and the stop rules in force at that time.

    `stops` has one rule per draft position; the last applies to all later positions. Delayed feedback needs
    the probability (the propensity) and the rules.
    """

    arm: int
    propensity: float = 1.0
    stops: tuple[Stop, ...] = (NEVER,)
