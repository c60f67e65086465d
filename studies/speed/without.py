"""`auto` with one of its parts left out or replaced: the variants of the ablation, built from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from draftwise.core.arms import NEVER, Context, Stop
from draftwise.core.outcomes import Feedback
from draftwise.policies.auto.chances import CONTEXTS, Acceptance
from draftwise.policies.auto.drafts import LENGTHS, Candidate
from draftwise.policies.auto.guard import Guard
from draftwise.policies.auto.policy import SLOW, AutoPolicy, Text
from draftwise.policies.auto.prices import DraftPrice, PassPrice, Rate, RoundCosts
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.catalogue import Method
from draftwise.policies.catalogue.auto import team

PARTS = (
    "at once",  # what a round has shown and taken is learned one round later, as where passes overlap
    "cascades",  # none is weighed
    "costs",  # a flat price: each drafted token takes the same small part of a target pass
    "forgetting",  # all drafts count alike, however long ago
    "gradings",  # models are known by their own drafts alone
    "guard",  # speculation is never turned off
    "hints",  # any match is a match, of any length
    "last token",  # of a text changes no chance
    "length",  # all drafts have one length
    "lookups",  # are known by their own drafts alone
    "pace",  # one rate for all places
    "price",  # drafts are free: as many accepted tokens a round as possible
    "reading",  # a model reads the text for nothing
    "stop",  # drafts have their full length, whatever their drafter's confidence
)
ONE = 8  # tokens, where there is one draft length
FLAT = 0.05  # of a plain target pass, per drafted token of any drafter
FREE_READING = frozenset({"costs", "price", "reading"})


class Without(AutoPolicy):
    """`AutoPolicy`, where some parts are `missing` from what it does in a round."""

    missing = frozenset[str]()
    late: list[Callable[[], None]] | None = None  # what the last round has to teach

    def learn(self, feedback: Feedback) -> None:
        if "at once" not in self.missing:
            super().learn(feedback)
            return
        self.late = [*(self.late or ()), lambda: super(Without, self).learn(feedback)]

    def spent(self, costs: RoundCosts, reading: float) -> None:
        if "at once" not in self.missing:
            super().spent(costs, reading)
            return
        for teach in self.late or ():  # of the round before
            teach()
        self.late = [lambda: super(Without, self).spent(costs, reading)]

    def _text(self, context: Context) -> Text:
        if "hints" in self.missing:
            context = replace(context, hints={name: min(1.0, hint) for name, hint in context.hints.items()})
        return super()._text(context)

    def _reading(self, i: int, context: Context, text: Text, curve: Sequence[float]) -> float:
        return 0.0 if self.missing & FREE_READING else super()._reading(i, context, text, curve)

    def _stop(self, best: Candidate, batch: int, passes: PassPrice, rate: float) -> Stop:
        return NEVER if "stop" in self.missing else super()._stop(best, batch, passes, rate)


class FlatPass(PassPrice):
    """Each token beyond the smallest pass adds the same `share` of its seconds."""

    share = FLAT

    def __call__(self, tokens: float) -> float:
        plain = self.seconds_of_smallest() if self.has_readings else 0.0
        return plain * (1.0 + self.share * (tokens - self.sizes[0])) if plain else 0.0


class FreePass(FlatPass):
    """Passes take the same seconds, however many tokens they have."""

    share = 0.0


class FreeCall(DraftPrice):
    """A drafter takes no time."""

    def __call__(self, batch: int) -> tuple[float, float]:
        return 0.0, 0.0


class AnyToken(Acceptance):
    """The last token of a text does not change any chance."""

    def after(self, last: int, context: int) -> Sequence[float]:
        return self.survival(context)


class NoGuard(Guard):
    """Speculation is never turned off."""

    def allows(self, gain: float, rounds: float) -> bool:
        return True


class NotGraded(AutoRecorder):
    """No model is graded."""

    def _grade(self, *given: object) -> None:
        pass


def without(part: str, drafters: Sequence[str], *, length: int = LENGTHS[-1]) -> Method:
    """`auto` without this part; all of it for an empty name."""
    if part not in ("", *PARTS):
        raise ValueError(f"no part {part!r} of auto: one of {', '.join(PARTS)}")
    lengths = [min(ONE, length)] if part == "length" else [*(n for n in LENGTHS if n < length), length]
    policy = Without(*team(drafters, lengths), cascades_from=inf if part == "cascades" else SLOW)
    policy.missing = frozenset({part})
    n = len(policy.drafters)
    if part in ("costs", "price"):
        passes = FlatPass if part == "costs" else FreePass
        policy.pass_prices = [passes() for _ in policy.pass_prices]
        policy.draft_prices = [FreeCall() for _ in policy.draft_prices]
    elif part == "forgetting":
        policy.acceptance = [Acceptance(LENGTHS[-1], memory=1.0) for _ in range(n)]
    elif part == "last token":
        policy.acceptance = [AnyToken(LENGTHS[-1]) for _ in range(n)]
    elif part == "gradings":  # a model may play at once, as if half of one test of each context were accepted
        for acceptance in (one for one, up in zip(policy.acceptance, policy.looks_up, strict=True) if not up):
            for context in range(CONTEXTS):
                acceptance.learn(context, (0.5,))
    elif part == "guard":
        policy.guards = [NoGuard() for _ in policy.guards]
    elif part == "pace":
        policy.rates = [Rate(lean=1e12) for _ in policy.rates]
    recorder = NotGraded if part == "gradings" else AutoRecorder
    return Method(policy, recorder(policy, guessing=inf if part == "lookups" else 0.0))
