"""Traces of heads, which draft from the target's hidden states: a replay is the live run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from draftwise.core.loop import Loop
from draftwise.core.roles import Drafter
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.blocks import DFlashDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.early_exit import EarlyExitDrafter
from draftwise.drafters.neural.medusa import MedusaDrafter
from draftwise.errors import UserError
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.costs import measure_costs
from draftwise.measure.trace.drafts import Text
from draftwise.measure.trace.record import Prompt, TextCoupling
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from draftwise.testing.drafter import SimDrafter
from tests.drafters.neural.heads import (
    random_eagle,
    random_medusa,
    random_published,
    target,
    trained_eagle,
)
from tests.effort import drawn
from tests.measure.trace.sims import COSTS, counts, distribution, record_trace, seen
from tests.targets.test_hf import prompts

LENGTH, TOKENS = 6, 24
GOOD, BAD, MEDUSA = "eagle:good", "eagle:bad", "medusa:bad"


@pytest.fixture(scope="module")
def reads() -> HFTarget:
    return HFTarget(target())


@pytest.fixture(scope="module")
def team(reads: HFTarget) -> dict[str, Drafter]:
    """A trained head, one that is never right, and others."""
    of = reads.runner.model
    return {
        GOOD: EagleDrafter(trained_eagle(of, eagle3=True, drafted=19), reads),
        BAD: EagleDrafter(random_eagle(of), reads),
        MEDUSA: MedusaDrafter(random_medusa(of), reads),
        "ngram": NgramDrafter(),
    }


def recorded(reads: HFTarget, team: Mapping[str, Drafter], folder: Path, temperature: float = 0.0) -> Trace:
    texts = [Prompt(str(i), "c", prompt) for i, prompt in enumerate(prompts())]
    sampling = Sampling(max_new_tokens=TOKENS, temperature=temperature, seed=0)
    return record_trace(reads, team, texts, folder, sampling, length=LENGTH, overlap=True)


@pytest.fixture(scope="module")
def trace(reads: HFTarget, team: dict[str, Drafter], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(reads, team, tmp_path_factory.mktemp("trace"))


@pytest.mark.parametrize(
    "name",
    [
        f"static-4?drafter={GOOD}",
        f"static?length=6&drafter={BAD}&stop=svip(0.9)",
        f"static?length=6&drafter={GOOD}&stop=max-confidence(0.3)",
        "random?arms=drafters*lengths&lengths=0,1,2,5",
        "ucb1",
        "metasd-ucb?length=6",
        "tapout-seq-ucb1?length=6",
    ],
)
def test_every_replayed_round_is_the_live_one(
    name: str, reads: HFTarget, team: dict[str, Drafter], trace: Trace
) -> None:
    policy = method(name, trace.drafters)
    loop = Loop(reads, dict(team), policy.policy, policy.recorder, seed=3)
    back = Replay(trace, method(name, trace.drafters), COSTS, seed=3)
    accepted = 0
    for one in trace:
        sampling = Sampling(max_new_tokens=TOKENS)
        there = [seen(r) for r in loop.run([one.prompt.tolist()], sampling)]
        assert [seen(r) for r in back.replay(ReplayState(one))] == there
        accepted += sum(r[4] for r in there)
    assert not any(loop.faults.values()), loop.faults
    assert accepted or BAD in name


def test_a_head_has_a_draft_of_its_own_at_each_position(trace: Trace) -> None:
    """None at the first, where the target has read nothing; none beyond the text's end."""
    for one in trace:
        for name in (GOOD, BAD, MEDUSA):
            drafts, n = one.drafts[name], one.committed
            assert drafts.count[0].tolist() == [0] * LENGTH and drafts.hint.tolist() == [0.0] + [1.0] * (
                n - 1
            )
            longest = 4 if name == MEDUSA else LENGTH
            left = np.minimum(longest, TOKENS - 1 - np.arange(1, n))
            assert drafts.count[1:, -1].tolist() == left.tolist()
            assert (np.diff(drafts.start[1:-1, 0]) >= 0).all()


def test_a_head_may_begin_a_cascade_but_not_continue_one(trace: Trace) -> None:
    first = f"cascade:{GOOD}>ngram?first=2"
    whole = Trace(trace.folder, [GOOD, "ngram", first])
    Replay(whole, method("static-4", [first]), COSTS)
    assert trace.header.waits == [GOOD, BAD, MEDUSA]
    second = f"cascade:ngram>{GOOD}?first=0"
    with pytest.raises(UserError, match=f"{GOOD} cannot continue another's draft"):
        Replay(Trace(trace.folder, [GOOD, "ngram", second]), method("static-4", [second]), COSTS)


