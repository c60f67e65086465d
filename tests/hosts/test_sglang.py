"""SGLang's slot for draft lengths: in a world of counted seconds, and driven by SGLang's own controller."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from draftwise.core.outcomes import Feedback
from draftwise.errors import UserError
from draftwise.hosts.sglang import LengthPolicy, register, replace_policy
from draftwise.policies.bandit import BanditPolicy

LENGTHS = {1: (0, 1, 3, 5, 7)}
INITIAL = 3
RUNTIME = "sglang.srt.speculative.adaptive_runtime_state"


@dataclass
class World:
    """An engine whose steps take `cost(length, requests)` seconds; every drafted token is right by `chance`.

    With overlapped scheduling a result comes when the next step has been launched. `steps` are the lengths
    and batch sizes so far.
    """

    cost: Callable[[int, int], float]
    chance: float
    overlaps: bool = True
    named: bool = False
    now: float = 0.0
    rng: Random = field(default_factory=lambda: Random(1))
    steps: list[tuple[int, int]] = field(default_factory=list)
    running: list[tuple[int, int, float]] = field(default_factory=list)

    def step(self, policy: Any, requests: int, more: float = 0.0) -> int:
        """One step, which `more` seconds of something else precede."""
        length = policy.get_steps_for_batch(requests)
        self.steps.append((length, requests))
        self.running.append((length, requests, more))
        if len(self.running) > self.overlaps:
            length, requests, more = self.running.pop(0)
            right = [self._right(length) for _ in range(requests)]
            self.now += self.cost(length, requests) + more
            told = {"num_steps": length} if self.named else {}
            assert policy.on_verify_complete(right, requests, **told) is None
        return self.steps[-1][0]

    def run(self, policy: Any, requests: int, steps: int) -> Counter[int]:
        """So many steps; the lengths of the last half."""
        lengths = [self.step(policy, requests) for _ in range(steps)]
        return Counter(lengths[steps // 2 :])

    def best(self, requests: int, lengths: Sequence[int] = LENGTHS[1]) -> int:
        """The length of the most expected tokens per second (Leviathan et al. 2023)."""
        p = self.chance
        return max(lengths, key=lambda n: (1 - p ** (n + 1)) / (1 - p) / self.cost(n, requests))

    def _right(self, length: int) -> int:
        return next((k for k in range(length) if self.rng.random() >= self.chance), length)


def policy_in(world: World, lengths: Mapping[int, Sequence[int]] = LENGTHS, **options: Any) -> LengthPolicy:
    return LengthPolicy(lengths, INITIAL, clock=lambda: world.now, **options)


def linear(price: float) -> Callable[[int, int], float]:
    return lambda length, requests: 1.0 + price * length


def loaded(length: int, requests: int) -> float:
    """A pass of more than 16 tokens takes longer in proportion."""
    return max(1.0, requests * (length + 1) / 16) + 0.05 * length


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("policy", ["auto", "ucbspec?strength=0.1"])
@pytest.mark.parametrize(
    ("price", "chance", "length"), [(0.02, 0.9, 7), (0.3, 0.5, 1), (0.5, 0.2, 0), (2.0, 0.6, 0)]
)
def test_the_length_of_the_most_tokens_per_second_is_played(
    policy: str, price: float, chance: float, length: int, overlaps: bool
) -> None:
    world = World(linear(price), chance, overlaps, named=overlaps)
    assert world.best(8) == length
    late = world.run(policy_in(world, policy=policy), 8, 1_200)
    assert late[length] > 0.9 * late.total()


def test_a_batch_that_grows_drafts_less_and_one_that_shrinks_as_before() -> None:
    world = World(loaded, 0.7)
    policy = policy_in(world)
    lengths = [world.run(policy, n, 1_000).most_common(1)[0][0] for n in (2, 24, 2)]
    assert lengths == [world.best(2), world.best(24), world.best(2)] == [5, 0, 5]


def test_a_drafter_that_becomes_good_is_tried_again() -> None:
    world = World(linear(0.3), 0.05)
    policy = policy_in(world)
    assert world.run(policy, 16, 1_500)[0] > 720
    world.chance = 0.8
    assert world.run(policy, 16, 1_500)[0] < 40


def test_prefills_and_switches_are_not_priced() -> None:
    """Every fourth step follows a prefill, and every switch takes as long as ten steps."""
    world = World(linear(0.02), 0.9)
    policy = policy_in(world, policy="ucbspec?strength=0.1")
    priced: list[float] = []
    learn = policy._learn

    def spied(step: Any, correct: Any, seconds: float) -> None:
        if step.is_timed and step.decision is not None:
            priced.append(seconds - world.cost(step.steps, 4))
        learn(step, correct, seconds)

    policy._learn = spied  # type: ignore[method-assign]
    before = INITIAL
    for at in range(1_200):
        if at % 4 == 0:
            policy.prefill()
        length = world.step(policy, 4, 50.0 * (at % 4 == 0))
        if length != before:
            world.running[-1] = (*world.running[-1][:2], world.running[-1][2] + 10.0)
        before = length
    assert len(priced) > 500 and max(map(abs, priced)) < 1e-6
    assert Counter(n for n, _ in world.steps[600:]).most_common(1)[0][0] == 7


def test_each_batch_size_of_the_file_has_its_own_lengths_and_policy() -> None:
    world = World(linear(0.02), 0.9)
    policy = policy_in(world, {1: [1, 7], 8: [0, 1, 3], 64: [0]})
    assert policy.candidate_steps == [0, 1, 3, 7]
    assert policy.cuda_graph_bs_for_step(3) is None
    policy.set_cuda_graph_bs([1, 4, 8, 16, 64])
    sizes = {n: policy.cuda_graph_bs_for_step(n) for n in policy.candidate_steps}
    assert sizes == {0: [8, 16, 64], 1: [1, 4, 8, 16], 3: [8, 16], 7: [1, 4]}
    for requests, length in ((2, 7), (5, 3), (16, 3), (100, 0), (2, 7)):  # 5 are padded to 8
        assert world.run(policy, requests, 300)[length] > 130
    assert not policy._is_faulty


@pytest.mark.parametrize("fault", ["choose", "an arm that is not there", "learn"])
def test_a_broken_policy_costs_no_text(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(linear(0.1), 0.5)
    policy = policy_in(world, policy="ucb1")

    def broken(self: Any, *arguments: Any) -> Any:
        if fault.startswith("an arm"):
            return SimpleNamespace(arm=99)
        raise RuntimeError("no luck")

    monkeypatch.setattr(BanditPolicy, "learn" if fault == "learn" else "choose", broken)
    with caplog.at_level(logging.WARNING):
        lengths = world.run(policy, 3, 50)
    assert set(lengths) <= set(LENGTHS[1])
    assert fault == "learn" or set(lengths) == {INITIAL}
    assert len(caplog.records) == 1 and "policy: " in caplog.text


def test_a_result_of_another_step_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(linear(0.1), 0.5)
    policy = policy_in(world, policy="static-3")
    told: list[Feedback] = []
    monkeypatch.setattr(BanditPolicy, "learn", lambda self, feedback: told.append(feedback))
    results: list[tuple[list[int], int, dict[str, Any]]] = [
        ([1, 2], 2, {}),
        ([1, 4], 2, {}),
        ([1], 1, {}),
        ([1, 2], 2, {"num_steps": 5}),
        ([], 0, {}),
        ([0, 3], 2, {"num_steps": 3, "verify_ms": 1.0}),
    ]
    for right, requests, more in results:
        assert policy.get_steps_for_batch(2) == 3
        policy.on_verify_complete(right, requests, **more)
    policy.on_verify_complete([1, 1], 2)  # of no step at all
    assert [[one.accepted for one in known.outcomes] for known in told] == [
        [1],
        [2],
        [],
        [],
        [],
        [],
        [0],
        [3],
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "svip"},
        {"policy": "hedgespec?arms=lengths"},
        {"policy": "static-4"},
        {"policy": "ucb1?arms=lengths&lengths=1,2"},
        {"policy": "nothing"},
        {"policy": 5},
        {"lengths": "1,2"},
        {"seed": "1"},
        {"state": "no/such/folder/"},
    ],
)
def test_what_cannot_be_obeyed_is_refused_in_one_line(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        replace_policy(None, worker(tmp_path, options), None)
    assert "\n" not in str(error.value) and str(next(iter(options.values()))).strip("/") in str(error.value)


class Ranks:
    """A group of two ranks that are called in turn: the first one's words reach the other."""

    world_size = 2

    def __init__(self, rank: int, words: list[int]) -> None:
        self.rank_in_group, self.words = rank, words

    def broadcast_object(self, word: int, src: int) -> int:
        if self.rank_in_group == src:
            self.words.append(word)
            return word
        return self.words.pop(0)


