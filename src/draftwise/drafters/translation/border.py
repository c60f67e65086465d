"""What a drafter wrote, in tokens of the target that continue the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .codec import BROKEN, complete
from .reading import Reading


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens of the target, and for each the drafter's tokens (first, last + 1) that have its text."""

    tokens: list[int]
    sources: list[tuple[int, int]]


NOTHING = Continuation([], [])


def continued(reading: Reading, drafted: Sequence[int]) -> Continuation:
    """Drafted tokens as tokens that the target's tokenizer gives this text, after those of the target.

    Nothing, if the target's own last tokens would then be others, or if the tokens would not decode to just
    this text. The drafter's end of the text becomes the target's; other special tokens end what it wrote, and
    parts of a character at its end are left out.
    """
    ours, theirs = reading.ours, reading.theirs
    said = list(drafted)
    silent = {*theirs.special, theirs.unknown}
    stop = next((i for i, token in enumerate(said) if token in silent), len(said))
    known = theirs.last(reading.ids)
    before = theirs.decode(known)
    decoded = theirs.decode([*known, *said[:stop]])
    if not decoded.startswith(before):
        return NOTHING
    text, broken, _ = decoded[len(before) :].partition(BROKEN)
    ends = not broken and said[stop : stop + 1] == [theirs.end]
    lost = reading.text[-1:].isspace() and not before[-1:].isspace()  # by tokenizers that keep no spaces
    spaced = int(lost and text.startswith(" "))
    text = text[spaced:]
    tokens = _tokens(reading, text)
    if tokens is None:
        return NOTHING
    if not tokens and not ends:
        return NOTHING
    own, parts = _own(reading)
    own += parts
    whole = partial(ours.decode, special=True)
    sources = _sources(
        _ends(theirs.decode, known, said[:stop], len(before) + spaced),
        _ends(whole, own, tokens, len(whole(own[: len(own) - len(parts)]))),
    )
    if ends and ours.end is not None:
        tokens, sources = [*tokens, ours.end], [*sources, (stop, stop + 1)]
    return Continuation(tokens, sources)


def _own(reading: Reading) -> tuple[list[int], list[int]]:
    """The target's own last tokens: those that end with a whole character, and parts of one after them."""
    return reading.ours.last(reading.tokens[: reading.done]), reading.tokens[reading.done :]


def _tokens(reading: Reading, text: str) -> list[int] | None:
    """The target's tokens for `text` at the end of its own; None if its own would change."""
    ours, (known, parts) = reading.ours, _own(reading)
    before = ours.decode(known, special=True)
    alone, _ = ours.encode(before)
    whole, _ = ours.encode(before + text)
    tokens = whole[len(alone) + len(parts) :]
    same = whole[: len(alone)] == alone and whole[len(alone) : len(alone) + len(parts)] == parts
    if not tokens:
        return [] if not (text or parts) else None
    return tokens if same and ours.decode([*known, *parts, *tokens], special=True) == before + text else None


def _ends(
    decode: Callable[[list[int]], str], known: list[int], tokens: Sequence[int], base: int
) -> list[int]:
    """How many characters beyond the first `base` are complete after each token that follows `known`."""
    texts = (decode([*known, *tokens[: i + 1]]) for i in range(len(tokens)))
    return [max(0, len(complete(text)) - base) for text in texts]


def _sources(theirs: Sequence[int], ours: Sequence[int]) -> list[tuple[int, int]]:
    """For each token of `ours` those of `theirs` that have its characters; both are given by their ends."""
    found, begin = [], 0
    for i, end in enumerate(ours):
        end = next((e for e in ours[i:] if e > begin), end)  # a part of a character goes with the whole
        first = next((j for j, e in enumerate(theirs) if e > begin), len(theirs) - 1)
        last = next((j for j, e in enumerate(theirs) if e >= end), len(theirs) - 1)
        found.append((first, max(first, last) + 1))
        begin = ours[i]
    return found
