"""Medusa heads keep the target's text and distribution, as chains and as trees, rescored or not."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.roles import GradeJob
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.medusa import MedusaDrafter, TextGrams
from draftwise.drafters.neural.trees import sparse
from draftwise.errors import UserError
from draftwise.models.heads.medusa import Medusa
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import check_sampled, features, random_medusa, target, trained_medusa
from tests.drafters.neural.test_eagle import opened, read_on, texts_of
from tests.effort import some
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.tiny import VOCAB, own_text

OPTIONS: dict[str, dict[str, Any]] = {
    "joint": {},
    "fixed": {"tree": "fixed"},
    "rescored": {"rescore": 0.7},
}


@cache
def good(tied: bool = False, scale: float = 8.0) -> Medusa:
    return trained_medusa(target(scale=scale), tied=tied)


def loop_of(made: Any, heads: dict[str, Medusa], arms: tuple[Arm, ...], **options: Any) -> Loop:
    reads = HFTarget(made, chunk=8)
    team: dict[str, Any] = {name: MedusaDrafter(h, reads, **options) for name, h in heads.items()}
    policy = Anyone(arms)
    return Loop(reads, team | {"ngram": NgramDrafter()}, policy, policy)


@pytest.mark.parametrize("options", OPTIONS)
def test_greedy_text_is_the_models_own(options: str) -> None:
    made = target()
    own = [own_text(made, p, 40) for p in prompts()]
    arms = [Arm(d, n, width=w) for d in ("good", "tied", "bad") for n, w in ((4, 1), (3, 5), (9, 2))]
    heads = {"good": good(), "tied": good(tied=True), "bad": random_medusa(made)}
    for batch in (1, 3):
        loop = loop_of(made, heads, (*arms, Arm("ngram", 3), Arm("none", 0)), **OPTIONS[options])
        texts, rounds = texts_of(loop, 40, batch)
        assert texts == own
        assert any(r.accepted >= 2 for r in rounds if r.arm.drafter == "good")
        assert any(r.accepted < r.drafted for r in rounds if r.arm.drafter == "bad")


@pytest.mark.parametrize(
    ("options", "well", "settings"),
    some(
        [
            ("joint", True, "penalties"),
            ("joint", False, "shaped"),
            ("fixed", True, "shaped"),
            ("rescored", True, "shaped"),
        ],
        2,
    ),
)
def test_the_distribution_is_the_targets(options: str, well: bool, settings: str) -> None:
    made = target(scale=5.0)
    heads = {"m": good(scale=5.0) if well else random_medusa(made)}
    loop = loop_of(made, heads, (Arm("m", 3), Arm("m", 3, width=4), Arm("ngram", 2)), **OPTIONS[options])
    check_sampled(loop, distribution_of(made), settings, beside=60)


def by_hand(heads: Medusa, made: Any, tokens: list[int]) -> torch.Tensor:
    """Logits of every head after a text whose last token the target has not read."""
    state = features(made, torch.tensor([tokens]), (-1,))[0, -2]
    with torch.inference_mode():
        logits: torch.Tensor = heads(state)
    return logits


def test_a_chain_has_the_likeliest_token_of_each_head() -> None:
    made, heads = target(), good()
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22)) * 2])
    drafter = MedusaDrafter(heads, reads)
    for length in (2, 9):
        for request, draft in zip(requests, drafter.draft([Job(r, length) for r in requests]), strict=True):
            wanted = by_hand(heads, made, request.tokens).argmax(-1).tolist()
            assert draft == Draft.chain(wanted[:length])
        read_on(reads, requests, 3)


def test_a_joint_tree_has_the_likeliest_paths() -> None:
    made, heads = target(), random_medusa(target(), heads=3)
    reads, requests = opened(made, [[3, 4, 5]])
    (draft,) = MedusaDrafter(heads, reads, top=VOCAB).draft([Job(requests[0], 3, width=4)])
    distributions = by_hand(heads, made, requests[0].tokens).log_softmax(-1)
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    for k in range(3):
        scores |= {
            (*path, t): s + float(distributions[k, t])
            for path, s in scores.items()
            if len(path) == k
            for t in range(VOCAB)
        }
    del scores[()]
    best = sorted(scores, key=lambda path: -scores[path])[:12]
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert set(paths) == set(best)


def test_a_fixed_tree_is_the_best_by_accuracy() -> None:
    """Against all trees of three nodes, with accuracies that make a chain of two and a second child best."""
    assert sparse([[0.6, 0.3], [0.55, 0.2]], 3) == [(0,), (1,), (0, 0)]
    assert sparse([[0.9, 0.05], [0.8, 0.1]], 2) == [(0,), (0, 0)]
    assert sparse([[0.5, 0.4, 0.1], [0.3, 0.2]], 4) == [(0,), (1,), (0, 0), (1, 0)]
    reads, requests = opened(target(), [[3, 4, 5], [9, 8, 7, 6]])
    drafter = MedusaDrafter(good(), reads, tree="fixed")
    one, other = drafter.draft([Job(r, 3, width=4) for r in requests])
    assert one.parents == other.parents and one.tokens != other.tokens and len(one.tokens) == 12


def test_rescoring_lets_the_text_choose() -> None:
    """In a text of pairs 5 6 7, heads that waver follow the text; with a small weight they do not."""
    grams = TextGrams(VOCAB)
    grams.read([5, 6, 7, 5, 6, 7, 5])
    after = grams.logs([6], [7, 9])
    assert after[0] > after[1] and grams.logs([], [6, 9])[0] > grams.logs([], [6, 9])[1]
    made, heads = target(), random_medusa(target())
    reads, requests = opened(made, [[5, 6, 7] * 9])
    drafts = []
    for weight in (0.0, 1e-6, 50.0):
        drafter = MedusaDrafter(heads, reads, rescore=weight)
        drafter.observe(requests[0], requests[0].tokens)
        drafts.append(drafter.draft([Job(requests[0], 4)])[0])
    assert drafts[0].tokens == drafts[1].tokens != drafts[2].tokens


def test_grades_know_the_head_of_each_place() -> None:
    """At place k of a draft, that of head k, from where such a round would have begun."""
    made, heads = target(), good()
    reads, requests = opened(made, [[3], list(range(2, 22))])
    drafter = MedusaDrafter(heads, reads)
    read_on(reads, requests, 8)
    jobs = [GradeJob(r, r.prompt_length, [1.0] * r.position) for r in requests]
    hits = 0
    for job, grades in zip(jobs, drafter.grade(jobs), strict=True):
        tokens = job.request.tokens
        assert len(grades) == len(tokens) - job.start
        for j, grade in zip(range(job.start, len(tokens)), grades, strict=True):
            for k in range(6):
                right = (
                    k < 4
                    and j - k >= 2
                    and int(by_hand(heads, made, tokens[: j - k])[k].argmax()) == tokens[j]
                )
                assert grade.at(k) == (float(right), float(right))
                hits += right
    assert hits > 5


def test_another_tree_is_refused() -> None:
    with pytest.raises(UserError, match="tree=oak: choose from joint, fixed"):
        MedusaDrafter(good(), HFTarget(target()), tree="oak")
