"""Transformers' rule of thumb for the draft length."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..state.learned import LEARNED
from .adaptive import HeuristicLength


@dataclass(slots=True)
class LengthPolicy:
    """One arm per length, 1 to the longest; all accepted is two longer next time, else one shorter.

    `transient` starts each text afresh, as Transformers' schedule `heuristic_transient`; its `heuristic`
    continues from text to text.
    """

    arms: tuple[Arm, ...]
    start: int
    transient: bool = False
    reads_hints: bool = False
    shared: HeuristicLength = field(init=False, metadata=LEARNED)
    own: dict[int, HeuristicLength] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shared = HeuristicLength(self.start)

    def choose(self, context: Context, rng: Random) -> Decision:
        """The arm of the present length."""
        arm = min(self._length(context.request).length, len(self.arms)) - 1
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """Longer or shorter."""
        rule = self._length(feedback.request)
        for outcome in feedback.outcomes:
            rule.update(drafted=outcome.drafted, accepted=outcome.accepted)
            rule.length = min(rule.length, len(self.arms))

    def close(self, request: int) -> None:
        """Forget what one text has set."""
        self.own.pop(request, None)

    def _length(self, request: int) -> HeuristicLength:
        if not self.transient:
            return self.shared
        if request not in self.own:
            self.own[request] = HeuristicLength(self.start)
        return self.own[request]
