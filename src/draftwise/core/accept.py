"""Lossless acceptance: one walk for chains, trees, greedy and sampling. Plain numbers only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from .drafts import NOTHING, Draft, Verdict
from .roles import Scores


def accept(draft: Draft, scores: Scores, rng: Random, ends: Collection[int] = ()) -> Verdict:
    """Walk down the draft as far as the target agrees.

    A *picked* draft is right or wrong: the target draws its own token at each node, and a child that
    carries this token is accepted. The text is then what the target would have written alone with the
    same seed, whatever was picked, and greedy decoding is the case where the draw is an argmax.

    A *sampled* draft takes the test of Leviathan et al. 2023 (Algorithm 1): kept with min(1, p/q), else a
    token from (p - q)+ in its place.

    An accepted token of `ends` ends the walk, with the verdict's token `NOTHING`: the target is not asked
    what would follow the end of its text.

    Raises:
        ValueError: a sampled draft has two children under one node; siblings must be picked.
    """
    if draft.dist is not None:
        return _accept_sampled(draft, scores, rng, ends)
    path: list[int] = []
    node = -1
    chain = draft.is_chain
    while True:
        token = scores.choice(node)
        if chain:
            after = node + 1 if node + 1 < len(draft.tokens) and draft.tokens[node + 1] == token else None
        else:
            below = (i for i, parent in enumerate(draft.parents) if parent == node)
            after = next((i for i in below if draft.tokens[i] == token), None)
        if after is None:
            return Verdict(tuple(path), token)
        path.append(after)
        if token in ends:
            return Verdict(tuple(path), NOTHING)
        node = after


def _accept_sampled(draft: Draft, scores: Scores, rng: Random, ends: Collection[int]) -> Verdict:
    if not draft.is_chain:
        raise ValueError("a sampled draft must be a chain: siblings must be picked, not sampled")
    for node, q in enumerate(draft.probs):
        if rng.random() * q >= scores.prob(node):
            return Verdict(tuple(range(node)), scores.residual(node))
        if draft.tokens[node] in ends:
            return Verdict(tuple(range(node + 1)), NOTHING)
    return Verdict(tuple(range(len(draft.tokens))), scores.choice(len(draft.tokens) - 1))


def block(draft: Draft, path: Sequence[int], overlaps: Sequence[float]) -> tuple[float, ...]:
    """1 - TV at each position of a draft, one below another: never more numbers than the draft is deep.

    `overlaps` has one number per node (`Scores.overlaps`) and `path` the accepted nodes. A chain has them as
    they are (MetaSD, arXiv 2604.05417). A tree is taken where the text went, and from the first rejection on
    down each node's first child, which is its drafter's favourite: as in a chain, that part is on the draft's
    own path. Siblings are one position: its overlap is the target's probability of all of them together, the
    chance that one is accepted.
    """
    if draft.is_chain:
        return tuple(overlaps)
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    found: list[float] = []
    node, ahead = -1, list(path)
    while siblings := below.get(node):
        found.append(sum(overlaps[i] for i in siblings))
        node = ahead.pop(0) if ahead else siblings[0]
    return tuple(found)
