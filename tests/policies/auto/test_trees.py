"""Trees: when they are drafted, which nodes they have, what they show of chains, and that texts are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from draftwise.core.arms import Arm, Context, Decision, Stop
from draftwise.core.drafts import Draft, Job, Signals
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome, Window
from draftwise.core.passes import PassInfo
from draftwise.core.request import Request
from draftwise.core.roles import Graders, RoundRecord
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.trees import Tree
from draftwise.errors import UserError
from draftwise.models.runner.drafts import TreeLevel
from draftwise.policies.auto.chances import CAUGHT, LEAN, MEMORY, Calibration, Siblings
from draftwise.policies.auto.drafts import DEEPEST, WIDTH, Candidate
from draftwise.policies.auto.policy import KINDS, AutoPolicy
from draftwise.policies.auto.prices import BATCH_SIZES, ENOUGH, WAIT, size_class
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.auto import team
from draftwise.targets.hf import HFTarget
from tests.drafters.neural.heads import random_eagle, target, trained_eagle
from tests.policies.auto import script
from tests.policies.auto.script import Prices, always
from tests.targets.test_hf import prompts
from tests.tiny import own_text

HEAD = "eagle:head"
CATCHES = 0.6  # of the head's misses, how many another node catches


class Head(script.Model):
    """Drafts chains, or trees whose first nodes are the chain's; a step takes the same for both."""

    def drafts_trees(self) -> bool:
        return True

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        trees = [self._of(job) for job in jobs]
        self.clock.now += self.prices.start + self.prices.token * max(job.length for job in jobs)
        return trees

    def _of(self, job: Job) -> Draft:
        self._read(job.request)
        if job.width == 1:
            return self._draft(job)
        nodes, parents, above = list[int](), list[int](), -1
        for k in range(job.length):
            at = job.request.position + k
            true, (first, _) = self.texts[job.request.tokens[0]][at], self._guess(job.request, at)
            caught = Random(f"{job.request.tokens[0]} {at}").random() < CATCHES
            others = [true if j == 1 and caught else script.V - 1 - j for j in range(1, job.width)]
            right = [token == true for token in (first, *others)]
            nodes += [first, *others]
            parents += [above] * job.width
            above = len(nodes) - job.width + (right.index(True) if any(right) else 0)
        return Draft(tuple(nodes), tuple(parents))


class Beside(Head):
    """Drafts chains, and siblings beside their tokens for a wider arm."""

    def drafts_trees(self) -> bool:
        return False

    def drafts_siblings(self) -> bool:
        return True

    def _of(self, job: Job) -> Draft:
        chain, true, at = (
            super()._of(replace(job, width=1)),
            self.texts[job.request.tokens[0]],
            job.request.position,
        )
        others = [[script.V - 1 - j for j in range(1, job.width)] for _ in chain.tokens]
        for k, beside in enumerate(others[: job.width - 1]):
            caught = Random(f"{job.request.tokens[0]} {at + k}").random() < CATCHES
            beside[0] = true[at + k] if caught else beside[0]
        return Draft.with_siblings(chain.tokens, others if job.width > 1 else ())


@dataclass
class Stage(script.Stage):
    """A target that reads trees, and a head that drafts them."""

    kind: type[Head] = Head

    def _model(self, name: str, right: script.Right, texts: Sequence[Sequence[int]]) -> script.Model:
        return self.kind(texts, self._known(name, right), self.clock, self.own.get(name, self.prices))

    def _target(self, texts: Sequence[Sequence[int]]) -> script.Target:
        return Reader(texts, self.clock, self.prices, self.padded)


class Reader(script.Target):
    """Knows at which place of the text each node of a tree stands."""

    def can_read_trees(self) -> bool:
        return True

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Any]:
        super().verify(batch)
        return [Seen(self.texts[request.tokens[0]], request.position, draft) for request, draft in batch]


class Seen(script.Text):
    def __init__(self, text: Sequence[int], at: int, draft: Draft) -> None:
        super().__init__(text, at)
        self.depth = {-1: -1}
        for node, parent in enumerate(draft.parents):
            self.depth[node] = self.depth[parent] + 1

    def choice(self, node: int) -> int:
        return self.text[self.at + self.depth[node] + 1]


FREE = Prices(target=lambda tokens: 10e-3 + 1e-6 * tokens, start=0.2e-3, token=0.2e-3)
DEAR = Prices(target=lambda tokens: 10e-3 + 2e-3 * tokens, start=0.2e-3, token=0.2e-3)


