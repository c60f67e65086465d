"""A recording prepared for replay: every drafter's answers, in plain lists, by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from ...core.arms import Stop
from ...core.drafts import Draft, Job, Signals
from ...core.outcomes import Grade
from ...core.stops import factor, needs, stop
from ...drafters.together import merged
from ...errors import UserError
from ...policies.arms import TOGETHER
from .files import FIELDS, Answers, Recording


class Lines:
    """One drafter on one text; lists are made on first use."""

    def __init__(self, answers: Answers, given: Mapping[str, Sequence[str] | None] | None) -> None:
        self.answers, self.given = answers, given or {}
        self.accept: list[float] = answers.accept.tolist()
        self.shared: list[float] = answers.shared.tolist()
        self.tokens: list[int] = answers.tokens.tolist()
        self.hint: list[float] = answers.hint.tolist()
        self.overlap: list[float] = answers.overlap.tolist()
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        self._signals: dict[frozenset[str], Shown] = {}
        self._grades: dict[frozenset[str], list[Grade]] = {}

    def span(self, at: int, length: int) -> tuple[int, int]:
        """The start of the draft of at most `length` tokens at position `at`, and its number of tokens."""
        spans = self._spans.get(length)
        if spans is None:
            a = self.answers
            spans = a.start[:, length - 1].tolist(), a.count[:, length - 1].tolist()
            self._spans[length] = spans
        return spans[0][at], spans[1][at]

    def draft(self, at: int, job: Job) -> Draft:
        """The recorded draft at this position, ended by the job's stop rules."""
        first, n = self.ends(at, job.length, job.stops)
        if job.until is not None:
            n = next((k for k in range(1, n) if job.until(self.tokens[first : first + k])), n)
        if not n:
            return EMPTY
        return Draft(
            tuple(self.tokens[first : first + n]),
            _parents(n),
            (),
            None,
            self.signals(_read(job.stops)).of(first, n),
            (self, first),
        )

    def ends(self, at: int, length: int, stops: tuple[Stop, ...]) -> tuple[int, int]:
        """The start of that draft, and how many of its tokens the stop rules leave."""
        first, n = self.span(at, length)
        if n and (names := _read(stops)):
            n = _stopped(self.signals(names).of(first, n), stops)
        return first, n

    def grades(self, text: Sequence[int], names: frozenset[str]) -> list[Grade]:
        """The grade of every token of the text: probabilities for a sampled text, otherwise 1 or 0."""
        found = self._grades.get(names)
        if found is None:
            found = self._grades[names] = self._graded(text, names)
        return found

    def _graded(self, text: Sequence[int], names: frozenset[str]) -> list[Grade]:
        if self.accept:
            return [Grade(*known) for known in zip(self.accept, self.shared, strict=True)]
        shown, grades = self.signals(names), []
        for at in range(len(self.answers.start)):
            first, n = self.span(at, 1)
            hit = float(n > 0 and self.tokens[first] == text[at])
            seen = shown.of(first, 1) if names and n else ()
            grades.append(Grade(hit, hit, seen[0] if seen else None))
        return grades

    def chances(self, text: Sequence[int]) -> dict[tuple[int, int], float]:
        """The target's probability of each token in a lookup's drafts, up to the first off the text, by
        position.
        """
        found: dict[tuple[int, int], float] = {}
        chance: list[float] = self.answers.chance.tolist()
        for length in range(1, self.answers.start.shape[1] + 1) if chance else ():
            for at in range(len(self.answers.start)):
                first, n = self.span(at, length)
                for k in range(min(n, len(text) - at)):
                    found[at + k, self.tokens[first + k]] = chance[first + k]
                    if self.tokens[first + k] != text[at + k]:
                        break
        return found

    def signals(self, names: frozenset[str]) -> Shown:
        """The signals of all tokens as a draft has them when rules read `names`; empty if none."""
        found = self._signals.get(names)
        if found is None:
            found = self._signals[names] = self._carried(names)
        return found

    def _carried(self, names: frozenset[str]) -> Shown:
        read = [self.given.get(name) for name in ("", *names)]
        if all(fields is None for fields in read):
            return Shown([])
        carried = {field for fields in read for field in fields or ()}
        columns = [
            self.answers.signals[:, k].tolist() if name in carried else [0.0] * len(self.tokens)
            for k, name in enumerate(FIELDS)
        ]
        return Shown(list(zip(*columns, strict=True)))


class Shown:
    """Signals of all tokens, made on first use in a draft: most tokens are in no draft of a replay."""

    __slots__ = ("_made", "_rows")

    def __init__(self, rows: list[tuple[float, float, float, float]]) -> None:
        self._rows = rows
        self._made: list[Signals | None] = [None] * len(rows)

    def of(self, first: int, n: int) -> tuple[Signals, ...]:
        """The signals of `n` tokens from `first` on; empty if there are none."""
        made = self._made
        found = made[first : first + n]
        if None in found:
            for i in range(first, first + n):
                if made[i] is None:
                    made[i] = Signals(*self._rows[i])
            found = made[first : first + n]
        return tuple(found)  # type: ignore[arg-type]


