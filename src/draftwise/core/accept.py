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

    The sampled chain of a *sampled* draft is verified by rejection sampling (Leviathan et al. 2023, Algorithm
    1): a token is accepted with probability min(1, p/q), otherwise replaced by a sample from the normalised
    (p - q)+. If a picked child has that token, or the target's own token after the chain, it is accepted, and
    the walk continues as in a picked draft: what is written does not depend on the picked nodes.

    The walk stops where `over` says that the text does. The verdict's token is then `NOTHING`, since no token
    follows the end of the text.
    """
    path: list[int] = []
    token = walk(draft, scores, rng, path, over)
    return Verdict(tuple(path), token)


def walk(draft: Draft, scores: Scores, rng: Random, path: list[int], over: Over | None = None) -> int:
    """Return the verdict's token; accepted nodes are appended to `path`, also if the walk then raises."""
    node, sampled = -1, 0 if draft.dist is None else len(draft.probs)
    while node + 1 < sampled:
        if rng.random() * draft.probs[node + 1] >= scores.prob(node + 1):
            token = scores.residual(node + 1)
            break
        node += 1
        path.append(node)
        if over is not None and over(path):
            return NOTHING
    else:
        token = scores.choice(node)
    while (after := _picked_child(draft, node, token, sampled)) >= 0:
        path.append(after)
        if over is not None and over(path):
            return NOTHING
        node, token = after, scores.choice(after)
    return token


def _picked_child(draft: Draft, node: int, token: int, first: int) -> int:
    """Return the child of a node that has this token, of nodes from `first` on; -1 if there is none."""
    tokens, parents = draft.tokens, draft.parents
    for child in range(max(first, node + 1), len(tokens)):
        if parents[child] == node and tokens[child] == token:
            return child
    return -1


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
