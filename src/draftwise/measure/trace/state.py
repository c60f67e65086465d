"""A recording prepared for replay: every drafter's drafts, in plain lists, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from ...core.arms import Stop
from ...core.drafts import Draft, Job, Signals
from ...core.outcomes import Grade
from ...core.stops import factor, needs, stop
from ...errors import UserError
from .files import FIELDS, RecordedDrafts, Recording

UNKNOWN = (
    "the policy stops drafts that a model samples, or picks where it would sample, and of sampled drafts a "
    "trace knows only what was accepted: record at --temperature 0"
)


class RecordedDrafter:
    """One drafter on one text, in plain lists; those of spans, signals and grades are made on first use."""

    def __init__(self, drafts: RecordedDrafts, text: Sequence[int]) -> None:
        self.drafts, self.given, self.text = drafts, drafts.given or {}, text
        self.accept: list[float] = drafts.accept.tolist()
        self.shared: list[float] = drafts.shared.tolist()
        self.tokens: list[int] = drafts.tokens.tolist()
        self.hint: list[float] = drafts.hint.tolist()
        self.overlap: list[float] = drafts.overlap.tolist()
        self.signals, self.grades = cache(self._make_signals), cache(self._make_grades)
        start, count = drafts.start, drafts.count
        self._spans = cache(lambda length: (start[:, length - 1].tolist(), count[:, length - 1].tolist()))

    def span(self, at: int, length: int) -> tuple[int, int]:
        """Return the start of the draft of at most `length` tokens at position `at`, and its token count."""
        start, count = self._spans(length)
        return start[at], count[at]

    def stopped_span(self, at: int, length: int, stops: tuple[Stop, ...]) -> tuple[int, int]:
        """Return the start of that draft, and how many of its tokens the stop rules leave."""
        first, n = self.span(at, length)
        if n and (names := _read_signals(stops)):
            n = _stop_at(self.signals(names)[first : first + n], stops)
        return first, n

    def draft(self, at: int, job: Job) -> Draft:
        """Return the recorded draft at this position, ended by the job's stop rules."""
        first, n = self.stopped_span(at, job.length, job.stops)
        if job.until is not None:
            n = next((k for k in range(1, n) if job.until(self.tokens[first : first + k])), n)
        if not n:
            return Draft()
        tokens = tuple(self.tokens[first : first + n])
        signals = tuple(self.signals(_read_signals(job.stops))[first : first + n])
        return Draft(tokens, _chain(n), (), None, signals, (self, first))

    def _make_grades(self, names: frozenset[str]) -> list[Grade]:
        """Return the grade of every token: probabilities for a sampled text, otherwise 1 or 0."""
        if self.accept:
            return [Grade(*pair) for pair in zip(self.accept, self.shared, strict=True)]
        signals, grades = self.signals(names), []
        for at in range(len(self.drafts.start)):
            first, n = self.span(at, 1)
            accept = float(n > 0 and self.tokens[first] == self.text[at])
            grades.append(Grade(accept, accept, signals[first] if names and n and signals else None))
        return grades

    def chances(self) -> dict[tuple[int, int], float]:
        """Return the target's probability of each token in a lookup's drafts, up to the first off the text.

        Keys are (position, token).
        """
        chances, text = dict[tuple[int, int], float](), self.text
        chance: list[float] = self.drafts.chance.tolist()
        for length in range(1, self.drafts.start.shape[1] + 1) if chance else ():
            for at in range(len(self.drafts.start)):
                first, n = self.span(at, length)
                for k in range(min(n, len(text) - at)):
                    chances[at + k, self.tokens[first + k]] = chance[first + k]
                    if self.tokens[first + k] != text[at + k]:
                        break
        return chances

    def _make_signals(self, names: frozenset[str]) -> list[Signals]:
        """Return the signals of all tokens as a draft has them when rules read `names`; empty if none."""
        read = [self.given.get(name) for name in ("", *names)]
        if all(fields is None for fields in read):
            return []
        given = {field for fields in read for field in fields or ()}
        columns = [
            self.drafts.signals[:, k].tolist() if name in given else [0.0] * len(self.tokens)
            for k, name in enumerate(FIELDS)
        ]
        return [Signals(*row) for row in zip(*columns, strict=True)]


@dataclass(slots=True)
class ReplayState:
    """One recording prepared for replay: its text, every drafter, and the target's known probabilities."""

    recording: Recording
    text: list[int] = field(init=False)
    drafters: dict[str, RecordedDrafter] = field(init=False)
    chances: dict[tuple[int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        recording = self.recording
        self.text = recording.text.tolist()
        self.drafters = {
            name: RecordedDrafter(drafts, self.text) for name, drafts in recording.drafts.items()
        }
        if recording.probs.size:
            own = dict(zip(enumerate(self.text), recording.probs.tolist(), strict=True))
            for drafter in self.drafters.values():
                self.chances |= drafter.chances()
            self.chances |= own

    def draft(self, name: str, at: int, job: Job) -> Draft:
        """Return the draft of a drafter at a position.

        If a model that is no head samples, only the accepted part of its draft is known: the text takes the
        draft's place.
        """
        drafter = self.drafters[name]
        if drafter.tokens or not drafter.accept:
            return drafter.draft(at, job)
        if any(rule.rule != "never" for rule in job.stops):
            raise UserError(UNKNOWN)
        tokens = tuple(self.text[at : at + job.length])
        return Draft(tokens, _chain(len(tokens)), (1.0,) * len(tokens), drafter)


@cache
def _chain(n: int) -> tuple[int, ...]:
    """Return the parents of a chain of `n` tokens."""
    return tuple(range(-1, n - 1))


def _read_signals(stops: tuple[Stop, ...]) -> frozenset[str]:
    return frozenset() if len(stops) == 1 and stops[0].rule == "never" else needs(stops)


def _stop_at(signals: Sequence[Signals], stops: tuple[Stop, ...]) -> int:
    """Return how many tokens are drafted until a rule applies, including the one that triggers it."""
    joint, previous, last = 1.0, None, len(stops) - 1
    for position, now in enumerate(signals):
        rule = stops[min(position, last)]
        joint *= factor(rule, now, position=position)
        if rule.rule != "never" and stop(rule, now, position=position, previous=previous, joint=joint):
            return position + 1
        previous = now
    return len(signals)
