"""The text that all drafters draft for: the target's own, slightly extended, with the target's scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from ...core.drafts import Draft, Verdict
from ...core.loop import Loop
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import Scores, Target
from ...core.sampling import Sampling
from ...policies.catalogue import method

FIRST_ID = 1 << 40  # ids of a recording's requests, far from those of any loop on the same target
CHUNK = 32  # tokens of the text verified in one pass


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's text: `committed` of `tokens` are the answer, the rest lies beyond its end.

    `scores` are the target's scores of the text if it was sampled, one for each `CHUNK` of it.
    """

    prompt: list[int]
    tokens: list[int]
    committed: int
    budget: int
    ended: bool
    sampling: Sampling
    scores: list[Scores] = field(default_factory=list)

    def request(self, key: int, upto: int) -> Request:
        """A request with the first `upto` tokens written."""
        tokens = self.prompt + self.tokens[:upto]
        sampling = replace(self.sampling, max_new_tokens=self.budget)
        return Request(key, tokens, len(self.prompt), sampling, Random(key), Random(key))

    def chance(self, at: int, token: int) -> float:
        """The target's probability of a token at a position; 1 or 0 for a greedy text."""
        if self.sampling.greedy:
            return float(token == self.tokens[at])
        return self.scores[at // CHUNK].chance(at % CHUNK - 1, token)


def write(target: Target, prompt: Sequence[int], sampling: Sampling, *, beyond: int) -> Text:
    """Decode a prompt plainly, continuing for `beyond` tokens if the text ends before its budget.

    Raises:
        UserError: the prompt is empty or leaves no room.
    """
    plain = method("none", [])
    loop = Loop(target, {}, plain.policy, plain.recorder)
    request = loop.add(prompt, replace(sampling, eos=frozenset()))
    budget, written, end = request.sampling.max_new_tokens, list[int](), 0
    while loop.open and not (end and len(written) >= end + beyond):
        (round,) = unfailed(loop.step())
        written += round.tokens
        if not end and written[-1] in sampling.eos:
            end = len(written)
    loop.close(request)
    return Text(list(prompt), written, end or len(written), budget, bool(end), sampling)


class Reader:
    """The target reading one text, and drafts along it, from left to right."""

    def __init__(self, target: Target, text: Text, ids: Iterator[int]) -> None:
        self.target, self.text = target, text
        self.request = text.request(next(ids), 0)
        target.open(self.request)

    def scores(self, at: int, draft: Draft) -> Scores:
        """The target's scores of a draft made at position `at`, which never decreases."""
        request, text = self.request, self.text
        request.tokens = text.prompt + text.tokens[:at]
        (scores,) = self.target.verify([(request, draft)])
        self.target.commit([(request, draft, Verdict((), 0))])
        request.rounds += 1
        return scores

    def chunks(self, upto: int) -> Iterator[Scores]:
        """Its scores of the text itself."""
        for at in range(0, upto, CHUNK):
            yield self.scores(at, Draft.chain(self.text.tokens[at : min(at + CHUNK, upto)]))

    def close(self) -> None:
        """Close the request."""
        self.target.close(self.request)


def certain(target: Target, text: Text, ids: Iterator[int]) -> list[float]:
    """The target's raw probability of every token of its own text."""
    reader = Reader(target, text, ids)
    found = [p for scores in reader.chunks(text.committed) for p in scores.overlaps()]
    reader.close()
    return found


def looked_at(target: Target, text: Text, ids: Iterator[int]) -> Text:
    """The text with the target's scores of it, for the probabilities of sampled and other tokens."""
    reader = Reader(target, text, ids)
    found = list(reader.chunks(len(text.tokens)))
    reader.close()
    return replace(text, scores=found)


def fresh_ids() -> Iterator[int]:
    """Ids for the requests of a recording."""
    return count(FIRST_ID)