def test_all_ranks_play_the_length_of_the_first_whatever_they_measure() -> None:
    words: list[int] = []
    first, second = World(linear(0.02), 0.9), World(linear(3.0), 0.9)
    ranks = [
        policy_in(world, group=Ranks(rank, words), policy="ucb1")
        for rank, world in enumerate((first, second))
    ]
    for _ in range(400):
        assert len({world.step(rank, 4) for world, rank in zip((first, second), ranks, strict=True)}) == 1
    assert Counter(n for n, _ in first.steps[200:]).most_common(1)[0][0] == 7


def test_what_was_learned_is_kept_in_a_file_per_batch_size(tmp_path: Path) -> None:
    world, path = World(linear(0.02), 0.9), tmp_path / "state.json"
    policy = policy_in(world, {1: (0, 7), 8: (0, 3)}, state=str(path), target="target")
    world.run(policy, 2, 200)
    for saver in policy.savers:
        saver.wait()
    assert (tmp_path / "state.1.json").exists() and (tmp_path / "state.8.json").exists()
    policy.save()
    lengths = []
    for options in ({"state": str(path), "target": "target"}, {}):
        world = World(linear(0.02), 0.9)
        world.run(policy_in(world, {1: (0, 7), 8: (0, 3)}, **options), 2, 4)
        lengths.append([length for length, _ in world.steps])
    assert lengths[0] == [7] * 4 != lengths[1]


