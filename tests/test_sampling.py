"""Drawing from a law, and what scores say where a draft was sampled although the request is greedy."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from draftwise.sampling import Chain, CountPenalty, GreedyScores, LawScores, draw
from draftwise.types import Draft, Request, Sampling

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -9.0], [3.0, 0.0, 1.0, 2.0], [0.0, 0.0, 5.0, 1.0]])


@pytest.mark.parametrize(
    ("p", "u", "token"),
    [
        ([0.0, 0.5, 0.5], 0.0, 1),  # never a token that cannot be
        ([0.0, 0.5, 0.5], 0.49, 1),
        ([0.0, 0.5, 0.5], 0.5, 2),
        ([0.25, 0.25, 0.0, 0.5], 0.5, 3),
        ([0.1, 0.1], 0.6, 1),  # what is left after a rejection does not add up to 1
        ([0.1, 0.1], 0.4, 0),
        ([0.0, 1.0, 0.0], 0.9999999999999999, 1),
    ],
)
def test_a_draw_is_the_quantile(p: Sequence[float], u: float, token: int) -> None:
    assert draw(torch.tensor(p), u) == token


def request(**settings: Any) -> Request:
    return Request(0, [1, 2, 1], 3, Sampling(**settings), Random(5), Random(6))


def law_scores(request: Request, draft: Draft) -> LawScores:
    return LawScores(request, draft, LOGITS, Chain.of(request))


def test_presence_counts_once_and_frequency_each_time_and_neither_the_prompt() -> None:
    said = torch.tensor([[0, 0, 3, 1, 1, 2]])  # the first three are the prompt
    scores = CountPenalty(0.5, 0.25, 3)(said, torch.zeros(1, 4))
    assert scores.tolist() == [[0.0, -1.0, -0.75, 0.0]]


class Log(LogitsProcessor):
    """Changes nothing, and notes every history that it is shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen += input_ids.tolist()
        return scores


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.01}, {"processors": (Log(),)}])
def test_a_sampled_draft_under_greedy_is_held_against_the_likeliest_token(settings: dict[str, Any]) -> None:
    flat = torch.full((4,), 0.25)
    draft = Draft.chain([1, 3], probs=[0.25, 0.25], dist=[flat, flat])
    r = request(**settings)
    scores = law_scores(r, draft) if settings else GreedyScores(draft, LOGITS, None)
    assert [scores.prob(0), scores.prob(1)] == [1.0, 0.0]
    assert {scores.residual(1) for _ in range(50)} == {0}
    assert [scores.choice(-1), scores.choice(0), scores.choice(1)] == [1, 0, 2]


def test_choices_of_a_device_are_read_by_node() -> None:
    scores = GreedyScores(Draft.chain([1, 3]), LOGITS, [1, 0, 2])
    assert [scores.choice(-1), scores.choice(0), scores.choice(1)] == [1, 0, 2]


def test_a_processor_sees_each_committed_prefix_once_and_in_order() -> None:
    log = Log()
    scores = law_scores(request(temperature=1.0, processors=(log,)), Draft.chain([1, 0]))
    scores.choice(-1), scores.choice(0), scores.choice(1), scores.choice(1)
    assert log.seen == [[1, 2, 1], [1, 2, 1, 1], [1, 2, 1, 1, 0]]


def test_a_draft_as_likely_as_the_target_leaves_the_law_itself() -> None:
    r = request(temperature=1.0)
    law = LOGITS[0].softmax(-1)
    draft = Draft.chain([1], probs=[float(law[1])], dist=[law])
    r.rng.seed(1)
    expected = draw(law, Random(1).random())
    assert law_scores(r, draft).residual(0) == expected