def auto(*, trees: bool = True) -> Method:
    return method("auto" if trees else "auto?width=1", [HEAD])


def drafted_trees(rounds: Sequence[Round]) -> float:
    return sum(one.arm.width > 1 for one in rounds) / len(rounds)


@pytest.mark.parametrize("chance", [0.3, 0.6])
def test_where_nodes_are_free_trees_are_drafted_and_save_time(
    monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    stage = Stage(monkeypatch, {HEAD: always(chance)}, FREE)
    without = stage.seconds(auto(trees=False))
    _, loop, rounds = stage.run(auto())
    assert drafted_trees(rounds) > 0.8 and stage.clock.now < 0.8 * without
    written: dict[int, list[int]] = {}
    for one in rounds:
        written.setdefault(one.request, []).extend(one.tokens)
    assert [*written.values()] == [text[: stage.tokens] for text in stage._texts()], "not a word is changed"
    (found,) = cast(AutoPolicy, loop.policy).siblings
    assert found.caught / found.missed == pytest.approx(CATCHES, abs=0.06)


def test_where_nodes_are_dear_trees_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, {HEAD: always(0.6)}, DEAR)
    without, rounds = stage.seconds(auto(trees=False)), stage.run(auto())[2]
    assert drafted_trees(rounds) < 0.02 and stage.clock.now < 1.02 * without


def test_a_head_that_is_never_right_costs_as_little_with_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, {HEAD: always(0.0)}, FREE)
    monkeypatch.setattr(f"{__name__}.CATCHES", 0.0)
    assert stage.seconds(auto()) < 1.02 * stage.seconds("none")


@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
@pytest.mark.parametrize("kind", ["trees", "siblings"])
def test_a_batch_drafts_wide_where_nodes_are_free(
    monkeypatch: pytest.MonkeyPatch, kind: str, padded: bool
) -> None:
    """A head's trees, and the siblings of a drafter that has no trees: not a word is changed."""
    head = {"trees": Head, "siblings": Beside}[kind]
    stage = Stage(monkeypatch, {HEAD: always(0.5)}, FREE, kind=head, padded=padded)
    _, _, rounds = stage.run(auto(trees=False), batch=4)
    without = stage.clock.now
    _, loop, rounds = stage.run(auto(), batch=4)
    assert drafted_trees(rounds) > 0.8 and stage.clock.now < 0.95 * without
    written: dict[int, list[int]] = {}
    for one in rounds:
        written.setdefault(one.request, []).extend(one.tokens)
    texts = [written[request][: stage.tokens] for request in sorted(written)]
    assert texts == [text[: stage.tokens] for text in stage._texts()]
    policy = cast(AutoPolicy, loop.policy)
    assert bool(policy.draft_price(0, WIDTH).trial) == (kind == "siblings"), "they have the price of a chain"


@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_a_batch_drafts_chains_where_nodes_are_dear(monkeypatch: pytest.MonkeyPatch, padded: bool) -> None:
    prices = Prices(target=lambda tokens: 10e-3 + 0.5e-3 * tokens, start=0.2e-3, token=0.2e-3)
    stage = Stage(monkeypatch, {HEAD: always(0.6)}, prices, padded=padded)
    stage.run(auto(trees=False), batch=4)
    without, (_, _, rounds) = stage.clock.now, stage.run(auto(), batch=4)
    assert drafted_trees(rounds) < 0.05 and stage.clock.now < 1.02 * without


