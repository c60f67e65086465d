"""Heads as CUDA graphs, recorded on a CPU: passes, and drafts of several tokens in one replay."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from draftwise.core.arms import NEVER, Stop
from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.models.runner.drafts import DraftShape, TreeShape
from draftwise.models.runner.executors import cuda_graphs
from draftwise.models.runner.executors.capturer import Capturer
from draftwise.policies.auto.chances import Calibration
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.drafters.neural.heads import random_eagle, random_mtp, target, trained_eagle
from tests.fake_cuda import install
from tests.recording import assert_alike, call, recorder, use_graphs
from tests.targets.test_hf import prompts
from tests.tiny import own_text

HEADS: dict[str, Any] = {
    "eagle": lambda made: random_eagle(made),
    "eagle3-narrow": lambda made: trained_eagle(made, eagle3=True, drafted=19),
    "mtp": random_mtp,
}
RULES = (Stop("never", 0.0), Stop("max-confidence", 0.3), Stop("svip-difference", 0.1))


@pytest.fixture(autouse=True)
def short_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few slots, so that texts outgrow a class, and the buffers."""
    monkeypatch.setattr(cuda_graphs, "FIRST_SLOTS", 16)


def opened(reads: HFTarget, second: Sampling) -> list[Request]:
    """Two texts, the first a greedy one."""
    requests = [
        Request(0, [3, 4, 5], 3, Sampling(max_new_tokens=90), Random(0), Random(0)),
        Request(1, [7, 8, 9, 10, 11], 5, second, Random(1), Random(1)),
    ]
    for one in requests:
        reads.open(one)
    return requests


def advance(reads: HFTarget, requests: list[Request]) -> None:
    """Write a token to each text."""
    for one, score in zip(requests, reads.verify([(one, Draft()) for one in requests]), strict=True):
        one.tokens.append(score.choice(-1))
        one.rounds += 1
    reads.commit([(one, Draft(), Verdict((), one.tokens[-1])) for one in requests])


def drafts_of(made: Any, head: Any, lengths: list[int], rounds: int, capture: Any) -> list[Any]:
    """Some drafts of two texts, greedy and sampled, and where their generators are afterwards."""
    rng, reads = Random(0), HFTarget(made)
    drafter = EagleDrafter(head, reads)
    graphs = use_graphs(drafter.runner, capture) if capture else None
    requests = opened(reads, Sampling(max_new_tokens=90, temperature=1.0, top_k=9))
    made_drafts = []
    for _ in range(rounds):
        advance(reads, requests)
        some = rng.sample(requests, rng.randint(1, 2))
        jobs = [Job(one, rng.choice(lengths), (rng.choice(RULES),), rows=True) for one in some]
        for one, draft in zip(some, drafter.draft(jobs), strict=True):
            made_drafts.append((draft, one.rng.getstate()))
    if graphs is not None:
        assert any(isinstance(shape, DraftShape) for shape in graphs.graphs) and not graphs.refused
    return made_drafts


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("rounds", "lengths"), [(3, [3]), (14, [1, 3, 7])], ids=["recorded", "called"])
def test_a_heads_draft_in_one_replay_is_its_draft_token_by_token(
    kind: str, rounds: int, lengths: list[int]
) -> None:
    """The tokens, distributions, signals and generators, of texts that outgrow the buffers."""
    made = target()
    head = HEADS[kind](made)
    capture = recorder() if rounds < 10 else call
    ours = drafts_of(made, head, lengths, rounds, capture)
    theirs = drafts_of(made, head, lengths, rounds, None)
    for (draft, state), (other, place) in zip(ours, theirs, strict=True):
        assert state == place
        assert_alike(other, draft)


RULE = Stop("gain", 0.02, Calibration(slope=0.7), deeper=0.1)


def trees_of(made: Any, head: Any, depths: list[int], rounds: int, capture: Any) -> list[Draft]:
    """Trees of two texts, together and alone, with the rule of `auto` and without."""
    rng, reads = Random(0), HFTarget(made)
    drafter = EagleDrafter(head, reads, top=3)
    graphs = use_graphs(drafter.runner, capture) if capture else None
    requests = opened(reads, Sampling(max_new_tokens=90))
    found: list[Draft] = []
    for _ in range(rounds):
        advance(reads, requests)
        some, rule = rng.sample(requests, rng.randint(1, 2)), rng.choice([NEVER, RULE])
        found += drafter.draft([Job(one, rng.choice(depths), (rule,), width=2) for one in some])
    if graphs is not None:
        assert {type(shape) for shape in graphs.graphs} >= {TreeShape} and not graphs.refused
    return found


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("rounds", "depths"), [(4, [3]), (16, [1, 2, 4, 6])], ids=["recorded", "called"])
def test_a_heads_tree_in_one_replay_is_its_tree_depth_by_depth(
    kind: str, rounds: int, depths: list[int]
) -> None:
    made = target()
    head = HEADS[kind](made)
    ours = trees_of(made, head, depths, rounds, recorder() if rounds < 10 else call)
    theirs = trees_of(made, head, depths, rounds, None)
    assert len(ours) == len(theirs) and any(not draft.is_chain for draft in ours)
    for draft, other in zip(ours, theirs, strict=True):
        assert paths(draft) == paths(other)
        assert [s.chosen for s in draft.signals] == pytest.approx([s.chosen for s in other.signals], rel=1e-4)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_texts_are_the_models_own_with_a_bad_head_and_graphs_of_both(
    monkeypatch: pytest.MonkeyPatch, batch: int, width: int
) -> None:
    """Target and head are captured as on a GPU, with the hidden states that the head reads."""
    install(monkeypatch)
    made = target()
    reads = HFTarget(made)
    drafter = EagleDrafter(random_eagle(made, eagle3=True), reads, width=width)
    for part in (reads, drafter):
        part.runner.compiler = Capturer(part.runner, "auto")
        assert part.runner.executor.kind == "graph", part.runner.compiler.state
    loop = loop_with(reads, {"bad": drafter}, "static-4")
    rounds = list(loop.run(prompts(), Sampling(max_new_tokens=24), batch=batch))
    assert not any(loop.faults.values()), loop.faults
    assert group_tokens(rounds) == [own_text(made, p, 24) for p in prompts()]
    assert any(r.accepted < r.drafted for r in rounds)
    kinds = {type(shape) for shape in drafter.runner.executor.graphs}  # type: ignore[attr-defined]
    assert (TreeShape if width > 1 else DraftShape) in kinds
