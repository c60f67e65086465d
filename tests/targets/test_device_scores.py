"""Verdicts whose numbers are computed where the logits are: those of the host, token for token."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwise import UserError
from draftwise.core.accept import accept
from draftwise.core.drafts import Draft, Verdict
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.models.distributions import Chain, draw
from draftwise.targets.device_scores import DeviceScores, quantiles, read_all
from draftwise.targets.scores import SampledScores

SIZE = 40
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"top_k": 6}, {"temperature": 0.6, "top_p": 0.9})


def request(seed: int) -> Request:
    sampling = Sampling(**{"temperature": 1.0, **SETTINGS[seed % len(SETTINGS)]})
    return Request(seed, [1, 2, 1, 5], 2, sampling, Random(seed), Random(-seed))


def draft_of(asked: Request, rng: Random, logits: Tensor, kind: str) -> Draft:
    """A draft from another distribution, near the target's or far from it."""
    n = len(logits) - 1
    if kind == "tree":
        return Draft(
            tuple(rng.randrange(SIZE) for _ in range(n)), tuple(rng.randrange(-1, i) for i in range(n))
        )
    if kind == "picked":
        likely = logits.topk(2).indices.tolist()
        return Draft.chain([rng.choice(likely[i]) for i in range(n)])
    q = (0.5 * logits[:-1] + torch.randn(n, SIZE)).softmax(-1)
    tokens = [int(torch.searchsorted(row.cumsum(0), rng.random() * float(row.sum()))) for row in q]
    tokens = [min(token, SIZE - 1) for token in tokens]
    if kind == "siblings":
        beside = [
            [t for t in row.topk(4).indices.tolist() if t != token]
            for row, token in zip(q, tokens, strict=True)
        ]
        m = n // 3
        chances = tuple(float(row[token]) for row, token in zip(q[:m], tokens, strict=False))
        return Draft.with_siblings(tokens[:m], [t[:2] for t in beside[:m]], probs=chances, dist=q[:m])
    probs = [float(row[token]) for row, token in zip(q, tokens, strict=True)]
    return Draft.chain(tokens, probs=probs, dist=q if n % 2 else list(q))


@pytest.mark.parametrize("kind", ["tree", "picked", "sampled", "siblings", "plain"])
def test_verdicts_and_generators_are_those_of_the_host(kind: str) -> None:
    """Over rounds of several texts at once, which accept some tokens and reject others."""
    torch.manual_seed(0)
    rng, accepted, ended = Random(3), 0, 0
    pairs = [(request(seed), request(seed)) for seed in range(4)]
    for _ in range(40):
        theirs, ours, batch = [], [], list[DeviceScores]()
        for one, other in pairs:
            most = {"plain": 0, "siblings": 3}.get(kind, 5)
            nodes = (3 if kind == "siblings" else 1) * (rng.randint(1, most) if most else 0)
            logits = 2.0 * torch.randn(1 + nodes, SIZE)
            draft = Draft() if kind == "plain" else draft_of(one, rng, logits, kind)
            theirs.append(accept(draft, SampledScores(one, draft, logits, Chain.of(one)), one.rng))
            batch.append(DeviceScores(other, draft, logits, Chain.of(other)))
        read_all(batch)
        for (one, other), scores, verdict in zip(pairs, batch, theirs, strict=True):
            ours.append(accept(scores.draft, scores, other.rng))
            assert one.rng.getstate() == other.rng.getstate()
            accepted += len(verdict.path)
            last = verdict.path[-1] if verdict.path else -1
            is_sibling = kind == "siblings" and last >= len(scores.draft.probs)
            ended += is_sibling or len(verdict.path) == len(scores.draft.tokens)
            for text in (one, other):
                text.tokens += [*(scores.draft.tokens[i] for i in verdict.path), verdict.token]
        assert ours == theirs
    assert kind == "plain" or (accepted > 0 and 0 < ended < 160)


def test_the_walk_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not foreseen would be read from the device, token by token."""
    monkeypatch.setattr(SampledScores, "choice", None)
    monkeypatch.setattr(SampledScores, "prob", None)
    monkeypatch.setattr(SampledScores, "residual", None)
    rng = Random(0)
    for seed in range(30):
        asked, logits = request(seed), torch.randn(4, SIZE)
        for kind in ("tree", "picked", "sampled", "siblings"):
            draft = draft_of(asked, rng, logits, kind)
            scores = DeviceScores(asked, draft, logits, Chain.of(asked))
            read_all([scores])
            assert isinstance(accept(draft, scores, asked.rng), Verdict)


def test_numbers_drawn_by_others_meanwhile_are_not_drawn_again() -> None:
    """A processor or a criterion may have the generator, too: the residual is then drawn anew."""
    flat, logits = torch.full((1, SIZE), 1 / SIZE), torch.randn(2, SIZE)
    logits[0, 3] = -torch.inf
    seen = set()
    for seed in range(20):
        asked = request(0)
        draft = Draft.chain([3], probs=[1 / SIZE], dist=flat)
        scores = DeviceScores(asked, draft, logits, Chain.of(asked))
        read_all([scores])
        foreseen = scores.residuals[0]
        asked.rng.seed(seed)
        seen.add(scores.residual(0) == foreseen)
    assert seen == {True, False}


@pytest.mark.parametrize("row", [[0.0, float("nan")], [-float("inf")] * 2, [float("nan")] * 2])
def test_a_row_that_allows_no_token_says_so(row: list[float]) -> None:
    for draft in (Draft(), Draft.chain([1]), Draft.chain([1], probs=[1.0], dist=[torch.tensor([0.0, 1.0])])):
        asked = request(0)
        scores = DeviceScores(asked, draft, torch.tensor([row] * (1 + len(draft.tokens))), Chain.of(asked))
        read_all([scores])
        with pytest.raises(UserError, match="NaN or all -inf"):
            accept(draft, scores, asked.rng)


def test_quantiles_are_draws() -> None:
    rng = Random(2)
    p = torch.rand(50, SIZE) * (torch.rand(50, SIZE) < 0.3)
    p[:, 7] = 0.5
    uniforms = [rng.choice([0.0, rng.random(), 1 - 2**-53]) for _ in range(50)]
    wanted = [draw(row, u) for row, u in zip(p, uniforms, strict=True)]
    assert quantiles(p, torch.tensor(uniforms, dtype=torch.float64)).tolist() == wanted


def test_uniforms_that_were_peeked_at_are_still_to_come() -> None:
    asked, other = request(1), request(1)
    assert asked.peek(2, 3) == [other.uniform(k) for k in (2, 3, 4)]
    assert asked.uniform(2) == request(1).uniform(2)