def test_passes_over_trees_that_run_in_another_way_have_their_own_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where trees alone are read eagerly, and slowly, chains keep their price, and trees are given up."""
    stage = Stage(monkeypatch, {HEAD: always(0.6)}, FREE)
    verify, kinds = Reader.verify, list[str]()

    def slow(self: Reader, batch: Sequence[tuple[Request, Draft]]) -> list[Any]:
        is_tree = any(not draft.is_chain for _, draft in batch)
        self.clock.now += 30e-3 if is_tree else 0.0
        kinds.append("eager" if is_tree else "graph:8")
        self.info.latest = PassInfo(kinds[-1])
        return verify(self, batch)

    without = stage.seconds(auto(trees=False))
    monkeypatch.setattr(Reader, "verify", slow)
    rounds = stage.run(auto())[2]
    assert drafted_trees(rounds) < 0.02 and stage.clock.now < 1.05 * without and "eager" in kinds


def test_which_drafters_have_trees() -> None:
    arms, drafters, _ = team(["ngram", "eagle:a", "eagle:b?width=2", "zoo:general", "mtp"], (1, 2, 8, 16))
    wide = {(arm.drafter, arm.length) for arm in arms if arm.width > 1}
    assert (
        wide == {(name, n) for name in ("eagle:a", "zoo:general", "mtp") for n in (1, 2, 8)} and DEEPEST == 8
    )
    assert Arm("eagle:a", 3, WIDTH).name == "eagle:a:3x4"
    assert not any(arm.width > 1 for arm in method("auto?width=1", ["eagle:a"]).policy.arms)
    with pytest.raises(UserError, match="auto\\?width=9: give 1 to 8 nodes"):
        method("auto?width=9", ["eagle:a"])
    policy = AutoPolicy(arms, drafters, (True, False, False, False, False))
    assert policy.wide == {1: 5, 3: 6, 4: 7} and len(policy.draft_prices) == 4 * 8
    assert not policy.trees and not policy.beside, "nothing is known yet"

    class Known:
        def grades_itself(self, name: str) -> bool:
            return name != "ngram"

        def drafts_trees(self, name: str) -> bool:
            return name in ("eagle:a", "ngram")

        def drafts_siblings(self, name: str) -> bool:
            return name in ("eagle:a", "zoo:general")

    AutoRecorder(policy)._meet(cast(Graders, Known()))
    assert policy.trees == {1} and policy.beside == {1, 3}


def taught(token: float = 0.0) -> AutoPolicy:
    """A head whose first tokens alone are right; one more token in the pass takes so many seconds."""
    policy = AutoPolicy(*team(["eagle:a"], (1, 2, 4)))
    policy.trees = frozenset({0})
    for tokens in (1, 2, 3, 5):
        policy.pass_prices[0].add(tokens, 10e-3 + token * (tokens - 1))
    for depth in (1, 1, 1, 2, 4):
        policy.draft_price(0).add(depth, 0, 0.1e-3 * depth, 1, 1)
    for _ in range(20):
        policy.learn(Feedback(0, Decision(0), windows=(Window(0, 0, (1.0, 0.0)),)))
    return policy


def test_a_node_must_pay_for_its_part_of_the_pass_and_a_depth_for_the_step_to_the_next() -> None:
    policy, tree = taught(token=0.5e-3), Candidate(0, 2, 1.0, 0.0, 1.0, width=WIDTH, is_tree=True)
    price = policy.draft_price(0, WIDTH)
    for depth in (1, 1, 1, 2, 4):
        price.add(depth, 0, 0.2e-3 * depth, 1, 1)
    price.width = 2.0
    assert (
        policy._stop(tree, 1, policy.passes(1), 100.0).threshold,
        policy._stop(tree, 1, policy.passes(1), 100.0).deeper,
    ) == (0.0, 0.0)
    policy.calibrations[0].seen = ENOUGH
    rule = policy._stop(tree, 1, policy.passes(1), 100.0)
    assert rule.rule == "gain" and rule.threshold == pytest.approx(100.0 * 0.5e-3)
    assert rule.deeper == pytest.approx(100.0 * price(1)[1] / policy.acceptance[0].mean)


def test_a_chain_with_siblings_stops_by_what_it_and_they_cost() -> None:
    """The drafter's part is that of a chain, whatever its trees take; the pass reads the siblings, too."""
    policy, best = taught(token=0.5e-3), Candidate(0, 2, 1.0, 0.0, 1.0, width=WIDTH)
    for depth in (1, 1, 1, 2, 4):
        policy.draft_price(0, WIDTH).add(depth, 0, 2e-3 * depth, 1, 1)
    policy.calibrations[0].seen = ENOUGH
    seconds = policy.draft_price(0)(1)[1] + WIDTH * 0.5e-3
    rule = policy._stop(best, 1, policy.passes(1), 50.0)
    assert (
        rule.threshold == pytest.approx(50.0 * seconds / policy.acceptance[0].mean, rel=0.01)
        and rule.deeper == 0.0
    )


