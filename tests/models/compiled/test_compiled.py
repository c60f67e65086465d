"""Compiled passes write the model's own text; whatever is wrong with a graph, passes stay eager."""

from __future__ import annotations

import copy
import json
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models import verdicts
from draftwise.models.compiled import heads, store, trial
from draftwise.models.compiled.blueprint import Blueprint, Unfit
from draftwise.models.native import kernels as panels
from draftwise.models.probe.readings import relative_error
from draftwise.models.runner import ModelRunner, PassInput, PassOutput
from draftwise.models.runner.cache import FIRST_SLOTS
from draftwise.models.runner.executors import inductor_cpu
from draftwise.models.runner.executors.compile import check_mode, compile_runner, describe_passes
from draftwise.models.runner.executors.exact import passes_agree
from draftwise.models.runner.executors.inductor_cpu import InductorCpu, plan_of
from draftwise.models.runner.masks import BANDED
from draftwise.models.weights import packed, timing
from draftwise.models.weights.layouts import PANELS, SHORT, PackedLinear
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with, written
from tests.drafters.neural.heads import random_eagle
from tests.effort import thorough
from tests.models.weights.test_packed import Bench
from tests.targets.test_hf import Oracle, prompts
from tests.tiny import KERNELS, VOCAB, lively, model, own_text, with_weights_of

TIMED = trial._timed
NAME = "gemma3-window"  # two kinds of masks, and a window shorter than the texts


def timed(**verdict: Any) -> Any:
    """A trial's timing with this verdict."""

    def steps(*given: Any) -> Iterator[None]:
        yield
        return verdict  # type: ignore[return-value]

    return steps


@pytest.fixture(scope="module")
def free() -> Iterator[pytest.MonkeyPatch]:
    """Any graph that is right counts as faster: models this small show nothing but noise."""
    patch = pytest.MonkeyPatch()
    patch.setattr(trial, "_timed", timed(pays=True, ratio=0.5))
    patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else every compilation tries the compiler's options first
    yield patch
    patch.undo()


@pytest.fixture(scope="module")
def plan() -> Blueprint:
    return plan_of(rows())


@pytest.fixture(scope="module")
def path(free: pytest.MonkeyPatch, plan: Blueprint) -> Path:
    """The graph, compiled once for all tests."""
    return store.make(plan)


def small(seed: int = 0) -> Any:
    """A model whose layers have all layouts in turn, but for those of weights that are short."""
    made, turn = model(NAME, seed=seed, dtype=torch.float32), count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SMALLEST", 0)
        used = packed.pack_layers(made, lambda layers, names: names[next(turn) % len(names)])
    assert set(timing.possible(torch.rand(1, 1 << 17))) <= used.keys()
    return made


def rows(seed: int = 0) -> ModelRunner:
    return HFTarget(small(seed)).runner


def compiled(seed: int = 0) -> HFTarget:
    """A target whose passes are compiled."""
    target = HFTarget(small(seed))
    compile_runner(target, "on")
    assert target.runner.executor.kind == "compiled", describe_passes({"target": target})
    return target


