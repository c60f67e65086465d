"""Drafts: the job, the draft and the verdict. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .arms import NEVER, HandOver, Stop
from .constraint import Constraint
from .request import Request


@dataclass(slots=True, unsafe_hash=True)
class Signals:
    """Numbers about one draft position, for stop rules and diagnostics.

    They come from the raw softmax at temperature 1. `place`, `top` and `hidden` are set only if a rule reads
    them.

    Attributes:
        top1: Largest probability.
        top2: Second largest probability.
        entropy: In nats.
        chosen: Probability of the drafted token.
        place: Number of output tokens before the drafted one.
        top: The largest probabilities in descending order, at most ten.
        hidden: The hidden state that the logits were computed from, a vector.
    """

    top1: float
    top2: float
    entropy: float
    chosen: float
    place: int = 0
    top: tuple[float, ...] = ()
    hidden: Any = field(default=None, compare=False, repr=False)


@dataclass(slots=True, unsafe_hash=True)
class Draft:
    """Drafted tokens as a tree: parent -1 is the last committed token; a chain is a tree without branches.

    A *picked* draft (looked up, greedy, top-k) has no `dist`: any choice of tokens is lossless. A *sampled*
    one begins with a chain of sampled tokens, and declares their distributions; nodes after these are picked,
    such as the most likely siblings of each. Lossless acceptance requires that each sampled token is sampled
    with `request.rng` from its own row, and none is dropped or replaced because of its probability.

    A draft violates its contract, and counts as empty, if it is longer than requested, has a token outside
    the vocabulary, parents that are not earlier nodes, probabilities outside [0, 1] or a `dist` of another
    shape.

    Attributes:
        tokens: Token ids of the target's vocabulary, n of them.
        parents: For each token the index of the node before it, -1 for the last committed token; n numbers.
        probs: Each token's probability in [0, 1]: one for each row of `dist` where that is given, else n or
            none.
        dist: The distributions that the first m tokens were drawn from: m rows over the target's whole
            vocabulary, a list of arrays or tensors, or one of shape (m, vocabulary), on any device; None if
            all are picked.
        signals: The input of stop rules, one per token, or of a chain with siblings one per token of the
            chain, or none.
        rows: If the job asked for them, the drafter's raw logits, one row per token of the chain, shape
            (m, vocabulary).
        prefix_length: Of a composite draft, how many tokens its first part has.
        match: The match with which the second part took over; 0 if it did not.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    dist: Any = None
    signals: tuple[Signals, ...] = ()
    rows: Any = None
    prefix_length: int = 0
    match: int = 0

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        probs: Sequence[float] = (),
        dist: Any = None,
        signals: Sequence[Signals] = (),
        rows: Any = None,
        prefix_length: int = 0,
        match: int = 0,
    ) -> Draft:
        """Return a draft in which each token follows the previous one: `Draft.chain([5, 6, 7])`."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, tuple(probs), dist, tuple(signals), rows, prefix_length, match)

    @classmethod
    def with_siblings(cls, tokens: Sequence[int], siblings: Sequence[Sequence[int]], **options: Any) -> Draft:
        """Return a chain and, beside its token k, the picked tokens `siblings[k]`."""
        beside = [(token, k - 1) for k, others in enumerate(siblings) for token in others]
        parents = (*range(-1, len(tokens) - 1), *(parent for _, parent in beside))
        return cls((*tokens, *(token for token, _ in beside)), parents, **options)

    @property
    def is_chain(self) -> bool:
        """True when each node follows the previous one."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))


EMPTY = Draft()
NOTHING = -1


@dataclass(slots=True, unsafe_hash=True)
class Verdict:
    """The accepted nodes from the root down, and the target's own token after them.

    Attributes:
        path: Indices of accepted nodes of the draft, each a child of the previous one; empty if none.
        token: A token id; `NOTHING` (-1) if the last accepted node ends the text.
    """

    path: tuple[int, ...]
    token: int


@dataclass(slots=True)
class Job:
    """One draft to make: at most `length` tokens for `request`, stopping by `stops`.

    Attributes:
        request: The text is `request.tokens`; its sampling settings and its generator `rng` are the drafter's
            to use.
        length: Maximum number of tokens of a chain, at least 1.
        stops: One stop rule per draft position, the last for all later ones; see `stop_at`.
        width: Branches of a tree, which has at most `length * width` tokens.
        rows: Keep the raw logits in the draft, if the drafter has any.
        deterministic: Draft the most likely tokens even if the request samples.
        constraint: What the request's processors allow after its text; None where they do not tell.
            Deterministic drafts are cut to it in any case. A drafter that reads it by itself says `guided =
            True`.
        until: Ends the draft after the token with which it is true of all its tokens. It spares time: a
            drafter need not read it.
        hand_overs: Those of the decision.
        choose: Returns the next token of a sampled draft, from its tokens so far and the distribution of the
            next, where the drafter would sample it with `request.rng`. Only recordings give it.
    """

    request: Request
    length: int
    stops: tuple[Stop, ...] = (NEVER,)
    width: int = 1
    rows: bool = False
    deterministic: bool = False
    constraint: Constraint | None = None
    until: Callable[[Sequence[int]], bool] | None = None
    hand_overs: tuple[HandOver, ...] = ()
    choose: Callable[[Sequence[int], Any], int] | None = None

    def stop_at(self, position: int) -> Stop:
        """Return the rule for draft position `position` (from 0)."""
        return self.stops[min(position, len(self.stops) - 1)]


def after(job: Job, written: Sequence[int]) -> Job:
    """Return the job, for a picked draft, of a copy of its request in which these tokens were written."""
    request = replace(job.request, tokens=[*job.request.tokens, *written])
    constraint = None if job.constraint is None else job.constraint.after(written)
    return replace(job, request=request, deterministic=True, constraint=constraint, until=None)