def test_where_nodes_are_free_siblings_are_drafted_at_the_price_of_a_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, {HEAD: always(0.5)}, FREE, kind=Beside)
    without = stage.seconds(auto(trees=False))
    _, loop, rounds = stage.run(auto())
    assert drafted_trees(rounds) > 0.8 and stage.clock.now < 0.95 * without
    policy = cast(AutoPolicy, loop.policy)
    price, (found,) = policy.draft_price(0), policy.siblings
    assert price.width == 1.0
    assert policy.draft_price(0, WIDTH).trial, "no tree was drafted"
    assert 0.0 < found.caught / found.missed < CATCHES + 0.06
    written: dict[int, list[int]] = {}
    for one in rounds:
        written.setdefault(one.request, []).extend(one.tokens)
    assert [*written.values()] == [text[: stage.tokens] for text in stage._texts()], "not a word is changed"


def test_trees_that_look_too_expensive_are_tried_again_in_the_end() -> None:
    policy = taught()
    price = policy.draft_price(0, WIDTH)
    for depth in (1, 1, 4):
        price.add(depth, 0, 1.0, 1, 1)
    for _ in range(WAIT):
        assert not price.trial
        assert policy.arms[policy.choose(Context(), Random(0)).arm].width == 1
    assert price.trial


FOUR = [Context(request=k, batch_size=4) for k in range(4)]


def taught_in_batches(*, tree: float | None = 0.1e-3) -> AutoPolicy:
    """As `taught`, where passes of four requests are free, and a depth of trees takes so many seconds."""
    policy = taught()
    for tokens in (4, 8, 12, 20):
        policy.pass_prices[size_class(4)].add(tokens, 10e-3)
    for depth in (1, 1, 4) if tree else ():
        policy.draft_price(0, WIDTH).add(depth, 0, (tree or 0.0) * depth, 4, 4)
    return policy


def widths_of(policy: AutoPolicy) -> set[int]:
    policy.plan(FOUR)
    return {policy.arms[policy.choose(context, Random(0)).arm].width for context in FOUR}


def test_in_a_batch_trees_that_look_too_expensive_are_tried_again_in_the_end() -> None:
    policy = taught_in_batches(tree=1.0)
    for _ in range(WAIT):
        assert not policy.draft_price(0, WIDTH).trial
        assert widths_of(policy) == {1} and not policy.trial
    assert policy.draft_price(0, WIDTH).trial
    assert widths_of(policy) == {WIDTH} and policy.trial, "the guard does not count it"
    assert widths_of(taught_in_batches()) == {WIDTH}


def test_in_a_batch_trees_have_the_price_of_passes_over_trees_of_that_batch() -> None:
    policy, eager = taught_in_batches(), KINDS.index("other")
    policy.tree_kind = eager
    assert widths_of(policy) == {WIDTH}, "no such pass was seen"
    for tokens in (1, 5):
        policy.pass_prices[eager * len(BATCH_SIZES)].add(tokens, 10e-3)
    assert widths_of(policy) == {WIDTH}, "nor of this batch"
    for tokens in (4, 20):
        policy.pass_prices[eager * len(BATCH_SIZES) + size_class(4)].add(tokens, 40e-3)
    assert widths_of(policy) == {1}
    policy.draft_price(0, WIDTH).width = 2.0
    prices = policy.pass_prices[eager * len(BATCH_SIZES) + size_class(4)]
    for tokens in (8, 12, 20, 28) * 20:
        prices.add(tokens, 40e-3 + 1e-3 * (tokens - 4))
    policy.beside = policy.trees  # siblings of sampled texts alone
    chain, tree = (policy.values(4).seconds[policy.index[0, width, 2]] or 0.0 for width in (1, WIDTH))
    assert 30e-3 < tree - chain < 36e-3, "two depths of two nodes, and what it tells is what it decides by"


@pytest.mark.parametrize("padded", [False, True])
def test_in_a_batch_a_depth_pays_for_its_part_of_the_call_and_a_node_lengthens_no_padded_row(
    padded: bool,
) -> None:
    policy, tree = taught_in_batches(), Candidate(0, 2, 1.0, 0.0, 1.0, width=WIDTH, is_tree=True)
    policy.padded, policy.calibrations[0].seen = padded, ENOUGH
    price = policy.draft_price(0, WIDTH)
    price.width = 2.0
    for tokens in (4, 8, 12, 20) * 40:
        policy.pass_prices[size_class(4)].add(tokens, 10e-3 + 0.5e-3 * tokens)
    rule = policy._stop(tree, 4, policy.passes(4), 100.0)
    assert rule.deeper == pytest.approx(100.0 * price(4)[1] / 4 / policy.acceptance[0].mean)
    assert rule.threshold == (0.0 if padded else pytest.approx(100.0 * 0.5e-3, rel=0.1))


