"""Draftwise inside llama-cpp-python: `Llama(..., draft_model=llama_drafts(...))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..specs import LoadOptions, parse_drafters
from .follow import Row, build_follower

Ids = NDArray[np.intc]
ROOM = 1 << 20  # llama-cpp-python does not report its token budget


def llama_drafts(
    *,
    vocab_size: int,
    drafters: str | Sequence[Any] = ("ngram", "suffix"),
    policy: str = "",
    tokenizer: Any = None,
    seed: int = 0,
) -> Callable[..., Ids]:
    """A `draft_model` for llama-cpp-python: each call drafts as the policy decides; the text is unchanged.

    Reuse the returned function for many calls: it keeps what the policy learned. Drafters are names or loaded
    models; `tokenizer` (Transformers') is only needed to check a model given by name. llama-cpp-python passes
    only the tokens so far: a text that extends the last one by some of its draft and one token is taken for
    the same text, any other for a new one, such as the next turn of a chat.

    Raises:
        UserError: an unknown name, or a policy that drafts trees.
    """
    size: dict[str, int] = {"vocab_size": vocab_size, "max_length": ROOM}
    specs, name = parse_drafters(drafters, LoadOptions(device="cpu")), "the llama.cpp model"
    follower = build_follower(specs, policy, **size, tokenizer=tokenizer, target=name, seed=seed)
    text = np.empty(0, dtype=np.intc)
    last: list[int] = []
    number = 0

    def draft(input_ids: Ids, /, **options: Any) -> Ids:
        nonlocal text, last, number
        before = len(text)
        step = np.array([*text, *last[: len(input_ids) - before - 1]], dtype=np.intc)
        extends = 0 < before < len(input_ids) == len(step) + 1
        if not extends or not np.array_equal(input_ids[:-1], step):
            before, number = len(input_ids) - 1, number + 1
        text = np.array(input_ids, dtype=np.intc)
        new = text[before:].tolist()
        row = Row(number, len(text), new, lambda start: text[start:].tolist(), before, ROOM)
        (last,) = follower.step([row])
        return np.array(last, dtype=np.intc)

    return draft
