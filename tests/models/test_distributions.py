"""Drawing from a distribution, and what scores say where a draft was sampled although the request is
greedy."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from draftwise import UserError
from draftwise.core.accept import accept
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.chains import Chain as Drafted
from draftwise.drafters.neural.chains import extend
from draftwise.models import distributions
from draftwise.models.distributions import Chain, CountPenalty, choices, draw, most_likely
from draftwise.targets.scores import GreedyScores, SampledScores

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
    assert draws(np.array(p, dtype=np.float32), u) == {token}


def draws(p: NDArray[np.float32], u: float) -> set[int]:
    """The token of an array, of a tensor on the host, and of one on another device."""
    with pytest.MonkeyPatch.context() as patch:
        found = {draw(p, u), draw(torch.from_numpy(p), u)}
        patch.setattr(distributions, "on_host", lambda logits: False)
        return found | {draw(torch.from_numpy(p), u)}


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 1000])
def test_draws_agree_wherever_the_distribution_lies(size: int) -> None:
    rng = np.random.default_rng(size)
    p = (rng.random(size) * (rng.random(size) < 0.3)).astype(np.float32)
    p[rng.integers(size)] = 0.5
    ends = p.cumsum(dtype=np.float64)
    possible = [int(token) for token in p.nonzero()[0]]
    for token in possible:
        assert draws(p, (ends[token] - p[token] / 2) / ends[-1]) == {token}
    assert draws(p, 1.0) == draws(p, np.nextafter(1.0, 0.0)) == {possible[-1]}


def test_a_quantile_that_rounding_puts_beyond_its_block_is_no_token_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block's sum may be more than its probabilities are one by one."""
    beyond: list[int] = []
    last = distributions._last

    def watched(p: NDArray[Any], total: float) -> int:
        beyond.append(last(p, total))
        return beyond[-1]

    monkeypatch.setattr(distributions, "_last", watched)
    rng = np.random.default_rng(0)
    for _ in range(500):
        p = np.zeros(128, dtype=np.float32)
        p[:60], p[100] = 10.0 ** (-12 * rng.random(60)), 1e-3
        sums = np.add.reduceat(p, [0, 64], dtype=np.float64).cumsum()
        assert draw(p, float(np.nextafter(sums[0], 0.0) / sums[1])) == 59
    assert beyond


def test_every_node_has_the_probabilities_of_its_own_row() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    p = (logits / 0.7).softmax(-1)
    draft = Draft.chain([1, 2], probs=[0.5, 0.5], dist=[p[2], p[1]])
    asked = request(temperature=0.7)
    scores = SampledScores(asked, draft, logits, Chain.of(asked))
    assert [scores.prob(0), scores.prob(1)] == pytest.approx([float(p[0, 1]), float(p[1, 2])])
    for node in (-1, 0, 1):
        assert [scores.chance(node, token) for token in range(3)] == pytest.approx(p[node + 1].tolist())
    assert torch.equal(scores.distributions([1, -1]), p[[2, 0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["float32", "float64", "float16", "bfloat16", "list", "array", "learned"])
def test_a_rejection_reads_the_drafters_distribution_in_any_form(form: str) -> None:
    """The first token was drafted with all of its probability, so that the other one is left."""
    logits, q = torch.zeros(2, 2), torch.tensor([1.0, 0.0])
    forms: dict[str, Any] = {
        "list": [1.0, 0.0],
        "array": np.array([1.0, 0.0]),
        "learned": q.clone().requires_grad_(),
    }
    made = forms[form] if form in forms else q.to(getattr(torch, form))
    asked = request(temperature=1.0)
    scores = SampledScores(asked, Draft.chain([0], probs=[1.0], dist=[made]), logits, Chain.of(asked))
    assert {scores.residual(0) for _ in range(20)} == {1}


@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_tokens_that_are_not_drawn_are_the_most_likely_ones(temperatures: tuple[float, ...]) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 4.0]])
    jobs = [Job(request(temperature=t), 4) for t in temperatures]

    def chosen(**options: Any) -> list[int]:
        chains = [Drafted(job, 3, **options) for job in jobs]
        extend(chains, logits, None)
        return [chain.tokens[-1] for chain in chains]

    for drawn, token, best in zip(temperatures, chosen(), (1, 2), strict=True):
        assert drawn or token == best
    assert chosen(sample=False) == [1, 2]


