"""What committed tokens of the target are in the drafter's tokens, and grades of drafts by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor

from ...core.drafts import Signals
from ...core.outcomes import Grade
from ...core.roles import GradeJob
from ...models.distributions import most_likely
from ..translation.reading import Reading
from .chains import signals


@dataclass(frozen=True, slots=True)
class Path:
    """The tokens of a job of grading as the drafter reads them.

    Attributes:
        ids: The drafter's tokens of the whole text.
        first: How many of them were there before the committed tokens, at least 1.
        before: The drafter's tokens of the text before each committed token.
        under: For each committed token the places in `ids` of those that have its text.
    """

    ids: list[int]
    first: int
    before: list[list[int]]
    under: list[list[int]]

    @classmethod
    def of(cls, reading: Reading, job: GradeJob) -> Path:
        """Read the committed tokens one by one."""
        tokens, start = job.request.tokens, job.start
        before, lengths = list[list[int]](), list[int]()
        for end in range(start, len(tokens) + 1):
            reading.read(tokens[:end])
            lengths.append(reading.length)
            before.append(list(reading.ids))
        ids = before.pop()
        first = max(1, common(before[0], ids))
        under = [_under(reading, first, token, lengths[i:]) for i, token in enumerate(tokens[start:])]
        return cls(ids, first, before, under)

    @property
    def divided(self) -> list[int]:
        """The committed tokens that begin within one of the drafter's tokens."""
        return [i for i, ids in enumerate(self.before) if ids != self.ids[: len(ids)]]

    def stretch(self, *, by_text: bool) -> tuple[list[int], int]:
        """The tokens to read, and how many of them to predict: those that have the committed text, or from
        the first committed token that begins with one of them up to what follows the text."""
        if by_text:
            return self.ids, len(self.ids) - self.first
        begins = [len(ids) for ids in self.before if ids and ids == self.ids[: len(ids)]]
        return [*self.ids, 0], len(self.ids) + 1 - begins[0] if begins else 0


def _under(reading: Reading, first: int, token: int, lengths: Sequence[int]) -> list[int]:
    """The drafter's tokens, from the `first` on, that have the text of one token of the target."""
    begin, places = lengths[0], range(first, len(reading.ids))
    if token == reading.ours.end:
        end = reading.theirs.end
        return [j for j in places if reading.ids[j] == end and reading.spans[j] == (begin, begin)]
    if token in reading.ours.special:
        return []
    # A part of a character goes with the whole.
    end = next((length for length in lengths[1:] if length > begin), begin)
    return [j for j in places if reading.spans[j][0] < end and reading.spans[j][1] > begin]


def text_grades(job: GradeJob, path: Path, rows: Tensor) -> list[Grade]:
    """One grade per committed token: 1 if the drafter's most likely text continues with the token's.

    `rows` are the logits that predict `path.ids[path.first:]`, shape (tokens, vocabulary). Where the job has
    the drafter's own draft, that decides.
    """
    picks = most_likely(rows) if len(rows) else []
    hits = [pick == token for pick, token in zip(picks, path.ids[path.first :], strict=True)]
    position = job.start - job.request.prompt_length
    found = []
    for i, places in enumerate(path.under):
        accept = float(bool(places) and all(hits[j - path.first] for j in places))
        seen: Signals | None = None
        if job.signals and places:
            each = [
                signals(rows[j - path.first], picks[j - path.first], job.signals, position + i, None)
                for j in places
            ]
            seen = min(each, key=lambda one: one.chosen)
        found.append(_grade(job, accept, seen))
    return _played(job, found)


def _played(job: GradeJob, found: list[Grade]) -> list[Grade]:
    """Grades in which those of the drafter's own draft are what became of it."""
    if job.draft is None:
        return found
    drafted = job.draft.tokens
    for i, token in enumerate(job.request.tokens[job.start :][: max(1, len(drafted))]):
        right = drafted[i : i + 1] == (token,)
        found[i] = _grade(job, float(right), found[i].signals)
        if not right:
            break
    return found


def _grade(job: GradeJob, accept: float, seen: Signals | None) -> Grade:
    return Grade(accept, accept if job.request.sampling.greedy else nan, seen)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike; texts that grow differ near their ends."""
    most = min(len(one), len(other))
    begin = max(0, most - 64)
    begin = begin if one[:begin] == other[:begin] else 0
    return next((i for i in range(begin, most) if one[i] != other[i]), most)