def test_greedy_text_is_the_models_own(path: Path) -> None:
    target = compiled()
    own = [own_text(target.runner.model, p, 40) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    for batch in (1, 3):
        for spoil in (0.1, 1.0):  # a good drafter, and one that is never right
            team: dict[str, Any] = {"oracle": Oracle(truth, spoil)}
            loop = loop_with(target, team, "static-6")
            assert written(loop, prompts(), 40, batch) == own


def test_single_tokens_are_passes_of_what_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another text open, parked in the row before; up to the window, where masks begin to matter."""
    target = compiled()
    kinds, try_run = list[str](), InductorCpu.try_run

    def counted(graph: InductorCpu, runner: ModelRunner, given: PassInput) -> PassOutput | None:
        if (output := try_run(graph, runner, given)) is not None:
            kinds.append(output.info.kind)
        return output

    monkeypatch.setattr(InductorCpu, "try_run", counted)
    loop = loop_with(target, {}, "none")
    waiting = loop.add(prompts()[0], Sampling(max_new_tokens=30))
    loop.step()
    for sampling in (Sampling(max_new_tokens=30), Sampling(max_new_tokens=30, temperature=1.0, seed=3)):
        alone = loop_with(HFTarget(target.runner.model), {}, "none")
        text = loop.add([5, 9, 11], sampling)
        while not text.done:
            loop.step([text])
        (own,) = group_tokens(alone.run([[5, 9, 11]], sampling))
        assert text.tokens[3:] == own and kinds
        kinds.clear()
    while not waiting.done:
        loop.step()
    assert waiting.tokens[len(prompts()[0]) :] == own_text(target.runner.model, prompts()[0], 30)


def test_a_compiled_drafter_changes_no_word(path: Path) -> None:
    target = HFTarget(small())
    drafter = LMDrafter(small(1), target.vocab_size)
    compile_runner(drafter, "on")
    assert drafter.runner.executor.kind == "compiled"  # the same structure: no second graph is compiled
    for sampling in (Sampling(max_new_tokens=30), Sampling(max_new_tokens=30, temperature=1.0, seed=5)):
        texts = []
        for executor in (drafter.runner.executor, drafter.runner.eager):
            drafter.runner.executor = executor
            loop = loop_with(target, {"lm": drafter}, "static-4")
            texts.append(group_tokens(loop.run([prompts()[2]], sampling)))
        assert texts[0] == texts[1]


def test_hidden_states_that_a_graph_does_not_return_need_an_eager_pass(path: Path) -> None:
    own = compiled().runner
    own.open(0)
    assert own.forward(PassInput(0, [[1, 2, 3]], 1)).info.kind == "compiled"
    own.compiler = None
    own.request_hidden_states((-1,))
    output = own.forward(PassInput(0, [[4, 5]], 2))
    assert output.info.kind == "eager" and output.hidden_states[-1].shape[:2] == (1, 2)


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("eagle", marks=thorough)])  # a minute each
def test_a_compiled_head_drafts_what_it_drafts_eagerly(
    free: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Chains and trees, alone and in a batch, of a head that shares layers with its target and of one that
    does not; it is a bad one, and the text stays the target's."""
    of = model("llama", dtype=torch.float32)
    monkeypatch.setattr(timing, "SMALLEST", 0)
    packed.pack_layers(of, lambda layers, names: names[-1])
    own = [own_text(of, prompt, 30) for prompt in prompts()]
    target = HFTarget(of)
    drafted: dict[bool, list[Any]] = {}
    for is_compiled in (False, True):
        head = random_eagle(of, eagle3=kind == "eagle3", drafted=19 * (kind == "eagle3"))
        used = packed.pack_layers(head, lambda layers, names: names[-1])
        assert used and type(head.shared[1]) is PackedLinear
        drafter = EagleDrafter(head, target)
        compile_runner(drafter, "on" if is_compiled else "off")
        states = describe_passes({"head": drafter})
        assert ("head" in states) == is_compiled
        assert all(one.startswith("compiled") for one in states.values())
        drafts, draft = list[Any](), drafter.draft

        def watched(jobs: Any, draft: Any = draft, drafts: list[Any] = drafts) -> Any:
            drafts.extend(some := draft(jobs))
            return some

        drafter.draft = watched  # type: ignore[method-assign]
        team: dict[str, Any] = {"eagle": drafter}
        for batch, width in ((1, 1), (3, 1), (3, 2)):
            drafter.branches = width
            assert written(loop_with(target, team, "static-4"), prompts(), 30, batch) == own
        drafted[is_compiled] = [(one.tokens, one.parents) for one in drafts]
    assert drafted[True] == drafted[False] and any(tokens for tokens, _ in drafted[True])


def test_a_short_pass_is_that_of_any_other(path: Path) -> None:
    """Of every width, with as many logits as a draft needs, after rewinds, beyond the first buffers, the
    window and the widest short pass, and in a cache made anew; in runners that share a graph."""
    one, other = compiled().runner, compiled().runner
    other.executor = copy.copy(one.executor)
    other.executor.try_run = lambda *given: None  # type: ignore[method-assign]
    widths = [2, 9, 3, BANDED[0], 17, 1, BANDED[0] + 1, 5, 12, 2, 7]
    for turn in range(2):
        for own in (one, other):
            own.open(0)
            own.open(1)
            own.forward(PassInput(0, [[1, 2, 3, 4], [5]], 1))
        for at, width in enumerate([*widths, *[1] * (FIRST_SLOTS + 8)]):
            tokens, row = [(7 * at + 5 * k) % VOCAB for k in range(width)], at % 2 if turn else 1
            for keep in {width, 1, max(1, width - 2)}:
                before = one.cached_lengths[row]
                logits = [own.forward(PassInput(row, [tokens], keep)).logits for own in (one, other)]
                assert torch.equal(*logits) and logits[0].shape == (1, keep, VOCAB)
                for own in (one, other):
                    own.truncate(row, before + width * (keep == 1))
        assert one.cached_lengths == other.cached_lengths and one.cache.plan.slots > FIRST_SLOTS
        for own in (one, other):
            own.close(0)
            own.close(1)


def test_a_graph_that_is_wrong_is_refused(path: Path, plan: Blueprint) -> None:
    other = InductorCpu(path, plan, small(9))
    with pytest.raises(Unfit, match="its logits are off by"):
        verdicts.finish(trial.try_out(rows(), other))


def test_a_graph_that_is_slower_is_refused(path: Path, free: pytest.MonkeyPatch) -> None:
    with free.context() as patch, pytest.warns(DraftwiseWarning, match=r"slower here: 1.30 times the time"):
        patch.setattr(trial, "_timed", timed(pays=False, ratio=1.3))
        target = HFTarget(small())
        compile_runner(target, "on")
    assert target.runner.executor is target.runner.eager


def test_what_was_just_compiled_is_timed_though_the_start_has_no_time_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_cpu, "find", lambda plan: None)
    monkeypatch.setattr(inductor_cpu, "make", lambda plan: path)
    monkeypatch.setattr(verdicts, "load", lambda *given: None)
    with verdicts.start("auto"):
        verdicts.trials().left = 0.0
        target = HFTarget(small())
        compile_runner(target, "on")
    assert describe_passes({"target": target}) == {"target": "compiled: 0.50 times the time of eager passes"}


