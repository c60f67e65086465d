"""`auto` with one of its parts left out or replaced: the variants of the ablation, built from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from draftwise.core.arms import NEVER, Stop
from draftwise.core.roles import RoundRecord
from draftwise.policies.auto.acceptance import AcceptanceEstimate, Calibration, LastToken
from draftwise.policies.auto.candidates import (
    CONTEXTS,
    LENGTHS,
    Candidate,
    Price,
    match_length,
    measured,
    new_skill,
)
from draftwise.policies.auto.costs import Throughput
from draftwise.policies.auto.grading import SHARE, Budget, GradingState, ModelGrading
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.catalogue import Method
from draftwise.policies.catalogue.auto import team

FLAT = 0.05  # of a plain target pass, per drafted token of any drafter
ONE = 8  # tokens, where there is one draft length
Passes = Callable[[int], float]


def flat(start: float, each: float, reading: float, extra: Sequence[float], plain: Passes) -> Price:
    """Every drafted token costs the same small part of a target pass: nothing is measured."""
    alone = plain(1)
    return 0.0, 0.0, [FLAT * alone * k for k in range(len(extra))]


def free(start: float, each: float, reading: float, extra: Sequence[float], plain: Passes) -> Price:
    """Drafts cost nothing: as many accepted tokens a round as possible."""
    return 0.0, 0.0, [0.0] * len(extra)


def free_reading(start: float, each: float, reading: float, extra: Sequence[float], plain: Passes) -> Price:
    """Reading the text costs nothing."""
    return measured(start, each, 0.0, extra, plain)


def always(candidates: Sequence[Candidate]) -> Candidate | None:
    """The best draft of at least one token, even if plain decoding is better."""
    for worth in candidates:
        worth.length, worth.gain = max(1, worth.length), worth.gain + 1e6
    return max(candidates, key=lambda worth: worth.gain, default=None)


def never_stop(calibration: Calibration, least: float) -> Stop:
    """A draft has its full length, whatever its drafter's confidence."""
    return NEVER


class OnePace(Throughput):
    """One rate for all places."""

    def rate(self, matched: bool, alone: float) -> float:
        """The rate of all places together."""
        seconds = sum(self.seconds)
        return sum(self.tokens) / seconds if seconds > 0.0 else 0.0


def any_match(hint: float) -> int:
    """A match is a match, of any length."""
    return min(1, match_length(hint))


def even_odds() -> AcceptanceEstimate:
    """An acceptance model of a drafter that may play at once: one test in each context, half accepted."""
    first = [0.0] * (LENGTHS[-1] - 1)
    tested, accepted = ([[x, *first] for _ in range(CONTEXTS)] for x in (1.0, 0.5))
    return AcceptanceEstimate(CONTEXTS, LENGTHS[-1], tested=tested, accepted=accepted)


class AnyToken(LastToken):
    """The last token of a text does not change any chance."""

    def __call__(self, token: int) -> float:
        """Chances are those of the context."""
        return 1.0


class NoGuard:
    """Speculation is never turned off."""

    def is_enabled(self, load: float = 1.0, batch: int = 1, gain: float = 0.0) -> bool:
        """Always."""
        return True

    def add(self, seconds: float, plain: float, batch: int = 1) -> None:
        """Nothing is compared."""


class Unlimited(Budget):
    """Any time may be spent on drafters that do not play."""

    def allows(self, spent: float) -> bool:
        """Always."""
        return True


class EveryToken(ModelGrading):
    """Grades a model as soon as there is a token that it has not read."""

    def ready(self, i: int, name: str, seen: RoundRecord, notes: GradingState, batch: int) -> bool:
        """Return whether there is such a token."""
        return notes.pending(i, len(seen.request.tokens)) > 0 and name not in seen.request.disabled


class Late(ModelGrading):
    """Grades a new model on as many tokens as any other, not at once."""

    def ready(self, i: int, name: str, seen: RoundRecord, notes: GradingState, batch: int) -> bool:
        """Return whether enough of this text waits for this model to be graded on."""
        self.new = set()
        return ModelGrading.ready(self, i, name, seen, notes, batch)


class AllRead(GradingState):
    """A text of which every model is taken to have read all that was there when the round began."""

    def pending(self, i: int, tokens: int) -> int:
        """The tokens of this round alone."""
        return tokens - self.at


@dataclass(frozen=True)
class Variant:
    """The replacement of a part: options of `AutoPolicy` and `AutoRecorder`, and one length or all."""

    policy: Callable[[], Mapping[str, Any]] = dict
    recorder: Callable[[], Mapping[str, Any]] = dict
    one_length: bool = False


PARTS: Mapping[str, Variant] = {
    "costs": Variant(lambda: {"pricing": flat}),
    "price": Variant(lambda: {"pricing": free}),
    "length": Variant(one_length=True),
    "others": Variant(lambda: {"new_skill": even_odds}, lambda: {"lookups": None, "models": None}),
    "lookups": Variant(recorder=lambda: {"lookups": None}),
    "gradings": Variant(lambda: {"new_skill": even_odds}, lambda: {"models": None}),
    "stop": Variant(lambda: {"stopping": never_stop}),
    "forgetting": Variant(lambda: {"new_skill": partial(new_skill, memory=1.0, own_memory=1.0)}),
    "text": Variant(lambda: {"new_skill": partial(new_skill, own_lean=1e12)}),
    "guard": Variant(lambda: {"guard": NoGuard()}),
    "none": Variant(lambda: {"guard": NoGuard(), "pick": always}),
    "thinning": Variant(recorder=lambda: {"budget": Unlimited(), "models": EveryToken()}),
    "at once": Variant(recorder=lambda: {"models": Late()}),
    "pace": Variant(lambda: {"pace": OnePace()}),
    "last token": Variant(lambda: {"new_skill": partial(new_skill, last=AnyToken())}),
    "hints": Variant(lambda: {"match": any_match}),
    "cascades": Variant(lambda: {"cascades_from": inf}),
    "reading": Variant(lambda: {"pricing": free_reading}, lambda: {"notes": AllRead}),
}
"""The variant that lacks each part."""


def without(part: str, drafters: Sequence[str], *, length: int = LENGTHS[-1], share: float = SHARE) -> Method:
    """`auto` without this part; all of it for an empty name."""
    variant = PARTS[part] if part else Variant()
    usual = [*(n for n in LENGTHS if n < length), length]
    policy = AutoPolicy(
        *team(drafters, [min(ONE, length)] if variant.one_length else usual), **variant.policy()
    )
    return Method(policy, AutoRecorder(policy, **{"budget": Budget(share), **variant.recorder()}))
