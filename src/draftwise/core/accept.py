"""Lossless acceptance: one function for chains and trees, greedy and sampling. Plain numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from .drafts import NOTHING, Draft, Verdict
from .roles import Scores

Over = Callable[[Sequence[int]], bool]
"""Whether the text ends with the last node of an accepted path."""


def accept(draft: Draft, scores: Scores, rng: Random, over: Over | None = None) -> Verdict:
    """Find the longest accepted path through the draft.

    A *picked* draft is verified by equality: the target draws its own token at each node, and the child with
    that token is accepted. The text is then what the target would have written without drafts from the same
    seed, whatever tokens were picked. Greedy decoding is the special case where the draw is an argmax.

    A *sampled* draft is verified by rejection sampling (Leviathan et al. 2023, Algorithm 1): a token is
    accepted with probability min(1, p/q), otherwise replaced by a sample from the normalised (p - q)+.

    The walk stops where `over` says that the text does. The verdict's token is then `NOTHING`, since no token
    follows the end of the text.

    Raises:
        ValueError: a sampled draft has two children under one node; siblings must be picked.
    """
    path: list[int] = []
    token = walk(draft, scores, rng, path, over)
    return Verdict(tuple(path), token)


def walk(draft: Draft, scores: Scores, rng: Random, path: list[int], over: Over | None = None) -> int:
    """The token of `accept`'s verdict; accepted nodes are appended to `path`, also if the walk then raises.

    Raises:
        ValueError: as `accept`.
    """
    if draft.dist is None:
        return _picked(draft, scores, path, over)
    if not draft.is_chain:
        raise ValueError("a sampled draft must be a chain: siblings must be picked, not sampled")
    return _sampled(draft, scores, rng, path, over)


def _picked(draft: Draft, scores: Scores, path: list[int], over: Over | None) -> int:
    node, chain = -1, draft.is_chain
    while True:
        token = scores.choice(node)
        if chain:
            after = node + 1 if node + 1 < len(draft.tokens) and draft.tokens[node + 1] == token else None
        else:
            below = (i for i, parent in enumerate(draft.parents) if parent == node)
            after = next((i for i in below if draft.tokens[i] == token), None)
        if after is None:
            return token
        path.append(after)
        if over is not None and over(path):
            return NOTHING
        node = after


def _sampled(draft: Draft, scores: Scores, rng: Random, path: list[int], over: Over | None) -> int:
    for node, q in enumerate(draft.probs):
        if rng.random() * q >= scores.prob(node):
            return scores.residual(node)
        path.append(node)
        if over is not None and over(path):
            return NOTHING
    return scores.choice(len(draft.tokens) - 1)


def block(draft: Draft, path: Sequence[int], overlaps: Sequence[float]) -> tuple[float, ...]:
    """1 - TV at each draft position along one path: at most as many numbers as the draft is deep.

    `overlaps` has one number per node (`Scores.overlaps`) and `path` the accepted nodes. For a chain the
    numbers are returned unchanged (MetaSD, arXiv 2604.05417). In a tree the path follows the accepted nodes,
    and after the first rejection the first child of each node, the drafter's most probable one; as in a
    chain, this part follows the drafter's own guess. Siblings count as one position: its overlap is the
    target's total probability of the siblings, that is, the probability that one of them is accepted.
    """
    if draft.is_chain:
        return tuple(overlaps)
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents):
        below.setdefault(parent, []).append(node)
    found: list[float] = []
    node, ahead = -1, list(path)
    while siblings := below.get(node):
        found.append(sum({draft.tokens[i]: overlaps[i] for i in siblings}.values()))
        node = ahead.pop(0) if ahead else siblings[0]
    return tuple(found)
