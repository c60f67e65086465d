"""What a round reads of the target's logits, by hand: NumPy in float64, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.models.distributions import Chain, most_likely, on_host, warp, warpers
from draftwise.targets.scores import GreedyScores, SampledScores, overlaps

Row = NDArray[np.float64]
PROMPT, SAID = [1, 4, 1], [2, 2, 5]
LOGITS = torch.tensor(
    [
        [0.3, 2.0, 1.4, -1.0, 1.9, 0.6],
        [2.2, 0.1, -0.7, 2.1, 0.4, 1.3],
        [-0.2, 0.8, 1.1, 1.0, -2.0, 0.9],
        [1.5, -0.3, 0.2, 0.7, 1.6, -1.1],
    ]
)
CHAIN = Draft.chain([4, 0, 2])
TREE = Draft((4, 1, 0), (-1, -1, 0))


def request(**settings: Any) -> Request:
    return Request(0, [*PROMPT, *SAID], len(PROMPT), Sampling(**settings), Random(5), Random(6))


def scores(draft: Draft, **settings: Any) -> SampledScores:
    asked = request(**settings)
    return SampledScores(asked, draft, LOGITS, Chain.of(asked))


def softmax(row: Row) -> Row:
    e = np.exp(row - row.max())
    return np.asarray(e / e.sum())


def shaped(row: Row, history: Sequence[int], **s: Any) -> Row:
    """The distribution of Transformers' processors in their order, from their definitions."""
    z, out = row.astype(np.float64).copy(), history[len(PROMPT) :]
    penalty = s.get("repetition_penalty", 1.0)
    for token in set(history):
        z[token] = z[token] * penalty if z[token] < 0 else z[token] / penalty
    for token in set(out):
        z[token] -= s.get("presence_penalty", 0.0) + s.get("frequency_penalty", 0.0) * out.count(token)
    z /= s.get("temperature", 1.0)
    if s.get("top_k"):
        z[z < np.sort(z)[-s["top_k"]]] = -np.inf
    if s.get("top_p", 1.0) < 1.0:
        order = np.argsort(z)  # the least likely go while they hold no more than 1 - top_p together
        gone = order[np.cumsum(softmax(z)[order]) <= 1 - s["top_p"]]
        z[gone] = -np.inf
    if s.get("min_p"):
        p = softmax(z)
        z[p < s["min_p"] * p.max()] = -np.inf
    return softmax(z)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 3},
    {"temperature": 0.8, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.3},
    {"temperature": 1.2, "top_k": 4, "top_p": 0.8, "min_p": 0.35},
    {"temperature": 1.0, "repetition_penalty": 1.5},
    {"temperature": 1.0, "repetition_penalty": 0.6},
    {"temperature": 1.0, "presence_penalty": 0.7},
    {"temperature": 0.9, "frequency_penalty": -0.4},
    {"temperature": 1.4, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
]
HISTORIES = {-1: [], 0: [4], 1: [4, 0], 2: [4, 0, 2]}
BRANCHES = {-1: [], 0: [4], 1: [1], 2: [4, 0]}


@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_law_after_each_node(settings: dict[str, Any], draft: Draft) -> None:
    """By the history of that node, in a tree too."""
    made = scores(draft, **settings)
    for node, drafted in (HISTORIES if draft is CHAIN else BRANCHES).items():
        wanted = shaped(LOGITS[node + 1].numpy(), [*PROMPT, *SAID, *drafted], **settings)
        found = made.distributions([node])
        assert found is not None and found[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
        assert [made.chance(node, t) for t in range(6)] == pytest.approx(wanted.tolist(), abs=1e-6)
    for node, (token, above) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        assert made.prob(node) == pytest.approx(made.chance(above, token))


def test_without_settings_no_processor_is_made() -> None:
    asked = request(temperature=1.0)
    assert len(Chain.of(asked).historic) == len(Chain.of(asked).warpers) == 0
    assert len(warpers(Sampling())) == 0, "greedy decoding shapes nothing"
    both = Chain.of(request(temperature=0.0, presence_penalty=0.1, repetition_penalty=1.1))
    assert (len(both.historic), len(both.warpers)) == (2, 0)


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[-1]], ids=str)
def test_a_choice_is_the_quantile_of_its_own_position(settings: dict[str, Any]) -> None:
    made, uniforms = scores(CHAIN, **settings), Random(6)
    drawn = [uniforms.random() for _ in range(12)]
    for depth, node in enumerate(HISTORIES):
        found = made.distributions([node])
        assert found is not None
        at = drawn[len(SAID) + depth]
        wanted = int(np.searchsorted(np.cumsum(found[0].double().numpy()), at, side="right"))
        assert made.choice(node) == wanted


def test_what_a_rejection_leaves_has_the_law_of_the_difference() -> None:
    q = torch.tensor([[0.5, 0.0, 0.1, 0.1, 0.2, 0.1]] * 3)
    draft = Draft.chain([0, 0, 0], probs=[0.5] * 3, dist=q)
    made = scores(draft, temperature=1.0)
    for node in range(3):
        left = np.maximum(softmax(LOGITS[node].numpy().astype(np.float64)) - q[node].double().numpy(), 0)
        left /= left.sum()
        twin = Random(11)
        made.request.rng.seed(11)
        for _ in range(40):
            at = twin.random()
            wanted = int(np.searchsorted(np.cumsum(left), at, side="right"))
            assert made.residual(node) == wanted