def test_the_first_trees_of_a_head_are_trials_and_no_chain_learns_from_their_signals() -> None:
    policy = taught()
    decision = policy.choose(Context(), Random(0))
    assert policy.arms[decision.arm] == Arm("eagle:a", 1, WIDTH) and policy.trial
    text = policy.texts[0]
    text.samples = True
    assert policy.arms[policy.choose(Context(), Random(0)).arm].width == 1, "its nodes are not sampled"
    policy.beside = frozenset({0})
    decision = policy.choose(Context(), Random(0))
    played = policy.arms[decision.arm].width, policy.trial
    assert played == (WIDTH, False), "siblings have the price of a chain"
    signals = tuple(Signals(0.0, 0.0, 0.0, 0.5) for _ in range(4))
    policy.learn(Feedback(0, decision, (Outcome(decision.arm, 1, 4, signals=signals),)))
    assert policy.calibrations[0].seen == 0.0, "its siblings are no later tokens"


def test_what_siblings_catch_makes_of_a_chain() -> None:
    lean, share = LEAN[2], CAUGHT
    found = Siblings()
    assert found.survival([0.5, 0.25]) == pytest.approx([0.5 + 0.5 * share, (0.5 + 0.5 * share) ** 2])
    for caught in (True, True, False):
        found.learn(caught=caught)
    share = (found.caught + lean * share) / (found.missed + lean)
    assert 0.3 < share < 2 / 3 and found.survival([1.0, 0.4]) == pytest.approx([1.0, 0.4 + 0.6 * share])
    assert found.survival([]) == []
    assert found.beside([0.5, 0.4]) == pytest.approx([0.5 + share * 0.5, 0.4 + share * 0.1]), (
        "nothing comes after"
    )
    for _ in range(20):
        found.learn(caught=True)
    before = found.caught / found.missed
    found.restart()
    assert found.missed == lean and found.caught / found.missed == pytest.approx(before)


def record(draft: Draft, path: Sequence[int], tokens: Sequence[int]) -> RoundRecord:
    outcome = Outcome(0, len(path), len(draft.tokens), signals=draft.signals)
    nodes = (-1, *path)[: len(tokens)]
    return cast(RoundRecord, SimpleNamespace(draft=draft, tokens=tokens, nodes=nodes, outcome=outcome))


def test_a_tree_shows_what_its_most_likely_chain_would_have_gained() -> None:
    """Root: 5, 6, 7; after 6: 8, 9. The text is 6, 9, 3: the chain misses at once, siblings catch twice."""
    signals = tuple(Signals(0.0, 0.0, 0.0, p) for p in (0.5, 0.3, 0.1, 0.6, 0.3))
    draft = Draft((5, 6, 7, 8, 9), (-1, -1, -1, 1, 1), signals=signals)
    policy = AutoPolicy(*team(["eagle:a"], (2,)))
    recorder = AutoRecorder(policy)
    assert recorder._first_branch(0, record(draft, (1, 4), (6, 9, 3))) == (0.0,)
    assert policy.siblings[0].missed == policy.siblings[0].caught == 1.0 + MEMORY
    assert policy.calibrations[0].seen == 5.0, "every child of an accepted node was tested"
    assert recorder._first_branch(0, record(draft, (0,), (5, 1))) == (1.0,), "no node was drafted after 5"
    assert recorder._first_branch(0, record(draft, (), (1,))) == (0.0,)
    assert policy.siblings[0].caught / policy.siblings[0].missed < 0.67
    assert recorder._first_branch(0, record(draft, (1, 3), (6,))) == (0.0,), "the text ended there"


def grown(threshold: float, deeper: float, *, length: int = 3) -> Tree:
    """A tree over four tokens of chances 0.6, 0.3, 0.08 and 0.02 everywhere."""
    request = Request(0, [1], 1, Sampling(), Random(0), Random(0))
    job = Job(request, length, (Stop("gain", threshold, Calibration(), deeper=deeper),), 4)
    tree, row = Tree(job, 8), torch.tensor([log(p) for p in (0.6, 0.3, 0.08, 0.02)])
    while not tree.done:
        tree.grow(row.expand(len(tree.frontier), -1))
    return tree


