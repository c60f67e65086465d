"""`auto` with one of its parts taken out: what the part is worth is what is lost without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...core.arms import NEVER, Context, Stop
from ...core.roles import Graders, Seen
from .guard import Guard
from .policy import CONTEXTS, LENGTHS, AutoPolicy, Place, Price, Worth
from .recorder import Notes, Watch
from .skill import Skill

FLAT = 0.05  # of a target pass, for a drafted token of whoever it is


class FlatPrice(AutoPolicy):
    """Every drafted token costs the same small part of a target pass, whoever drafts it: nothing measured."""

    def _price(self, start: float, each: float, extra: Sequence[float]) -> Price:
        plain = self.passes[0](1)
        return 0.0, 0.0, [FLAT * plain * k for k in range(len(extra))]


class NoPrice(AutoPolicy):
    """As many accepted tokens a round as can be had, whatever they cost."""

    def _price(self, start: float, each: float, extra: Sequence[float]) -> Price:
        return 0.0, 0.0, [0.0] * len(extra)


class OneLength(AutoPolicy):
    """Drafts of eight tokens or none: the drafter is chosen, the length is not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lengths = (min(8, self.lengths[-1]),)


class NoStop(AutoPolicy):
    """A draft goes to its length, however unsure its drafter becomes."""

    def _stop(self, i: int, batch: int) -> Stop:
        return NEVER


class NoForgetting(AutoPolicy):
    """All that was ever seen counts alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skills = [Skill(CONTEXTS, LENGTHS[-1], memory=1.0, own_memory=1.0) for _ in self.drafters]


class NoText(AutoPolicy):
    """A text has no counts of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skills = [Skill(CONTEXTS, LENGTHS[-1], own_lean=1e12) for _ in self.drafters]


class NoGuard(AutoPolicy):
    """Nothing holds the seconds spent against plain decoding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.guard = _Open()


class AlwaysDrafts(NoGuard):
    """No speculation is no arm: whoever may draft does, even where it does not pay."""

    def worths(self, context: Context, place: Place) -> list[Worth]:
        found = super().worths(context, place)
        for worth in found:
            worth.length, worth.gain = max(1, worth.length), worth.gain + 1e6
        return found


class NoHints(AutoPolicy):
    """A match is a match, however long it is."""

    def _place(self, context: Context) -> Place:
        place = super()._place(context)
        place.contexts = [min(1, match) for match in place.contexts]
        place.best = min(1, place.best)
        return place


class NoReading(AutoPolicy):
    """Reading the text into a drafter is taken to cost nothing."""

    def worths(self, context: Context, place: Place) -> list[Worth]:
        place.read = [context.length] * len(place.read)
        return super().worths(context, place)


class PlayedOnly(AutoPolicy):
    """Whoever is not known may play, since nobody watches it (see `Deaf`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for skill in self.skills:
            for tested, accepted in zip(skill.tested, skill.accepted, strict=True):
                tested[0], accepted[0] = 1.0, 0.5


class Deaf(Watch):
    """Learns from the drafts that were played alone: a bandit's feedback."""

    def _guess(self, i: int, context: int, seen: Seen, start: int, graders: Graders, notes: Notes) -> None:
        """Nobody is asked."""

    def _due(self, batch: Sequence[Seen], graders: Graders) -> list[int]:
        return []


class Thorough(Watch):
    """Grades every model on every token of the text, at any price."""

    def _broke(self, graders: Graders) -> bool:
        return False

    def _ready(self, i: int, seen: Seen, batch: int) -> bool:
        unread = len(seen.request.tokens) - self.policy.places[seen.request.id].read[i]
        return unread > 0 and self.policy.drafters[i] not in seen.request.out


class _Open(Guard):
    def stands(self, load: float = 1.0, batch: int = 1) -> bool:
        return True


Make = Callable[..., AutoPolicy]
PARTS: Mapping[str, tuple[Make, Callable[..., Watch]]] = {
    "costs": (FlatPrice, Watch),
    "price": (NoPrice, Watch),
    "length": (OneLength, Watch),
    "others": (PlayedOnly, Deaf),
    "stop": (NoStop, Watch),
    "forgetting": (NoForgetting, Watch),
    "text": (NoText, Watch),
    "guard": (NoGuard, Watch),
    "none": (AlwaysDrafts, Watch),
    "thinning": (AutoPolicy, Thorough),
    "hints": (NoHints, Watch),
    "reading": (NoReading, Watch),
}
"""What `auto?without=PART` is made of, by the part that is taken out."""