def test_slow_passes_are_timed_for_long_enough_to_be_sure() -> None:
    """As with a model of 0.6B, where a round of all widths takes longer than the whole trial of a layout."""
    eager = {1: 0.073, 5: 0.083, 9: 0.101, 17: 0.113}
    bench = Bench(eager, {n: 0.87 * x for n, x in eager.items()}, [0.0, 0.03, 0.0, 0.0, 0.01])
    short, found = bench.measure(timing.BUDGET), bench.measure(trial.BUDGET)
    assert short.rounds == 1 and not short.pays
    assert found.pays and found.lasting


def test_a_damaged_file_is_not_loaded(path: Path, plan: Blueprint) -> None:
    assert store.find(plan) == path
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-100])
        assert store.find(plan) is None
        path.write_bytes(whole)
        os.chmod(path, 0o666)
        with pytest.raises(Unfit, match="may be written by others"):
            store.find(plan)
    finally:
        path.write_bytes(whole)
        os.chmod(path, 0o600)
    about = path.with_suffix(".json")
    kept = about.read_text()
    about.write_text("{}")
    assert store.find(plan) is None
    about.write_text(kept)


def test_nothing_is_left_of_a_failed_compilation(
    plan: Blueprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = Blueprint.of_json(json.dumps(json.loads(plan.as_json()) | {"model": ["transformers", "NoSuch"]}))
    with pytest.raises(Unfit, match="NoSuch"):
        store.make(broken)
    assert not [p for p in store.folder().iterdir() if p.suffix != ".lock"]


def test_no_home_folder_leaves_passes_eager(plan: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(Unfit, match="set XDG_CACHE_HOME"):
        store.find(plan)


def test_no_space_leaves_passes_eager(plan: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_made", full)
    monkeypatch.setattr(store, "find", lambda plan: None)
    with pytest.raises(Unfit, match="No space left"):
        store.make(plan)


def test_two_that_need_the_same_graph_compile_it_once(
    plan: Blueprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_by: list[int] = []

    def made(plan: Blueprint, part: Path, behind: bool) -> dict[str, Any]:
        compiled_by.append(threading.get_ident())
        part.write_bytes(b"a graph")
        return {"seconds": 1.0}

    monkeypatch.setattr(store, "_compiled", made)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: store.make(plan), range(4)))
    assert len(compiled_by) == 1 and paths == {store.find(plan)}
    assert {path.suffix for path in store.folder().iterdir()} == {".pt2", ".json", ".lock"}


def test_a_graph_is_tried_in_the_background_while_texts_wait_for_two_passes_at_most(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Passes are eager until the trial ends, and the text is the same all the while."""
    monkeypatch.delenv("DRAFTWISE_COMPILE")
    monkeypatch.setattr(inductor_cpu, "find", lambda plan: None)
    monkeypatch.setattr(inductor_cpu, "make", lambda plan, behind: path)
    monkeypatch.setattr(inductor_cpu, "PATIENCE", 0.0)
    monkeypatch.setattr(trial, "_timed", TIMED)
    monkeypatch.setattr(trial, "BUDGET", 0.0)
    monkeypatch.setattr(verdicts, "load", lambda *given: None)
    monkeypatch.setattr(timing.Timing, "pays", True)
    target, passes, forward = HFTarget(small()), list[bool](), ModelRunner.forward
    compile_runner(target, "auto")
    assert describe_passes({"target": target}) == {"target": "eager"}

    def counted(runner: ModelRunner, given: PassInput) -> PassOutput:
        output = forward(runner, given)
        passes.append(runner is target.runner)
        return output

    monkeypatch.setattr(ModelRunner, "forward", counted)
    loop = loop_with(target, {}, "none")
    request = loop.add(prompts()[3], Sampling(max_new_tokens=60))
    loop.step()
    loop.step()
    made: Any = target.runner.compiler
    while made._found is None:  # the other thread has only to load the graph
        pass
    while loop.open:
        loop.step()
    assert target.runner.executor.kind == "compiled" and made.state.startswith("compiled: ")
    waits = "".join("." if own else "x" for own in passes).split(".")
    assert max(map(len, waits)) == 2 and sum(map(len, waits)) > 30
    assert request.tokens[request.prompt_length :] == own_text(target.runner.model, prompts()[3], 60)


def test_a_failure_in_the_background_is_no_fault(free: pytest.MonkeyPatch) -> None:
    def fails(plan: Blueprint, *, behind: bool = False) -> Path:
        raise Unfit("no compiler" if behind else "it should go on behind")

    with free.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.delenv("DRAFTWISE_COMPILE")
        patch.setattr(inductor_cpu, "find", lambda plan: None)
        patch.setattr(inductor_cpu, "make", fails)
        patch.setattr(inductor_cpu, "PATIENCE", 0.0)
        target = HFTarget(small())
        compile_runner(target, "auto")
        loop = loop_with(target, {}, "none")
        assert written(loop, [prompts()[3]], 40, 1) == [own_text(target.runner.model, prompts()[3], 40)]
    assert describe_passes({"target": target}) == {"target": "eager: no compiler"}


def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="compile='fast': choose from auto, kept, off, on"):
        check_mode("fast")
    assert (
        check_mode("auto") == "off" and check_mode("on") == "on"
    )  # the tests turn it off by the environment
    monkeypatch.delenv("DRAFTWISE_COMPILE")
    assert check_mode("auto") == "auto"
    target = HFTarget(small())
    compile_runner(target, "off")
    assert target.runner.compiler is None


def test_a_model_that_stays_eager() -> None:
    target = HFTarget(model("deepseek-sparse"))
    with pytest.warns(DraftwiseWarning, match="more than keys and values"):
        compile_runner(target, "on")
    assert target.runner.executor is target.runner.eager


@thorough
def test_a_single_token_in_half_precision_is_computed_twice(free: pytest.MonkeyPatch) -> None:
    """The graph has one row of attention more than the pass has tokens, and its logits are those without."""
    own = HFTarget(model("gpt2", dtype=torch.bfloat16, layers=1)).runner  # no heads share a key
    graph = InductorCpu(store.make(plan_of(own)), plan_of(own), own.model)
    verdicts.finish(trial.try_out(own, graph))
    said = []
    for way in (None, graph):
        scratch = own.scratch(way)
        scratch.open(0)
        with torch.inference_mode():
            scratch.forward(PassInput(0, [list(range(3, 20))], 1))
            said.append([scratch.forward(PassInput(0, [[5] * width], 1)).logits[0, 0] for width in (1, 4)])
    for mine, compiled_ in zip(*said, strict=True):
        assert relative_error(compiled_, mine) <= trial.tolerance(torch.bfloat16)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((torch.float32, SHORT | {PANELS: torch.float32}), id="float32"),
        pytest.param((torch.bfloat16, {PANELS: torch.bfloat16}), id="bfloat16", marks=thorough),
    ],
)
def native(free: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[HFTarget, EagleDrafter]:
    """A compiled target with all layers and its attention by our kernels, and a head that reads its hidden
    states; two heads share each key."""
    dtype, formats = request.param
    if panels.linear_kernel(dtype) is None:
        pytest.skip("no C++ compiler here")
    made = with_weights_of(lively(LlamaConfig(**KERNELS)).to(dtype), *formats.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SMALLEST", 0)
        patch.setattr(timing, "decided", lambda *given: heads.OURS)
        packed.pack_layers(made, timing.alone)
        target = HFTarget(made)
        without = plan_of(target.runner)
        drafter = EagleDrafter(random_eagle(made), target)
        compile_runner(target, "on")
    plan = target.runner.executor.plan  # type: ignore[attr-defined]
    assert plan.own_attention and set(plan.packed.values()) == formats.keys()
    assert plan.outputs and plan.key != without.key, "what the head needs belongs to the graph's name"
    return target, drafter


def test_with_our_kernels_greedy_text_is_that_of_plain_decoding(
    native: tuple[HFTarget, EagleDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 the model's own; in bfloat16 ties may fall otherwise there, but not between our passes.

    The head drafts chains and trees beside compiled passes, alone and in a batch.
    """
    target, head = native
    kinds, forward = set[str](), target.runner.forward

    def counted(given: PassInput) -> PassOutput:
        output = forward(given)
        kinds.add(output.info.kind)
        return output

    monkeypatch.setattr(target.runner, "forward", counted)
    own = written(loop_with(target, {}, "none"), prompts(), 40, 1)
    if target.runner.dtype == torch.float32:
        assert own == [own_text(target.runner.model, p, 40) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    # A good drafter, one that is never right, and a head of random weights.
    for drafter in (Oracle(truth, 0.1), Oracle(truth, 1.0), head):
        for batch, head.branches in ((1, 1), (3, 2)):
            team: dict[str, Any] = {"drafter": drafter}
            loop = loop_with(target, team, "static-6")
            assert written(loop, prompts(), 40, batch) == own
    assert kinds == {"compiled"}


def test_with_our_kernels_a_draft_is_verified_with_the_very_logits_of_plain_decoding(
    native: tuple[HFTarget, EagleDrafter],
) -> None:
    """Bit for bit, whatever the width of the pass, after a rewind, and with another text in it."""
    text, before, runner = [(7 * at + 5) % VOCAB for at in range(70)], 30, native[0].runner
    said = {}
    for width in (1, 2, 5, 7, 13):
        scratch = runner.scratch(runner.executor)
        for key in (0, 1):
            scratch.open(key)
        with torch.inference_mode():
            scratch.forward(PassInput(0, [text[:before], text[5:20]], 1))
            rows = []
            while scratch.cached_lengths[0] < len(text) - 13:
                at = scratch.cached_lengths[0]
                more = text[at : at + width]
                scratch.forward(PassInput(0, [[*more, 3, 4]], 1))
                scratch.cached_lengths[0] = at
                logits = scratch.forward(PassInput(0, [more, [2]] if at % 2 else [more], len(more))).logits
                rows += list(logits[0, : len(more)])
        said[width] = torch.stack(rows[:27])
    assert all(torch.equal(logits, said[1]) for logits in said.values())
    assert passes_agree(runner), "exact=True leaves them as they are"


@pytest.mark.parametrize("wins", [True, False])
def test_attention_is_ours_where_that_is_faster(
    wins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The answer is saved; a model whose heads the kernel cannot compute asks no clock."""
    asked: list[int] = []

    def measure(theirs: timing.Pass, ours: timing.Pass, **_: Any) -> Iterator[None]:
        for width in timing.WIDTHS:
            theirs(width), ours(width)
            yield
        asked.append(1)
        return timing.Timing(8, 8 * wins, (0.5 if wins else 2.0,) * 4, steady=True)  # type: ignore[return-value]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(timing, "DECIDED", {})
    made = model("llama", dtype=torch.float32)
    made.config.num_attention_heads = 4
    layers = [(0, 2, 16, 2, 16), (1, 4, 32, 4, 16)]
    kernel = panels.linear_kernel(torch.float32) is not None
    assert heads.own_attention(made, layers) == (wins and kernel) and len(asked) == kernel
    timing.DECIDED.clear()
    assert heads.own_attention(made, layers) == (wins and kernel) and len(asked) == kernel, "it is kept"
    for odd in ([(0, 2, 8, 2, 16)], [(0, 3, 16, 3, 16)], [(0, 2, 16, 4, 16)], []):
        assert not heads.own_attention(made, odd)
    assert not heads.own_attention(model("llama", dtype=torch.float64), layers)
    assert len(asked) == kernel
    half = model("llama", dtype=torch.bfloat16)
    half.config.num_attention_heads = 4
    assert heads.own_attention(half, layers) == (wins and kernel) and len(asked) == 2 * kernel
