"""EAGLE heads keep the target's text and distribution, as chains and as trees, beside other drafters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.heads.eagle import Eagle
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone, group_tokens
from tests.drafters.neural.heads import check_sampled, features, random_eagle, target, trained_eagle
from tests.effort import some
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.tiny import VOCAB, model, own_text

OTHERS = ["gpt2", "gpt-neox", "qwen3-window", "gemma3-window"]
KINDS: dict[str, dict[str, Any]] = {
    "eagle": {},
    "eagle3": {"eagle3": True},
    "eagle3-narrow": {"eagle3": True, "drafted": 19},
}


@cache
def good(kind: str) -> Eagle:
    return trained_eagle(target(), **KINDS[kind])


def bad(kind: str) -> Eagle:
    return random_eagle(target(), **KINDS[kind])


def texts_of(loop: Loop, n: int, batch: int) -> tuple[list[list[int]], list[Round]]:
    rounds = list(loop.run(prompts(), Sampling(max_new_tokens=n), batch=batch))
    assert not any(loop.faults.values()), loop.faults
    return group_tokens(rounds), rounds


def loop_of(
    made: Any, heads: dict[str, Eagle], arms: tuple[Arm, ...], more: dict[str, Any] | None = None
) -> Loop:
    reads = HFTarget(made, chunk=8)
    team = {name: EagleDrafter(head, reads) for name, head in heads.items()}
    policy = Anyone(arms)
    return Loop(reads, team | (more or {}), policy, policy)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_models_own(kind: str) -> None:
    """Good and bad heads, chains and trees of two shapes, beside an n-gram drafter and none at all."""
    made = target()
    own = [own_text(made, p, 40) for p in prompts()]
    arms = [Arm(d, n, width=w) for d in ("good", "bad") for n, w in ((4, 1), (3, 4), (6, 2))]
    for batch in (1, 3):
        heads = {"good": good(kind), "bad": bad(kind)}
        loop = loop_of(made, heads, (*arms, Arm("ngram", 3), Arm("none", 0)), {"ngram": NgramDrafter()})
        texts, rounds = texts_of(loop, 40, batch)
        assert texts == own
        assert any(r.accepted >= 3 for r in rounds if r.arm.drafter == "good")
        assert any(r.accepted < r.drafted for r in rounds if r.arm.drafter == "bad")


@pytest.mark.parametrize(("name", "eagle3"), some(product(OTHERS, [False, True]), 3))
def test_on_other_architectures(name: str, eagle3: bool) -> None:
    made = target(name)
    own = [own_text(made, p, 24) for p in prompts()]
    head = random_eagle(made, eagle3=eagle3)
    assert texts_of(loop_of(made, {"e": head}, (Arm("e", 3), Arm("e", 3, width=4))), 24, 3)[0] == own


@cache
def soft(kind: str, well: bool) -> Eagle:
    made = target(scale=5.0)
    return trained_eagle(made, **KINDS[kind]) if well else random_eagle(made, **KINDS[kind])


@pytest.mark.parametrize("well", some([False, True], 2))
@pytest.mark.parametrize(("kind", "settings"), [("eagle", "penalties"), ("eagle3-narrow", "shaped")])
def test_the_distribution_is_the_targets(settings: str, kind: str, well: bool) -> None:
    """Chains that are sampled and trees that are picked, in one batch with a model and a longer text."""
    made = target(scale=5.0)
    arms = (Arm("e", 3), Arm("e", 3, width=4), Arm("lm", 2))
    other = {"lm": LMDrafter(model("llama", seed=9, scale=9.0), VOCAB)}
    loop = loop_of(made, {"e": soft(kind, well)}, arms, other)
    check_sampled(loop, distribution_of(made), settings, beside=60)


@pytest.mark.parametrize("kind", ["eagle", "eagle3-narrow"])
def test_the_distribution_is_the_targets_where_the_head_is_in_half_precision(kind: str) -> None:
    """Its own distribution is then rounded, and it is that one which a token is drawn from and tested by."""
    of = target(scale=5.0)
    head = copy.deepcopy(soft(kind, True)).to(torch.bfloat16)
    head.shared = (of.get_input_embeddings(), of.get_output_embeddings())
    arms = (Arm("e", 3), Arm("e", 3, width=4))
    check_sampled(loop_of(of, {"e": head}, arms), distribution_of(of))


def test_texts_that_cannot_share_a_pass_have_states_of_their_own() -> None:
    """As where a layer counts its positions by the cache's length: the drafts are those of a shared pass."""
    of, drafts = target(), []
    for together in (True, False):
        reads, requests = opened(of, [prompt[:n] for prompt, n in zip(prompts(), (3, 5, 4), strict=False)])
        drafter = EagleDrafter(random_eagle(of), reads)
        drafter.runner.together = together
        drafts.append([draft.tokens for draft in drafter.draft([Job(request, 4) for request in requests])])
    assert drafts[0] == drafts[1] and all(drafts[0])


