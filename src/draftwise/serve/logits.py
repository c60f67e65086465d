"""Logits processors for the fields of a request: functions of ids, shape (1, n), and scores, (1, tokens)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any

from .errors import APIError

Processor = Callable[[Any, Any], Any]


def bias_tokens(bias: Mapping[str, float], vocab_size: int) -> Processor:
    """Add a bias to the logits of some tokens, given by their ids as text."""
    for token in bias:
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocab_size):
            message = f"logit_bias has {token[:20]!r}: give token ids from 0 to {vocab_size - 1}"
            raise APIError(message, param="logit_bias")
    tokens, values = [int(token) for token in bias], list(bias.values())

    def process(input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, tokens] += scores.new_tensor(values)
        return scores

    return process


def allow_tokens(tokens: Collection[int]) -> Processor:
    """Bar all tokens but these."""
    allowed = sorted(set(tokens))

    def process(input_ids: Any, scores: Any) -> Any:
        masked = scores.new_full(scores.shape, -inf)
        masked[:, allowed] = scores[:, allowed]
        return masked

    return process


def bar_words(words: Sequence[str], tokenizer: Any) -> Processor:
    """Bar words at the beginning of a text and after a space."""
    forms = sorted({form for word in words for form in (word, f" {word.lstrip()}")})
    return bar_sequences([tokenizer(form, add_special_tokens=False)["input_ids"] for form in forms])


def bar_sequences(sequences: Sequence[Sequence[int]]) -> Processor:
    """Bar the last token of each of some sequences where the text ends with the others."""
    sequences = [list(sequence) for sequence in sequences if sequence]
    longest = max(map(len, sequences), default=1)

    def barred(input_ids: Any) -> list[int]:
        end = input_ids[0, max(0, input_ids.shape[-1] - longest + 1) :].tolist()
        return [one[-1] for one in sequences if end[len(end) - len(one) + 1 :] == one[:-1]]

    return _bar(barred)


def bar_until(length: int, ends: Collection[int]) -> Processor:
    """Bar the tokens that end a text before it has `length` tokens with its prompt."""
    tokens = sorted(ends)
    return _bar(lambda input_ids: tokens if input_ids.shape[-1] < length else [])


def _bar(barred: Callable[[Any], list[int]]) -> Processor:
    def process(input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, barred(input_ids)] = -inf
        return scores

    return process


def check_tokens(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Reject token ids of a field outside the vocabulary."""
    if max(tokens, default=0) >= vocab_size:
        message = f"{param} has {max(tokens)}: give token ids from 0 to {vocab_size - 1}"
        raise APIError(message, param=param)