@pytest.mark.parametrize("greedy", [True, False])
def test_log_probabilities_are_raw(greedy: bool) -> None:
    made: Any = GreedyScores(CHAIN, LOGITS, None) if greedy else scores(CHAIN, temperature=0.5, top_k=2)
    for node in HISTORIES:
        wanted = np.log(softmax(LOGITS[node + 1].numpy().astype(np.float64)))
        assert [made.logprob(node, t) for t in range(6)] == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
def test_greedy_by_node(draft: Draft, host: bool) -> None:
    best = [1, 0, 2, 4]
    made: Any = GreedyScores(draft, LOGITS, None if host else best)
    assert [made.choice(node) for node in range(-1, 3)] == best
    for node, (token, above) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        assert made.prob(node) == float(best[above + 1] == token)
        assert made.residual(node) == best[above + 1]
        assert [made.chance(node, t) for t in range(6)] == [float(t == best[node + 1]) for t in range(6)]
    assert made.distributions([0]) is None


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 3.0}])
def test_greedy_with_a_penalty_by_node(settings: dict[str, Any]) -> None:
    made = scores(CHAIN, **settings)
    for node, drafted in HISTORIES.items():
        best = int(shaped(LOGITS[node + 1].numpy(), [*PROMPT, *SAID, *drafted], **settings).argmax())
        assert made.choice(node) == best
        assert [made.chance(node, t) for t in range(6)] == [float(t == best) for t in range(6)]
    for node, (token, above) in enumerate(zip(CHAIN.tokens, CHAIN.parents, strict=True)):
        assert made.prob(node) == float(made.choice(above) == token)
        assert made.residual(node) == made.choice(above)
    assert made.distributions([0, 1]) is None


def test_the_scores_of_a_round_outlive_its_commit() -> None:
    made = scores(CHAIN, temperature=1.0, frequency_penalty=0.5)
    early = made.distributions([-1])
    made.request.tokens += [4, 0]
    late = made.distributions([0])
    wanted = shaped(LOGITS[1].numpy(), [*PROMPT, *SAID, 4], temperature=1.0, frequency_penalty=0.5)
    assert early is not None and late is not None
    assert late[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


class Ban(LogitsProcessor):
    """Writes into what it is given, as some do."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores[:, 1] = -torch.inf
        return scores


def test_users_processors_come_after_the_penalties_and_harm_no_logits() -> None:
    before = LOGITS.clone()
    made = scores(CHAIN, temperature=1.0, processors=(Ban(),))
    wanted = softmax(np.where(np.arange(6) == 1, -np.inf, LOGITS[0].numpy().astype(np.float64)))
    found = made.distributions([-1])
    assert found is not None and found[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert torch.equal(LOGITS, before)
    chain = Chain.of(request(temperature=1.0, presence_penalty=1.0, processors=(Ban(),)))
    assert isinstance(chain.historic[-1], Ban) and len(chain.historic) == 2


@pytest.mark.parametrize("narrow", [False, True])
def test_overlaps_of_sampled_chains_are_one_less_total_variation(narrow: bool) -> None:
    rows = [torch.tensor([0.1, 1.0, -1.0, 0.5, 2.0, 0.0])[: 4 if narrow else 6] * k for k in (1.0, 2.0, 0.3)]
    found = overlaps(Draft.chain([4, 0, 2], rows=rows), LOGITS)
    for k, q in enumerate(rows):
        p = softmax(LOGITS[k].numpy().astype(np.float64))
        shared = np.minimum(p[: len(q)], softmax(q.numpy().astype(np.float64)))
        assert found[k] == pytest.approx(float(shared.sum()), abs=1e-6)


def test_a_sibling_of_a_chain_overlaps_by_what_its_token_adds() -> None:
    """The chain's own overlap and those of its siblings are the chance that one of them is accepted."""
    rows = [LOGITS[1], LOGITS[0]]
    draft = Draft((1, 2, 0, 3), (-1, 0, -1, 0), probs=(0.5, 0.5), dist=rows, rows=rows)
    p, q = ([softmax(row.numpy().astype(np.float64)) for row in some] for some in (LOGITS[:2], rows))
    chain = [float(np.minimum(a, b).sum()) for a, b in zip(p, q, strict=True)]
    beside = [max(0.0, float(p[k][token] - q[k][token])) for k, token in enumerate((0, 3))]
    assert max(beside) > 0.0
    assert scores(draft, temperature=1.0).overlaps() == pytest.approx([*chain, *beside], abs=1e-6)


@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
def test_overlaps_of_picked_tokens_are_the_targets_own_probability(draft: Draft) -> None:
    rows = [LOGITS[0]] * 3 if draft is TREE else None
    for drafted in (draft, Draft(draft.tokens, draft.parents, rows=rows)):
        for made in (scores(drafted, temperature=0.3), GreedyScores(drafted, LOGITS, None)):
            wanted = [
                softmax(LOGITS[above + 1].numpy().astype(np.float64))[token]
                for token, above in zip(drafted.tokens, drafted.parents, strict=True)
            ]
            assert made.overlaps() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_likeliest_in_every_type(dtype: torch.dtype) -> None:
    assert most_likely(LOGITS[None].to(dtype)) == [[1, 0, 2, 4]]
    assert on_host(LOGITS.to(dtype))
    assert not on_host(torch.empty(1, device="meta"))
    distribution = warp(warpers(Sampling(temperature=0.5)), LOGITS.to(dtype))
    assert distribution.dtype == torch.float32 and distribution.sum(-1).tolist() == pytest.approx([1.0] * 4)