def opened(made: Any, texts: list[list[int]]) -> tuple[HFTarget, list[Request]]:
    """A target that has read all of each text but its last token, and keeps its features."""
    reads = HFTarget(made, chunk=8)
    reads.hidden_states((-1,))
    reads.hidden_states((1, 1, 0))
    reads.hidden_states((1,))
    asked = Sampling(max_new_tokens=50)
    requests = [Request(i, [*t], len(t), asked, Random(i), Random(i)) for i, t in enumerate(texts)]
    for request in requests:
        reads.open(request)
    read_on(reads, requests)
    return reads, requests


def read_on(reads: HFTarget, requests: list[Request], new: int = 1) -> None:
    """The target writes its own tokens."""
    from draftwise.core.accept import accept

    for _ in range(new):
        batch = [(r, Draft()) for r in requests]
        verdicts = [accept(d, s, r.rng) for (r, d), s in zip(batch, reads.verify(batch), strict=True)]
        for request, verdict in zip(requests, verdicts, strict=True):
            request.tokens.append(verdict.token)
        reads.commit([(r, d, v) for (r, d), v in zip(batch, verdicts, strict=True)])


def by_hand(head: Eagle, made: Any, tokens: list[int], path: list[int]) -> torch.Tensor:
    """The head's logits after a drafted path, over the target's vocabulary, from the whole text at once."""
    ids = torch.tensor([tokens])
    states = head.read(features(made, ids, head.layers_read))[:, :-1]
    text = [*tokens, *path]
    with torch.inference_mode():
        for k in range(len(path) + 1):
            after = head(torch.tensor([text[1 : len(tokens) + k]]), states)
            states = torch.cat((states, after[:, -1:]), 1)
        narrow = head.logits(after[0, -1])
    if head.ids is None:
        return narrow
    return narrow.new_full((VOCAB,), -torch.inf).index_copy(0, head.ids, narrow)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_goes_on_from_the_heads_own_states(kind: str) -> None:
    made, head = target(), good(kind)
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22)) * 2])
    drafter = EagleDrafter(head, reads)
    for _ in range(2):
        for request, draft in zip(
            requests, drafter.draft([Job(r, 4, rows=True) for r in requests]), strict=True
        ):
            assert len(draft.tokens) == 4 and draft.is_chain
            for k in range(4):
                wanted = by_hand(head, made, request.tokens, list(draft.tokens[:k]))
                torch.testing.assert_close(draft.rows[k], wanted)
                assert draft.tokens[k] == int(wanted.argmax())
        read_on(reads, requests, 3)


def best_tree(
    logits: Callable[[list[int]], torch.Tensor], top: int, depth: int, nodes: int
) -> set[tuple[int, ...]]:
    """EAGLE-2's tree, written out: paths of tokens."""
    frontier: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int]]] = []
    for _ in range(depth):
        new = []
        for score, path in frontier:
            best = logits(path).log_softmax(-1).topk(min(top, nodes))
            new += [
                (score + v, [*path, t])
                for v, t in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                if v > -1e30
            ]
        found += new
        frontier = sorted(new, key=lambda item: -item[0])[:top]
    return {tuple(path) for _, path in sorted(found, key=lambda item: -item[0])[:nodes]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_eagle_2s(kind: str) -> None:
    """Two texts of different lengths in one batch, depth by depth, against the tree written out."""
    made, head = target(), bad(kind)
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22)) * 2])
    drafter = EagleDrafter(head, reads, top=3)
    for draft, request in zip(drafter.draft([Job(r, 4, width=3) for r in requests]), requests, strict=True):
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        tokens = request.tokens
        assert set(paths) == best_tree(lambda path, t=tokens: by_hand(head, made, t, path), 3, 4, 12)  # type: ignore[misc]
        assert len(set(paths)) == len(paths) == 12


def test_growing_stops_where_it_gains_too_little() -> None:
    """OPT-Tree: with a large gain asked for, a tree is shallow; with none it is as deep as it may be."""
    reads, requests = opened(target(), [[3, 4, 5]])
    depths = []
    for gain in (0.0, 0.5, 50.0):
        (draft,) = EagleDrafter(good("eagle"), reads, gain=gain).draft([Job(requests[0], 6, width=4)])
        depth = {-1: 0}
        for node, parent in enumerate(draft.parents):
            depth[node] = depth[parent] + 1
        depths.append(max(depth.values()))
    assert depths[0] >= depths[1] >= depths[2] == 1 and depths[0] > 3


def test_a_stop_rule_ends_chains_and_trees() -> None:
    reads, requests = opened(target(), [[3, 4, 5]])
    drafter = EagleDrafter(bad("eagle"), reads)
    never, always = (Stop(),), (Stop("max-confidence", 1.1),)
    for width in (1, 3):
        lengths = [len(drafter.draft([Job(requests[0], 4, s, width)])[0].tokens) for s in (never, always)]
        assert lengths[0] == 4 * width and lengths[1] < lengths[0]