def test_nodes_are_drafted_as_far_as_they_are_worth_their_price() -> None:
    paths = {tuple(tree.path(n)) for tree in [grown(0.1, 0.0)] for n in range(len(tree.tokens))}
    chance = {0: 0.6, 1: 0.3, 2: 0.08, 3: 0.02}
    wanted = {p for k in (1, 2, 3) for p in product_paths(k) if prod(chance[t] for t in p) >= 0.1}
    assert paths == wanted and (0, 0, 0) in paths and (1, 1) not in paths
    for draft in (grown(0.1, 0.0).draft(), grown(0.0, 0.0).draft()):  # of the latter not all nodes are kept
        assert [round(s.chosen, 2) for s in draft.signals] == [chance[t] for t in draft.tokens]


def test_what_is_left_out_of_the_nodes_read_on_the_device_does_not_move_the_others() -> None:
    """Of paths (1, 3) and (2, 5) the device reads the likelier one first, which is calibrated to be worse."""
    request = Request(0, [1], 1, Sampling(), Random(0), Random(0))
    tree = Tree(Job(request, 3, (Stop("gain", 0.17, Calibration(slope=0.5)),), 4), 2)
    tree.add_level(TreeLevel([[1, 2]], [[log(0.9), log(0.3)]], [0, 1]))
    tree.add_level(TreeLevel([[3, 4], [5, 6]], [[log(0.1), log(0.01)], [log(0.35), log(0.01)]], [2, 0]))
    tree.add_level(TreeLevel([[7, 9], [8, 9]], [[log(0.99), log(0.01)], [log(0.99), log(0.01)]], [0, 2]))
    assert [tree.path(node) for node in range(len(tree.tokens))] == [[1], [2], [1, 3], [1, 3, 8]]


def product_paths(k: int) -> list[tuple[int, ...]]:
    return [()] if not k else [(*path, t) for path in product_paths(k - 1) for t in range(4)]


def prod(numbers: Any) -> float:
    whole = 1.0
    for number in numbers:
        whole *= number
    return whole


def test_the_best_node_is_drafted_whatever_it_costs_and_a_depth_must_pay_for_the_next() -> None:
    assert grown(0.95, 0.0).draft().tokens == (0,)
    assert [
        max(map(len, map(tree.path, range(len(tree.tokens)))))
        for tree in (grown(0.1, 0.85), grown(0.1, 0.95))
    ] == [
        2,
        1,
    ]
    assert len(grown(0.0, 0.0).draft().tokens) == 12, "at no price as many as allowed"


class Forced(AutoPolicy):
    """Drafts trees only, with the stop rule that `auto` has for them."""

    sampled: set[tuple[bool, bool]]  # whether a text has tokens, and is known to be sampled

    def choose(self, context: Context, rng: Random) -> Decision:
        decision = super().choose(context, rng)
        self.sampled.add((context.position > 0, self.texts[context.request].samples))
        if 0 in self.trees and HEAD not in context.unavailable:
            rule = Stop("gain", 0.05 * (context.position % 4), self.calibrations[0], deeper=0.1)
            decision = replace(decision, arm=self.index[0, WIDTH, 1 + context.position % 4], stops=(rule,))
        return decision


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("good", [True, False])
def test_texts_are_the_targets_own(good: bool, temperature: float) -> None:
    """A trained head and one of random weights; a drawn text is finished, and its law is another test's."""
    made = target()
    head = trained_eagle(made, eagle3=True) if good else random_eagle(made, eagle3=True)
    reads = HFTarget(made, chunk=8)
    policy = Forced(*team([HEAD], (1, 2, 3, 4)))
    policy.sampled = set()
    loop = Loop(reads, {HEAD: EagleDrafter(head, reads)}, policy, AutoRecorder(policy))
    texts, kinds = dict[int, list[int]](), Counter[bool]()
    for one in loop.run(prompts(), Sampling(max_new_tokens=40, temperature=temperature)):
        texts.setdefault(one.request, []).extend(one.tokens)
        assert not one.fault
        kinds[one.drafted > 0] += 1
    assert policy.sampled == {(False, False), (True, temperature > 0.0)}
    assert policy.trees and kinds[True] > kinds[False]
    assert all(len(text) == 40 for text in texts.values()) and policy.siblings[0].missed > 0.0
    if not temperature:
        assert [texts[i] for i in sorted(texts)] == [own_text(made, p, 40) for p in prompts()]