def test_a_draft_that_is_chosen_given_the_text_has_the_law_of_a_live_one() -> None:
    """Over texts from p, tokens are from q, accepted with probability sum(min(p, q)), and then q's own."""
    rng, n = Random(5), 6000
    p, q = ([0.5, 0.3, 0.15, 0.05, 0.0], [0.1, 0.3, 0.2, 0.1, 0.3])
    rows = SimpleNamespace(distributions=lambda nodes: torch.tensor([p] * len(nodes)))
    tokens, pairs = [], Counter[tuple[int, ...]]()
    for _ in range(n):
        tokens = rng.choices(range(5), p, k=2)
        text = Text([1], tokens, 2, 2, False, Sampling(temperature=1.0), cast(Any, [rows]))
        coupling, draft = TextCoupling(text, 0, rng), list[int]()
        for _ in range(2):
            draft.append(coupling.choose(draft, torch.tensor(q)))
        x = tokens[0]
        assert coupling.accept == pytest.approx(min(1.0, q[x] / p[x]))
        assert coupling.overlap == pytest.approx(sum(map(min, p, q)))
        pairs[(*draft, draft[0] == x)] += 1
    for pair in product(range(5), repeat=2):
        a, b = pair
        for same, chance in ((True, min(p[a], q[a])), (False, max(q[a] - p[a], 0.0))):
            mean = n * chance * q[b]
            assert abs(pairs[(*pair, same)] - mean) <= 4.5 * mean**0.5, (pair, same)


SAMPLED, MANY = Sampling(max_new_tokens=12, temperature=1.0, seed=0), drawn(600)


@pytest.fixture(scope="module")
def sampled(reads: HFTarget, team: dict[str, Drafter], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Many sampled texts of one prompt, with a head's drafts."""
    texts, folder = [Prompt("p", "c", prompts()[0])] * MANY, tmp_path_factory.mktemp("sampled")
    return record_trace(reads, {GOOD: team[GOOD]}, texts, folder, SAMPLED, length=3)


@pytest.mark.parametrize("rule", ["", "&stop=confidence(0.15)"])
def test_sampled_drafts_of_a_head_are_in_distribution_those_of_live_rounds(
    rule: str, reads: HFTarget, team: dict[str, Drafter], sampled: Trace
) -> None:
    """Drafted and accepted tokens and rounds, also where a stop rule reads the drafts' signals."""
    n, name, head = MANY, f"static?length=3&drafter={GOOD}{rule}", {GOOD: team[GOOD]}
    made = method(name, [GOOD])
    loop = Loop(reads, head, made.policy, made.recorder, seed=11)
    live: dict[int, list[Round]] = defaultdict(list)
    for round in loop.run([prompts()[0]] * n, replace(SAMPLED, seed=None), batch=16):
        live[round.request].append(round)
    back = Replay(sampled, method(name, [GOOD]), COSTS)
    there = np.array([counts(rounds) for rounds in live.values()])
    here = np.array([counts(list(back.replay(ReplayState(one)))) for one in sampled])
    spread = np.sqrt(there.var(0) / n + here.var(0) / n)
    assert (np.abs(there.mean(0) - here.mean(0)) < 4 * spread).all(), (there.mean(0), here.mean(0))
    assert there[:, 2].mean() > 0.4, "nothing was accepted, so nothing was compared"


def test_a_sampled_trace_of_heads_replays_what_reads_drafts_and_grades(
    reads: HFTarget, team: dict[str, Drafter], tmp_path: Path
) -> None:
    trace = recorded(reads, team, tmp_path, temperature=1.0)
    for name in ("tapout-seq-ucb1?length=6", "metasd-ucb?length=6", "hedgespec?length=4", "auto?length=6"):
        back = Replay(trace, method(name, trace.drafters), COSTS)
        for one in trace:
            tokens = [token for r in back.replay(ReplayState(one)) for token in r.tokens]
            assert tokens == one.text[: one.committed].tolist()
    for one in trace:
        for name in (GOOD, MEDUSA):
            drafts, n = one.drafts[name], one.committed
            first = drafts.tokens[drafts.start[1 : n - 1, 0]]
            accept = drafts.accept[1 : n - 1]
            same = first == one.text[1 : n - 1]
            assert (same[accept == 1.0]).all() and not (same[accept == 0.0]).any()
            assert not drafts.accept[0] and not drafts.accept[n:].any()


def test_overlaps_of_models_that_sample_are_refused(reads: HFTarget, tmp_path: Path) -> None:
    models: dict[str, Drafter] = {"good": SimDrafter(distribution(0))}
    with pytest.raises(UserError, match=r"--overlap: drafter good samples.*--temperature 0"):
        recorded(reads, models, tmp_path / "a", temperature=1.0)


def test_what_a_trace_cannot_hold_is_refused(reads: HFTarget, tmp_path: Path) -> None:
    block = random_published(reads, "dflash")
    assert isinstance(block, DFlashDrafter)
    for name, other in {"early-exit": EarlyExitDrafter(reads), "dflash": block}.items():
        with pytest.raises(UserError, match=f"{name}: it uses the target's hidden states in a way which a"):
            recorded(reads, {name: other}, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_trace_of_heads_has_their_costs(reads: HFTarget, team: dict[str, Drafter]) -> None:
    """Grading among them, for which the target reads the prompt first; nothing of it stays open."""
    costs = measure_costs(reads, team, prompts(), Sampling(max_new_tokens=8), length=3)
    assert all(costs.of(name).grade > 0 for name in (GOOD, BAD, MEDUSA))
    assert all(costs.of(name).draft(2) > 0 for name in (GOOD, BAD, MEDUSA))
    assert not [one for one in reads.runner.request_ids if one >= 0]
