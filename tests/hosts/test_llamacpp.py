"""Drafts for llama-cpp-python, which calls with all tokens so far and verifies by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftwise.hosts.follow import Follower, Row
from draftwise.hosts.llamacpp import llama_drafts


def circle(text: Sequence[int]) -> int:
    """The target: twelve tokens, round and round."""
    return (text[-1] + 1) % 12


def generate(draft: Callable[..., Any], prompt: Sequence[int], count: int) -> tuple[list[int], int]:
    """As llama-cpp-python does it: verify the draft token by token, then ask for another."""
    text, passes, guesses = list(prompt), 0, list[int]()
    while len(text) < len(prompt) + count:
        passes += 1
        for guess in [*guesses, -1]:
            text.append(circle(text))
            if text[-1] != guess:
                break
        asked = np.array(text, dtype=np.intc)
        told = draft(asked)
        assert told.dtype == np.intc
        guesses = told.tolist()
    return text[len(prompt) : len(prompt) + count], passes


@pytest.mark.parametrize("policy", ["static-4?drafter=ngram", "random", "hedgespec", "auto"])
def test_the_text_is_the_same_in_fewer_passes(policy: str) -> None:
    draft = llama_drafts(vocab_size=12, policy=policy)
    for prompt in ([3, 4], [7], [3, 4]):
        text, passes = generate(draft, prompt, 60)
        assert text == [(prompt[-1] + 1 + k) % 12 for k in range(60)]
        assert passes < 60 or policy == "auto"  # which sees that passes of this target cost nothing


def test_the_next_turn_of_a_chat_is_no_accepted_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """It extends the last text by what a user typed, in the time that this took."""
    seen: list[Row] = []
    step = Follower.step

    def spied(self: Follower, rows: Sequence[Row], alive: Any = None) -> list[list[int]]:
        seen.extend(rows)
        return step(self, rows, alive)

    monkeypatch.setattr(Follower, "step", spied)
    draft = llama_drafts(vocab_size=40, policy="static-4?drafter=ngram")
    text, _ = generate(draft, [3, 4], 30)
    one, at = seen[-1].key, len(seen)
    whole = [3, 4, *text][: seen[-1].length]
    draft(np.array([*whole, 30, 31, 32, 33, 34, 35, 36], dtype=np.intc))
    assert seen[at].key != one and len(seen[at].new) == 1
    assert len({row.key for row in seen[:at]}) == 1, "accepted drafts extend one text"
