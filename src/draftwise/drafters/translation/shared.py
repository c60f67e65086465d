"""The tokens that two vocabularies share: those that stand for the same bytes."""

from __future__ import annotations

from .codec import Codec


def shared(ours: Codec, theirs: Codec, sizes: tuple[int, int]) -> tuple[list[tuple[int, int]], float]:
    """Pairs of one token of the target and one of the drafter, no token in two of them, and what part of the
    smaller vocabulary they are.

    `sizes` are those of the models' vocabularies. The tokens that end a text are a pair.
    """
    one, other = ours.spellings(sizes[0]), theirs.spellings(sizes[1])
    pairs = [(token, other[text]) for text, token in one.items() if text in other]
    part = len(pairs) / max(1, min(len(one), len(other)))
    if ours.end is not None and theirs.end is not None and ours.end < sizes[0] and theirs.end < sizes[1]:
        pairs.append((ours.end, theirs.end))
    return pairs, part
