"""OpenAI's `logit_bias`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