# -- SGLang's own parts ----------------------------------------------------------------------------------


def worker(folder: Path, options: Any = None, *, steps: Any = (0, 1, 3, 5, 7)) -> Any:
    """A worker as the controller needs it, which notes its switches."""
    path, tiers = folder / "adaptive.json", {"1": {"candidate_steps": list(steps)}}
    path.write_text(json.dumps(tiers if options is None else {"draftwise": options, **tiers}))
    arguments = SimpleNamespace(
        speculative_adaptive_config=str(path),
        model_path="target",
        speculative_draft_model_path=None,
        speculative_algorithm="EAGLE3",
        tp_size=1,
    )
    return Worker(arguments)


class Worker:
    def __init__(self, arguments: Any) -> None:
        self.server_args, self.speculative_num_steps = arguments, INITIAL
        self.built: list[tuple[int, int, Any]] = []
        self.switches: list[int] = []

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: Any = None
    ) -> Any:
        self.built.append((speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs))
        return SimpleNamespace(speculative_num_steps=speculative_num_steps)

    def apply_runtime_state(self, state: Any) -> None:
        self.switches.append(state.speculative_num_steps)
        self.speculative_num_steps = state.speculative_num_steps

    def forward_batch_generation(self, batch: Any) -> str:
        return "text"


def test_the_entry_point_is_named_in_the_project() -> None:
    lines = (Path(__file__).parents[2] / "pyproject.toml").read_text().splitlines()
    at = lines.index('[project.entry-points."sglang.srt.plugins"]')
    assert lines[at + 1] == f'draftwise = "{register.__module__}:{register.__name__}"'


def test_the_released_controller_runs_our_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip(RUNTIME)
    params = pytest.importorskip("sglang.srt.speculative.adaptive_spec_params")
    hooks = pytest.importorskip("sglang.srt.plugins.hook_registry").HookRegistry
    monkeypatch.setattr(runtime.AdaptiveController, "__init__", runtime.AdaptiveController.__init__)
    hooks.reset()
    register()
    hooks.apply_hooks()
    hooks.reset()

    def controller(of: Worker) -> Any:
        own = params.AdaptiveSpeculativeParams(INITIAL, of.server_args.speculative_adaptive_config)
        made = runtime.AdaptiveController(of, own)
        made.register(SimpleNamespace(speculative_num_steps=INITIAL))
        made.init_states([1, 2, 4])
        return made

    theirs = controller(worker(tmp_path))
    assert type(theirs.params) is params.AdaptiveSpeculativeParams  # without a section nothing changes
    engine = worker(tmp_path, {"policy": "auto", "seed": 3})
    ours = controller(engine)
    assert isinstance(ours.params, LengthPolicy)
    assert engine.built == [(n, n + 1, [1, 2, 4]) for n in (0, 1, 5, 7)]
    world = World(linear(0.02), 0.9)
    monkeypatch.setattr(ours.params, "clock", lambda: world.now)
    slot = SimpleNamespace(on_verify_complete=ours.on_verify_complete)

    def activate(requests: int) -> int:
        ours.activate_step_by_batch(requests)
        return int(engine.speculative_num_steps)

    slot.get_steps_for_batch = activate
    assert world.run(slot, 3, 600)[7] > 270 and {0, 1, 7} <= set(engine.switches)
    world.cost, mark = linear(3.0), len(engine.switches)
    assert world.run(slot, 3, 1_000)[0] > 450 and 0 in engine.switches[mark:]
    prefill = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: True))
    assert engine.forward_batch_generation(prefill) == "text"
    assert ours.params._has_prefilled


def test_sglang_finds_the_plugin() -> None:
    plugins = pytest.importorskip("sglang.srt.plugins")
    if not any(one.name == "draftwise" for one in entry_points(group=plugins.GENERAL_PLUGINS_GROUP)):
        pytest.skip("this checkout is not installed beside SGLang")
    loaded, _ = plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP)["draftwise"]
    assert loaded is register
