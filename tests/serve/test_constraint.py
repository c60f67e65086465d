"""A grammar is asked about places in any order, and always says the same."""

from __future__ import annotations

import ctypes
from math import inf
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.roles import TokenMask
from draftwise.errors import UserError
from draftwise.serve.constraint import MAX_MASKS, Constraint

from .ascii import vocabulary

pytest.importorskip("llguidance")

import llguidance

LETTERS = [*'abcdefghij{}[]":, 0123456789', "name", '":', "ab", "<end>"]
END = len(LETTERS) - 1
GRAMMAR = 'start: "{" item ("," item)* "}"\nitem: "name" ":" /[a-c]+/ | "ab" /[0-9]/'
NOT_A = "start: T\nT: ~/a+/"
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def compiled() -> Any:
    return llguidance.LLMatcher(vocabulary(LETTERS), GRAMMAR)


def fresh(compiled: Any) -> Constraint:
    return Constraint(compiled, len(LETTERS), {END})


def free(constraint: Constraint, text: list[int], ahead: list[int]) -> list[int]:
    row = constraint.mask(text, len(PROMPT), ahead, torch.zeros(len(LETTERS) + 9))
    return [token for token, value in enumerate(row.tolist()) if value > -inf]


def walk(compiled: Any, rng: Random, n: int) -> list[int]:
    """An answer, drawn."""
    constraint, text = fresh(compiled), list(PROMPT)
    while len(text) < len(PROMPT) + n and text[-1] != END:
        text.append(rng.choice(free(constraint, text, [])))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("seed", range(3))
def test_places_come_in_any_order(compiled: Any, seed: int) -> None:
    """Drafts that are rejected, places of before, and calls as a processor in between."""
    rng = Random(seed)
    answer, other = walk(compiled, rng, 60), walk(compiled, rng, 60)
    truth = [free(fresh(compiled), PROMPT, answer[:n]) for n in range(len(answer) + 1)]
    constraint = fresh(compiled)
    assert isinstance(constraint, TokenMask)
    for n in range(len(answer)):
        text = [*PROMPT, *answer[:n]]
        for _ in range(3):
            at = rng.randrange(n + 1)  # as a recorder may ask
            ahead = (answer[at:] if rng.random() < 0.5 else other)[: rng.randrange(5)]
            said = free(constraint, text[: len(PROMPT) + at], ahead)
            if ahead == answer[at : at + len(ahead)]:
                assert said == truth[at + len(ahead)]
        assert constraint.allows(text, len(PROMPT), [], answer[n])
        wrong = next(token for token in range(len(LETTERS)) if token not in truth[n])
        assert not constraint.allows(text, len(PROMPT), [], wrong)
        only = constraint.only(text, len(PROMPT), [])
        assert only == (truth[n][0] if len(truth[n]) == 1 else -1)
        scores = constraint(torch.tensor([text]), torch.zeros(1, len(LETTERS) + 5))
        assert [t for t, value in enumerate(scores[0].tolist()) if value > -inf] == truth[n]
        assert len(constraint.masks) <= MAX_MASKS


def test_after_its_end_anything_goes(compiled: Any) -> None:
    constraint, end = fresh(compiled), [LETTERS.index(c) for c in ("{", "ab", "0", "}")]
    text = [*PROMPT, *end, END]
    for n in range(len(PROMPT), len(text) + 1):
        scores = constraint(torch.tensor([text[:n]]), torch.zeros(1, len(LETTERS)))
    assert (scores == 0).all() and constraint.only(text, len(PROMPT), []) == -1
    assert constraint.allows(text, len(PROMPT), [], 5) and free(constraint, text, [4, 4]) != []
    constraint(torch.tensor([[*text, 5, 6]]), torch.zeros(1, len(LETTERS)))
    assert constraint.only(text[:-1], len(PROMPT), []) == END, "it was taken back"


def test_a_committed_token_that_does_not_fit_is_an_error(compiled: Any) -> None:
    constraint = fresh(compiled)
    constraint(torch.tensor([PROMPT]), torch.zeros(1, len(LETTERS)))
    with pytest.raises(ValueError, match="token 0 does not fit"):
        constraint(torch.tensor([[*PROMPT, 0]]), torch.zeros(1, len(LETTERS)))


def test_a_grammar_that_takes_too_long_ends_its_text(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.serve.constraint.SECONDS_PER_TOKEN", -1.0)
    constraint = fresh(compiled)
    with pytest.raises(UserError, match="a token: make it simpler"):
        constraint(torch.tensor([PROMPT]), torch.zeros(1, len(LETTERS)))


def test_what_is_no_text_is_not_allowed_where_a_grammar_allows_all_but_something() -> None:
    tokens = vocabulary(["<call>", "a", "b", "<end>"], special=[0])
    for source, text, allowed in (
        (NOT_A, [1], [1, 2]),
        (NOT_A, [1, 2], [1, 2, 3]),
        ("start: <[0]>", [0], [3]),
    ):
        constraint = Constraint(llguidance.LLMatcher(tokens, source), 4, {3}, [0, 3])
        for n in range(len(text) + 1):
            scores = constraint(torch.tensor([[1, *text[:n]]]), torch.zeros(1, 4))
        assert scores[0].isfinite().nonzero().flatten().tolist() == allowed


class Fragile:
    """A matcher that allows all tokens, and is broken by token 7 as llguidance by one that is too much."""

    broken = False

    def deep_copy(self) -> Fragile:
        return Fragile()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self.broken |= 7 in tokens
        return 0 if self.broken else len(tokens)

    def rollback(self, n: int) -> None:
        assert not self.broken

    def unsafe_compute_mask_ptr(self, at: int, size: int) -> None:
        ctypes.memset(at, 0 if self.broken else 255, size)

    def is_error(self) -> bool:
        return self.broken

    def get_error(self) -> str:
        return "Too many items"


def test_a_drafted_token_that_is_too_much_costs_no_text() -> None:
    constraint, scores = Constraint(Fragile(), 9, {8}), torch.zeros(1, 9)
    constraint(torch.tensor([[1]]), scores)
    assert not constraint.allows([1, 2], 1, [3], 7)
    assert constraint(torch.tensor([[1, 2, 4]]), scores)[0].isfinite().all()
    with pytest.raises(UserError, match="the grammar ends the text: Too many items"):
        constraint(torch.tensor([[1, 2, 4, 7]]), scores)