class OnApple(torch.Tensor):
    """A tensor as of a device without float64."""

    device: Any = property(lambda self: SimpleNamespace(type="mps"))

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def cumsum(self, *_: Any, **__: Any) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tokens_are_drawn_on_a_device_without_float64(dtype: torch.dtype) -> None:
    p = torch.rand(300, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert [draw(p.as_subclass(OnApple), u / 9) for u in range(9)] == [draw(p, u / 9) for u in range(9)]


def request(**settings: Any) -> Request:
    return Request(0, [1, 2, 1], 3, Sampling(**settings), Random(5), Random(6))


def law_scores(request: Request, draft: Draft) -> SampledScores:
    return SampledScores(request, draft, LOGITS, Chain.of(request))


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
    distribution = LOGITS[0].softmax(-1)
    draft = Draft.chain([1], probs=[float(distribution[1])], dist=[distribution])
    r.rng.seed(1)
    expected = draw(distribution, Random(1).random())
    assert law_scores(r, draft).residual(0) == expected


NAN, INF = float("nan"), float("inf")
NO_TOKEN = {"nan": [NAN] * 4, "one nan": [0.0, NAN, 1.0, 2.0], "nothing allowed": [-INF] * 4}
DRAFTS = [Draft(), Draft.chain([2]), Draft.chain([2], probs=[1.0], dist=[torch.tensor([0.0, 0.0, 1.0, 0.0])])]


@pytest.mark.parametrize("draft", DRAFTS, ids=["plain", "picked", "sampled"])
@pytest.mark.parametrize("row", NO_TOKEN.values(), ids=NO_TOKEN)
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7}, {"repetition_penalty": 1.2}, {"temperature": 1.0, "top_k": 2}],
    ids=str,
)
@pytest.mark.parametrize("host", [True, False])
def test_a_row_that_allows_no_token_says_so(
    settings: dict[str, Any], row: list[float], draft: Draft, host: bool
) -> None:
    logits = torch.tensor([row] * (1 + len(draft.tokens)))
    asked, scores = request(**settings), None
    if not settings:
        scores = GreedyScores(draft, logits, None if host else choices(logits))
    with pytest.raises(UserError, match="NaN or all -inf"):
        accept(draft, scores or SampledScores(asked, draft, logits, Chain.of(asked)), asked.rng)


def test_a_draw_of_no_law_says_so() -> None:
    for p in ([0.0, 0.0], [NAN, 1.0], [1.0, NAN]):
        with pytest.raises(UserError, match="NaN or all -inf"):
            draw(torch.tensor(p), 0.3)
        with pytest.raises(UserError, match="NaN or all -inf"):
            draw(np.array(p), 0.3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_on_the_host_a_token_is_the_first_of_the_largest_in_its_own_dtype(dtype: torch.dtype) -> None:
    near = 1.0 + 1e-9  # another number in float64 alone
    logits = torch.tensor([[-3.0, -1.5, -1.5], [1.0, near, 0.5]], dtype=dtype)
    scores = GreedyScores(Draft.chain([0]), logits, None)
    assert [scores.choice(-1), scores.choice(0)] == most_likely(logits) == [1, int(dtype == torch.float64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_choices_are_the_first_of_the_largest(dtype: torch.dtype) -> None:
    logits = torch.tensor([[[0.0, 2.0, 2.0], [-INF, -INF, 0.0]], [[NAN, 0.0, 1.0], [INF, 0.0, INF]]]).to(
        dtype
    )
    assert choices(logits) == [[1, 2], [-1, 0]]