@dataclass(slots=True)
class Stage:
    """One recording, and the lines of all drafters."""

    recording: Recording
    text: list[int] = field(init=False)
    lines: dict[str, Lines] = field(init=False)
    chances: dict[tuple[int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        one = self.recording
        self.text = one.text.tolist()
        self.lines = {name: Lines(found, one.given.get(name)) for name, found in one.answers.items()}
        if one.probs.size:
            self.chances = dict(zip(enumerate(self.text), one.probs.tolist(), strict=True))
            for lines in self.lines.values():
                self.chances = lines.chances(self.text) | self.chances

    def draft(self, name: str, at: int, job: Job) -> Draft:
        """The draft of a drafter, or of all of them together, at a position.

        If a model samples, only the accepted part of its draft is known: the text takes the draft's place.
        """
        if name != TOGETHER:
            lines = self.lines[name]
            if not lines.accept:
                return lines.draft(at, job)
            if any(rule.rule != "never" for rule in job.stops):
                raise UserError(UNKNOWN)
            tokens = tuple(self.text[at : at + job.length])
            return Draft(tokens, _parents(len(tokens)), (1.0,) * len(tokens), lines)
        alone = Job(job.request, job.length, job.stops)
        drafts = [lines.draft(at, alone) for lines in self.lines.values()]
        return merged(drafts, job.length * job.width)


class Heard:
    """The scores of one draft: the text has the target's choice after every node on its path.

    A sampled draft is accepted with the recorded probabilities given the text. Since they are conditional on
    the text, texts and random numbers together have exactly the distribution of live rounds.
    """

    __slots__ = ("at", "depth", "draft", "stage", "text")

    def __init__(self, stage: Stage, at: int, draft: Draft) -> None:
        self.stage, self.at, self.draft, self.text = stage, at, draft, stage.text
        self.depth = None if draft.is_chain else _depths(draft.parents)

    def choice(self, node: int) -> int:
        """The text's token after `node`."""
        depth = node + 1 if self.depth is None or node < 0 else self.depth[node]
        return self.text[self.at + depth]

    def prob(self, node: int) -> float:
        """The probability that a sampled `node` is accepted."""
        lines: Lines = self.draft.dist
        return lines.accept[self.at + node]

    def residual(self, node: int) -> int:
        """The text's token in place of `node`."""
        return self.choice(self.draft.parents[node])

    def logprob(self, node: int, token: int) -> float:
        """Log-probability of a token under the target; tokens not in the trace count as impossible."""
        return log(self.chance(node, token) or 5e-324)

    def chance(self, node: int, token: int) -> float:
        """The target's probability of a token: of the text's own, or of one that a lookup drafted there."""
        if not self.stage.chances:
            return float(self.choice(node) == token)
        return self.stage.chances.get((self.at + node + 1, token), 0.0)

    def distributions(self, nodes: Sequence[int]) -> None:
        """No rows are kept: grades were computed when recording."""

    def overlaps(self) -> Sequence[float]:
        """The recorded raw overlaps of the draft's tokens."""
        lines, first = self.draft.rows
        found: list[float] = lines.overlap[first : first + len(self.draft.tokens)]
        return found


UNKNOWN = (
    "the policy stops drafts that a model draws, or picks where it would draw, and of drawn drafts a trace "
    "knows only what was accepted: record at --temperature 0"
)
EMPTY = Draft()
_QUIET: frozenset[str] = frozenset()
_PARENTS: list[tuple[int, ...]] = [()]


def _parents(n: int) -> tuple[int, ...]:
    while len(_PARENTS) <= n:
        _PARENTS.append((*_PARENTS[-1], len(_PARENTS) - 2))
    return _PARENTS[n]


def _depths(parents: Sequence[int]) -> list[int]:
    """The tokens from the last committed one down to each node, itself included."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _read(stops: tuple[Stop, ...]) -> frozenset[str]:
    return _QUIET if len(stops) == 1 and stops[0].rule == "never" else needs(stops)


def _stopped(signals: Sequence[Signals], stops: tuple[Stop, ...]) -> int:
    """How many tokens are drafted until a rule applies, including the one that triggers it."""
    joint, previous, last = 1.0, None, len(stops) - 1
    for position, now in enumerate(signals):
        rule = stops[position if position < last else last]
        joint *= factor(rule, now, position=position)
        if rule.rule != "never" and stop(rule, now, position=position, previous=previous, joint=joint):
            return position + 1
        previous = now
    return len(signals)
