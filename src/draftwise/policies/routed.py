"""The drafter that a classifier of prompts picks, for the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from ..core.arms import Arm, Context, Decision
from ..core.outcomes import Feedback
from ..errors import UserError
from .arms import in_use
from .classifiers.routing import Router


@dataclass(slots=True)
class RoutedPolicy:
    """One arm for each drafter that the router knows, in its order; it learns nothing.

    The text is classified once when it is opened, and again with each turn of a conversation. Where the best
    drafter is out of use, the next best plays.
    """

    arms: tuple[Arm, ...]
    router: Router
    reads_hints: bool = False
    routes: dict[int, list[float]] = field(default_factory=dict)

    def open(self, request: int, tokens: Sequence[int]) -> None:
        """Read the prompt, or all there is of a conversation."""
        self.routes[request] = self.router.scores(tokens)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return the arm whose drafter suits the prompt best."""
        scores = self.routes[context.request]
        arm = max(in_use(self.arms, context), key=scores.__getitem__)
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """A router is trained beforehand."""

    def close(self, request: int) -> None:
        """Forget a text's route."""
        self.routes.pop(request, None)

    def check(self, vocabulary: str) -> None:
        """See that the router's terms are of this tokenizer, by its fingerprint.

        Raises:
            UserError: they are of another.
        """
        if self.router.vocabulary and self.router.vocabulary != vocabulary:
            raise UserError(
                "the router was trained for another tokenizer: train one for this target with "
                "`draftwise train router`"
            )
