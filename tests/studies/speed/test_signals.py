"""What is recorded beside a trace, and classifiers on it, where the right answers are known."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from draftwise import Sampling
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.measure.trace import Trace
from draftwise.measure.trace.state import ReplayState
from studies.speed import signals
from tests.measure.trace.sims import COSTS, recorded


def test_a_tree_is_its_accepted_path_and_then_wrong() -> None:
    """Depth five at most, also where the text goes beside the tree or the draft is shorter."""
    tree = Draft((4, 7, 5, 6), (-1, -1, 0, 2))  # 4, 5, 6 and 7
    drafter = SimpleNamespace(draft=lambda jobs: [tree] * len(jobs))
    signals.Flat(drafter)

    def drafted(text: list[int], at: int, length: int) -> tuple[int, ...]:
        request = Request(1, text[:at], 1, Sampling(), Random(0), Random(0))
        return tuple(drafter.draft([Job(request, length)])[0].tokens)

    text = [9, 4, 5, 8, 4, 5, 6, 0]
    drafted(text, len(text), 1)  # the head reads the whole text first
    assert drafted(text, 1, 8) == (4, 5, 0, 0, 0)  # 8 is not in the tree
    assert drafted(text, 4, 4) == (4, 5, 6, 1)
    assert drafted(text, 4, 2) == (4, 5)
    assert drafted(text, 2, 1) == (0,)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> signals.Drafts:
    """Ten probabilities that say nothing but the first, which says whether the token is right."""
    trace: Trace = recorded(Path(tmp_path_factory.mktemp("trace")), n=12)
    stages = [ReplayState(one) for one in trace]
    for i, stage in enumerate(stages):
        tokens = np.array(stage.drafters["good"].tokens)
        np.save(trace.folder / f"{i:06d}.npy", np.random.default_rng(i).random((len(tokens), 14)))
    every = signals.Drafts(trace)
    for i, stage in enumerate(stages):
        drafted = stage.drafters["good"].drafts
        for at, k in zip(*np.nonzero(every.drafts[i][2]), strict=True):
            if k < drafted.count[at, -1]:
                every.rows[i][drafted.start[at, -1] + k, 0] = every.drafts[i][1][at, k]
    return every


def test_a_classifier_that_can_know_does(drafts: signals.Drafts) -> None:
    kind, _ = signals.KINDS
    _, own, tune = next(signals.ways(kind, drafts, None))
    assert own is tune and float(signals.f1(kind, own, tune).split()[0]) > 0.99
    names = [name for name, *_ in signals.ways(kind, drafts, drafts)]
    assert names == ["own halves", "trained elsewhere", "trained and tuned elsewhere"]
    mine = signals.seconds(kind, own, tune, COSTS)
    assert mine.sum() < drafts.judge(kind, lambda i: lambda x: np.ones(len(x))).seconds(COSTS, 0.5).sum()


def test_specdecpp_reads_the_state_after_a_token(drafts: signals.Drafts) -> None:
    """So that the first token is never judged before the second is drafted."""
    _, kind = signals.KINDS
    inputs, labels = drafts.examples(0, kind)
    assert inputs.shape == (len(labels), 4) and 0 < labels.mean() < 1
    judged = drafts.judge(kind, lambda i: lambda x: np.full(len(x), 0.5))
    assert judged.chances[0][0, :3] == pytest.approx([1.0, 0.5, 0.25])
