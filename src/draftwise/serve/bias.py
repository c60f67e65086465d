"""What a request adds to the logits of its text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

from .refusal import Refusal


class Bias:
    """Added to the logits of some tokens, at every place of the text."""

    def __init__(self, tokens: Sequence[int], values: Sequence[float]) -> None:
        self.tokens, self.values = list(tokens), list(values)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with the bias, shape (rows, vocabulary)."""
        scores = scores.clone()
        scores[:, self.tokens] += scores.new_tensor(self.values)
        return scores


class Allowed:
    """Leaves only some tokens."""

    def __init__(self, tokens: Collection[int]) -> None:
        self.tokens = sorted(set(tokens))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with all other tokens at -inf, shape (rows, vocabulary)."""
        found = scores.new_full(scores.shape, -inf)
        found[:, self.tokens] = scores[:, self.tokens]
        return found


class Barred:
    """Bars the last token of each of some sequences where the text ends with the others."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.sequences = [tuple(some) for some in sequences if some]
        self.longest = max(map(len, self.sequences), default=1)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with what would end a sequence at -inf, shape (1, vocabulary)."""
        end = tuple(input_ids[0, max(0, input_ids.shape[-1] - self.longest + 1) :].tolist())
        last = [some[-1] for some in self.sequences if end[len(end) - len(some) + 1 :] == some[:-1]]
        scores = scores.clone()
        scores[:, last] = -inf
        return scores


class AtLeast:
    """Bars the tokens that end a text before it has so many tokens with its prompt."""

    def __init__(self, length: int, ends: Collection[int]) -> None:
        self.length, self.ends = length, sorted(ends)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores, with the ends at -inf in a text that is too short, shape (rows, vocabulary)."""
        if input_ids.shape[-1] >= self.length:
            return scores
        scores = scores.clone()
        scores[:, self.ends] = -inf
        return scores


def bias(given: Mapping[str, float], size: int) -> Bias:
    """The bias of a request, for a vocabulary of this size.

    Raises:
        Refusal: a name that is no token.
    """
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < size):
            said = f"logit_bias has {token[:20]!r}: give token ids from 0 to {size - 1}"
            raise Refusal(said, param="logit_bias")
    return Bias([int(token) for token in given], list(given.values()))


def within(tokens: Sequence[int], size: int, param: str) -> Sequence[int]:
    """Token ids of a field, for a vocabulary of this size.

    Raises:
        Refusal: one is outside.
    """
    if max(tokens, default=0) >= size:
        raise Refusal(f"{param} has {max(tokens)}: give token ids from 0 to {size - 1}", param=param)
    return tokens


def barred(words: Sequence[str], tokenizer: Any) -> Barred:
    """What bars words in a text, at its beginning and after a space."""
    forms = {form for word in words for form in (word, f" {word.lstrip()}")}
    return Barred([tokenizer(form, add_special_tokens=False)["input_ids"] for form in sorted(forms)])
