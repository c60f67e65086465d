"""A recording made ready for replay: what every drafter answers, in plain lists, looked up by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arms import TOGETHER
from ..drafters.together import merged
from ..stops import factor, needs, stop
from ..types import Draft, Job, Signals, Stop
from .files import FIELDS, Answers, Recording


class Lines:
    """One drafter on one text; lists are made when they are first asked for."""

    def __init__(self, answers: Answers, given: Mapping[str, Sequence[str] | None] | None) -> None:
        self.answers, self.given = answers, given or {}
        self.tokens: list[int] = answers.tokens.tolist()
        self.hint: list[float] = answers.hint.tolist()
        self.overlap: list[float] = answers.overlap.tolist()
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        self._signals: dict[frozenset[str], list[Signals]] = {}

    def span(self, at: int, length: int) -> tuple[int, int]:
        """Where the draft of at most `length` tokens at position `at` starts, and how many it has."""
        spans = self._spans.get(length)
        if spans is None:
            a = self.answers
            spans = a.start[:, length - 1].tolist(), a.count[:, length - 1].tolist()
            self._spans[length] = spans
        return spans[0][at], spans[1][at]

    def draft(self, at: int, job: Job) -> Draft:
        """The draft that was recorded there, ended by the job's own stop rules."""
        first, n = self.span(at, job.length)
        if not n:
            return EMPTY
        stops = job.stops
        names = _QUIET if len(stops) == 1 and stops[0].rule == "never" else needs(stops)
        signals = self.signals(names)
        if names:
            n = _stopped(signals, first, n, stops)
        return Draft(
            tuple(self.tokens[first : first + n]),
            _parents(n),
            (),
            None,
            tuple(signals[first : first + n]) if signals else (),
            (self, first),
        )

    def signals(self, names: frozenset[str]) -> list[Signals]:
        """The signals of all tokens as a draft carries them when rules read `names`; none for none."""
        found = self._signals.get(names)
        if found is None:
            found = self._signals[names] = self._carried(names)
        return found

    def _carried(self, names: frozenset[str]) -> list[Signals]:
        read = [self.given.get(name) for name in ("", *names)]
        if all(fields is None for fields in read):
            return []
        carried = {field for fields in read for field in fields or ()}
        columns = [
            self.answers.signals[:, k].tolist() if name in carried else [0.0] * len(self.tokens)
            for k, name in enumerate(FIELDS)
        ]
        return [Signals(*row) for row in zip(*columns, strict=True)]


@dataclass(slots=True)
class Stage:
    """One recording, and everyone's lines on it."""

    recording: Recording
    text: list[int] = field(init=False)
    lines: dict[str, Lines] = field(init=False)

    def __post_init__(self) -> None:
        one = self.recording
        self.text = one.text.tolist()
        self.lines = {name: Lines(found, one.given.get(name)) for name, found in one.answers.items()}

    def draft(self, name: str, at: int, job: Job) -> Draft:
        """What a drafter, or all of them together, draft at a position."""
        if name != TOGETHER:
            return self.lines[name].draft(at, job)
        alone = Job(job.request, job.length, job.stops)
        drafts = [lines.draft(at, alone) for lines in self.lines.values()]
        return merged(drafts, job.length * job.width)


class Heard:
    """The scores of one draft: the text says what the target chose after every node that it leads to."""

    __slots__ = ("at", "depth", "draft", "text")

    def __init__(self, text: Sequence[int], at: int, draft: Draft) -> None:
        self.text, self.at, self.draft = text, at, draft
        self.depth = None if draft.is_chain else _depths(draft.parents)

    def choice(self, node: int) -> int:
        """The text's token after `node`."""
        depth = node + 1 if self.depth is None or node < 0 else self.depth[node]
        return self.text[self.at + depth]

    def prob(self, node: int) -> float:
        """1 where the text goes on with `node`, else 0."""
        return float(self.choice(self.draft.parents[node]) == self.draft.tokens[node])

    def residual(self, node: int) -> int:
        """The text's token in place of `node`."""
        return self.choice(self.draft.parents[node])

    def logprob(self, node: int, token: int) -> float:
        """Not recorded: a replay reports no log-probabilities."""
        raise NotImplementedError("a trace holds no log-probabilities of the text")

    def chance(self, node: int, token: int) -> float:
        """1 for the text's token, else 0."""
        return float(self.choice(node) == token)

    def laws(self, nodes: Sequence[int]) -> Any:
        """They are one-hot."""
        return None

    def overlaps(self) -> Sequence[float]:
        """The recorded raw overlaps of the draft's tokens."""
        lines, first = self.draft.rows
        found: list[float] = lines.overlap[first : first + len(self.draft.tokens)]
        return found


EMPTY = Draft()
_QUIET: frozenset[str] = frozenset()
_PARENTS: list[tuple[int, ...]] = [()]


def _parents(n: int) -> tuple[int, ...]:
    while len(_PARENTS) <= n:
        _PARENTS.append((*_PARENTS[-1], len(_PARENTS) - 2))
    return _PARENTS[n]


def _depths(parents: Sequence[int]) -> list[int]:
    """Tokens from the last committed one down to each node, itself included."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _stopped(signals: Sequence[Signals], first: int, n: int, stops: tuple[Stop, ...]) -> int:
    """How many of `n` tokens are drafted before a rule fires, the one that makes it fire included."""
    joint, previous, last = 1.0, None, len(stops) - 1
    for position in range(n):
        now, rule = signals[first + position], stops[position if position < last else last]
        joint *= factor(rule, now, position=position)
        if rule.rule != "never" and stop(rule, now, position=position, previous=previous, joint=joint):
            return position + 1
        previous = now
    return n