def test_what_it_was_not_asked_about_is_caught_up_with() -> None:
    """A drafter asked late, or now and then, drafts what one asked every round drafts."""
    made, head = target(), good("eagle3")
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22)), [9, 8]])
    often, seldom = EagleDrafter(head, reads), EagleDrafter(head, reads)
    for round in range(9):
        jobs = [Job(r, 3, width=1 + round % 2) for r in requests]
        made_often = often.draft(jobs)
        if round in (0, 4, 8):
            assert seldom.draft(jobs) == made_often
        read_on(reads, requests, 3)
        if round == 4:
            reads.close(requests[1])
            often.close(requests.pop(1))
            seldom.close(Request(1, [], 0, Sampling(), Random(), Random()))
    late = EagleDrafter(head, reads)
    jobs = [Job(r, 3) for r in requests]
    assert late.draft(jobs[::-1])[::-1] == often.draft(jobs)


def test_it_drafts_nothing_before_the_target_has_read_the_text() -> None:
    reads = HFTarget(target())
    drafter = EagleDrafter(good("eagle"), reads)
    fresh = Request(0, [3, 4, 5], 3, Sampling(), Random(0), Random(0))
    reads.open(fresh)
    assert drafter.draft([Job(fresh, 4)]) == [Draft()] and drafter.hint(fresh) == 0.0
    read_on(reads, [fresh])
    assert len(drafter.draft([Job(fresh, 4)])[0].tokens) == 4 and drafter.hint(fresh) == 1.0
    fresh.tokens += [5, 6]  # the next turn of a conversation
    assert drafter.draft([Job(fresh, 4)]) == [Draft()] and drafter.hint(fresh) == 0.0


def test_grades_are_those_of_the_targets_own_states() -> None:
    made, head = target(), good("eagle")
    reads, requests = opened(made, [[3], list(range(2, 22))])
    drafter = EagleDrafter(head, reads)
    drafter.draft([Job(r, 4, width=2) for r in requests])  # what it left in its cache does no harm
    read_on(reads, requests, 6)
    starts = [r.prompt_length for r in requests]
    jobs = [GradeJob(r, s, [0.5] * (len(r.tokens) - s)) for r, s in zip(requests, starts, strict=True)]
    for job, grades in zip(jobs, drafter.grade(jobs), strict=True):
        tokens = job.request.tokens
        assert len(grades) == len(tokens) - job.start
        for j, grade in zip(range(job.start, len(tokens)), grades, strict=True):
            right = j >= 2 and int(by_hand(head, made, tokens[:j], []).argmax()) == tokens[j]
            assert grade.accept == float(right)
    assert sum(g.accept for grades in drafter.grade(jobs) for g in grades) >= 3


def test_grades_fall_with_the_depth_of_a_draft_as_its_own_drafts_did() -> None:
    """A head whose own states are worthless: right at the first place, and wrong at the second."""
    made, head = target(), good("eagle")
    reads, requests = opened(made, [list(range(2, 22))])
    drafter, (request,) = EagleDrafter(head, reads), requests
    honest = drafter.grade([GradeJob(request, request.prompt_length, [1.0])])[0][0]
    assert not honest.deeper
    hits = wrong = 0.0
    for _ in range(30):
        (draft,) = drafter.draft([Job(request, 2, rows=True)])
        start = len(request.tokens)
        read_on(reads, requests, 2)
        if draft.tokens[0] == request.tokens[start]:
            spoilt = replace(draft, rows=[draft.rows[0], -draft.rows[1]])
            job = GradeJob(request, start, [1.0, 1.0], draft=spoilt)
            second, picks = drafter.grade([job])[0][1], (-draft.rows[1]).argmax()
            hits, wrong = hits + second.accept, wrong + float(int(picks) == request.tokens[start + 1])
    assert hits >= 4 and wrong == 0
    factor = 4.0 / (4.0 + hits)
    (grade,) = drafter.grade([GradeJob(request, len(request.tokens) - 1, [1.0])])[0]
    assert grade.at(0)[0] == grade.accept
    assert grade.at(1) == pytest.approx((grade.accept * factor, grade.overlap * factor))
    assert grade.at(9) == grade.at(1)


@pytest.mark.parametrize(
    ("temperature", "options", "kind"),
    [(0.0, {}, "tree"), (1.0, {}, "siblings"), (1.0, {"sample": False}, "tree"), (1.0, {"width": 3}, "tree")],
)
def test_a_wide_arm_gets_a_tree_or_where_text_is_sampled_siblings(
    temperature: float, options: Any, kind: str
) -> None:
    made = target()
    reads = HFTarget(made)
    drafter = EagleDrafter(random_eagle(made), reads, **options)
    one = Request(0, [3, 4, 5], 3, Sampling(max_new_tokens=20, temperature=temperature), Random(0), Random(0))
    reads.open(one)
    (scores,) = reads.verify([(one, Draft())])
    one.tokens.append(scores.choice(-1))
    one.rounds += 1
    reads.commit([(one, Draft(), Verdict((), one.tokens[-1]))])
    (draft,) = drafter.draft([Job(one, 3, width=3)])
    chain = tuple(range(-1, 2))
    if kind == "tree":
        assert draft.dist is None and len(draft.tokens) == 9 and draft.parents[:3] != chain
    else:
        assert len(draft.dist) == 3 and draft.parents == (*chain, -1, -1, 0, 0, 1, 1)
    assert drafter.drafts_siblings() is (not options)
