"""The text that everyone drafts for: the target's own, a little beyond its end, and its view of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from ..catalogue import method
from ..loop import Loop
from ..roles import Graders, Scores, Seen, Target
from ..types import Draft, Feedback, Request, Sampling, Verdict

FIRST_ID = 1 << 40  # requests of a recording, far from those of any loop on the same target
CHUNK = 32  # text that is verified in one pass


@dataclass(slots=True)
class Witness:
    """A recorder that keeps the scores of every round of plain decoding, and teaches nothing."""

    reads: frozenset[str] = frozenset()
    scores: list[Scores] = field(default_factory=list)

    def add(self, batch: Sequence[Seen], graders: Graders) -> Sequence[Feedback]:
        """Keep them."""
        self.scores += [seen.scores for seen in batch]
        return [Feedback(seen.request.id, seen.decision) for seen in batch]

    def close(self, request: Request) -> Sequence[Feedback]:
        """Nothing is late."""
        return ()


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target wrote: `committed` of `tokens` are the answer, the rest lies beyond.

    `scores` has one entry per committed token, asked at node -1.
    """

    prompt: list[int]
    tokens: list[int]
    committed: int
    budget: int
    ended: bool
    sampling: Sampling
    scores: list[Scores]

    def request(self, key: int, upto: int) -> Request:
        """A request that has written the first `upto` tokens."""
        tokens = self.prompt + self.tokens[:upto]
        sampling = replace(self.sampling, max_new_tokens=self.budget)
        return Request(key, tokens, len(self.prompt), sampling, Random(key), Random(key))


def write(target: Target, prompt: Sequence[int], sampling: Sampling, *, beyond: int, seed: int) -> Text:
    """Decode a prompt plainly, going on for `beyond` tokens where the text ends before its budget.

    Raises:
        UserError: the prompt is empty or leaves no room.
    """
    witness = Witness()
    loop = Loop(target, {}, method("none", []).policy, witness, seed=seed)
    request = loop.add(prompt, replace(sampling, eos=frozenset()))
    budget, written, end = request.sampling.max_new_tokens, list[int](), 0
    while loop.open and not (end and len(written) >= end + beyond):
        (round,) = loop.step()
        written += round.tokens
        if not end and written[-1] in sampling.eos:
            end = len(written)
    loop.close(request)
    n = end or len(written)
    return Text(list(prompt), written, n, budget, bool(end), sampling, witness.scores[:n])


class Reader:
    """The target reading one text and drafts beside it, from left to right, for raw overlaps."""

    def __init__(self, target: Target, text: Text, ids: Iterator[int]) -> None:
        self.target, self.text = target, text
        self.request = text.request(next(ids), 0)
        target.open(self.request)

    def overlaps(self, at: int, draft: Draft) -> Sequence[float]:
        """The overlap at each node of a draft made at position `at`, which never goes back."""
        request, text = self.request, self.text
        request.tokens = text.prompt + text.tokens[:at]
        (scores,) = self.target.verify([(request, draft)])
        found = scores.overlaps()
        self.target.commit([(request, draft, Verdict((), 0))])
        request.rounds += 1
        return found

    def close(self) -> None:
        """Give the request back."""
        self.target.close(self.request)


def certain(target: Target, text: Text, ids: Iterator[int]) -> list[float]:
    """The target's raw probability of every token of its own text."""
    reader, found = Reader(target, text, ids), list[float]()
    for at in range(0, text.committed, CHUNK):
        found += reader.overlaps(at, Draft.chain(text.tokens[at : min(at + CHUNK, text.committed)]))
    reader.close()
    return found


def fresh_ids() -> Iterator[int]:
    """Keys for the requests of a recording."""
    return count(FIRST_ID)
