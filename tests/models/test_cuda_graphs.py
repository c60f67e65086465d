"""Passes and drafts as CUDA graphs, recorded on a CPU: the logits, drafts and texts of eager passes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Stop
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.compiled.blueprint import Unfit
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.drafts import DraftShape
from draftwise.models.runner.executors import cuda_graphs
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with, written
from tests.recording import call, recorder
from tests.tiny import VOCAB, model, own_text

MODELS = ("llama", "gpt2", "gpt-neox", "qwen3-window", "gemma3-window")
SETTINGS: tuple[dict[str, Any], ...] = (
    *({}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}),
    *({"temperature": 1.3, "top_p": 0.8}, {"temperature": 1.0, "min_p": 0.1}),
)
RULES = (
    Stop("never", 0.0),
    Stop("max-confidence", 0.6),
    Stop("confidence", 0.4),
    Stop("svip-difference", 0.1),
)


@pytest.fixture(autouse=True)
def short_classes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few slots, so that texts outgrow a class, and the buffers."""
    monkeypatch.setattr(cuda_graphs, "FIRST_SLOTS", 16)
    yield


def use_graphs(runner: ModelRunner, *, recorded: bool = True) -> CudaGraphs:
    graphs = CudaGraphs(runner, capture=recorder() if recorded else call, buffers=(2, 16))
    runner.use(graphs)
    return graphs


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_are_those_of_eager_passes(name: str) -> None:
    """For chains and trees, in rows of several lengths, also when a text outgrows the buffers."""
    made, rng = model(name), Random(1)
    eager, graphs = ModelRunner(made), ModelRunner(made)
    for runner in (eager, graphs):
        runner.request_hidden_states((1, -1))
        for key in range(3):
            runner.open(key)
    executor = use_graphs(graphs, recorded=name == "llama")
    for _ in range(9):
        count = rng.choice([1, 2, 3])
        texts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))] for _ in range(count)]
        trees = {
            row: [rng.randrange(-1, at) for at in range(len(text) - 1)] for row, text in enumerate(texts)
        }
        parents = {row: tree for row, tree in trees.items() if tree and rng.random() < 0.4}
        given = PassInput(0, texts, max(map(len, texts)), parents=parents or None)
        with torch.inference_mode():
            ours, theirs = graphs.forward(given), eager.forward(given)
        assert ours.info.kind == "graph"
        for row, text in enumerate(texts):
            n = len(text)
            torch.testing.assert_close(ours.logits[row, :n], theirs.logits[row, :n])
            for layer, states in theirs.hidden_states.items():
                torch.testing.assert_close(ours.hidden_states[layer][row, :n], states[row, :n])
            back = n - 1 if row in parents else rng.randint(0, min(1, n))
            for runner in (eager, graphs):
                runner.cached_lengths[row] -= back
    assert graphs.cache.plan.slots > 16, "a text outgrows the first buffers"
    assert executor.captures > len(executor.graphs), "whose graphs are captured again"


def test_rows_that_pad_a_pass_keep_what_they_hold() -> None:
    made = model("llama")
    eager, graphs = ModelRunner(made), ModelRunner(made)
    use_graphs(graphs)
    for runner in (eager, graphs):
        for key in range(4):
            runner.open(key)
        runner.forward(PassInput(0, [[3, 4, 5]] * 4, 1))
    for given in (PassInput(0, [[6]] * 3, 1), PassInput(0, [[7, 8]] * 4, 2)):
        ours, theirs = graphs.forward(given).logits, eager.forward(given).logits
        torch.testing.assert_close(ours, theirs)


def test_logits_stay_what_they_are_after_the_next_pass() -> None:
    runner = ModelRunner(model("llama"))
    use_graphs(runner)
    runner.open(0)
    logits = runner.forward(PassInput(0, [[3]], 1)).logits
    before = logits.clone()
    runner.forward(PassInput(0, [[4]], 1))
    torch.testing.assert_close(logits, before)


def test_buffers_stay_where_they_are_while_texts_come_and_go() -> None:
    runner = ModelRunner(model("llama"))
    executor = use_graphs(runner)
    places = set[int]()
    for key in range(3):
        runner.open(key)
        runner.forward(PassInput(0, [[3, 4, 5]], 1))
        places.add(runner.cache.layer(0).keys.data_ptr())
        runner.close(key)
    assert len(places) == 1
    assert executor.captures == 1


def test_graphs_that_are_prepared_beside_an_open_text_leave_it_as_it_is() -> None:
    """A drafter may ask for hidden states in the middle of a text, and graphs are captured again."""
    made = model("llama")
    eager, graphs = ModelRunner(made), ModelRunner(made)
    for runner in (eager, graphs):
        runner.open(0)
        runner.forward(PassInput(0, [[3, 4, 5, 6, 7]], 1))
    use_graphs(graphs, recorded=False).prepare(graphs)
    ours, theirs = graphs.forward(PassInput(0, [[8]], 1)).logits, eager.forward(PassInput(0, [[8]], 1)).logits
    torch.testing.assert_close(ours, theirs)


def test_after_a_capture_that_fails_other_passes_are_eager() -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("out of memory")

    made = model("llama")
    eager, graphs = ModelRunner(made), ModelRunner(made)
    executor = use_graphs(graphs, recorded=False)
    for runner in (eager, graphs):
        runner.open(0)
        runner.forward(PassInput(0, [[3, 4]], 1))
    executor.capture = fail
    for given, kind in ((PassInput(0, [[5]], 1), "eager"), (PassInput(0, [[6, 7]], 2), "graph")):
        ours, theirs = graphs.forward(given), eager.forward(given)
        torch.testing.assert_close(ours.logits, theirs.logits)
        assert ours.info.kind == kind


def requests(seed: int) -> list[Request]:
    rng = Random(seed)
    made = []
    for at in range(4):
        text = [rng.randrange(2, VOCAB) for _ in range(rng.randint(2, 9))]
        sampling = Sampling(max_new_tokens=200, **SETTINGS[(at + seed) % len(SETTINGS)])
        made.append(Request(at, text, len(text), sampling, Random(at), Random(at)))
    return made


def drafted(drafter: LMDrafter, lengths: list[int], rounds: int) -> list[tuple[Any, ...]]:
    """What some requests are drafted over several rounds, and where their generators are afterwards."""
    rng, texts = Random(0), requests(0)
    made: list[tuple[Any, ...]] = []
    for _ in range(rounds):
        some = rng.sample(texts, rng.randint(1, 2))
        jobs = [
            Job(one, rng.choice(lengths), (rng.choice(RULES),), rng.choice([1, 3]), rows=True) for one in some
        ]
        for one, draft in zip(some, drafter.draft(jobs), strict=True):
            made.append((draft.tokens, one.rng.getstate(), draft))
            chain = draft.tokens[: len(draft.rows)]
            accepted = rng.randint(0, len(chain))
            one.tokens += [*chain[:accepted], rng.randrange(2, VOCAB)]
    return made


@pytest.fixture(scope="module")
def sure() -> Any:
    """A model that is sure of some tokens and not of others."""
    made = model("llama", scale=6.0)
    with torch.no_grad():
        made.lm_head.weight *= 6
    return made


@pytest.mark.parametrize(("rounds", "lengths"), [(3, [3]), (24, [1, 3, 7])], ids=["recorded", "called"])
def test_a_draft_in_one_replay_is_the_draft_token_by_token(
    sure: Any, rounds: int, lengths: list[int]
) -> None:
    """Tokens, siblings, distributions, signals and generators are the same, whatever rule cuts the draft."""
    one, other = LMDrafter(sure, VOCAB), LMDrafter(sure, VOCAB)
    executor = use_graphs(other.runner, recorded=rounds < 10)
    pairs = zip(drafted(one, lengths, rounds), drafted(other, lengths, rounds), strict=True)
    for (tokens, state, draft), (same, place, made) in pairs:
        assert tokens == same
        assert state == place
        assert_alike(draft, made)
    assert {shape.width for shape in executor.graphs if isinstance(shape, DraftShape)} >= {3}


def assert_alike(one: Draft, other: Draft) -> None:
    assert one.probs == pytest.approx(other.probs)
    torch.testing.assert_close(torch.stack(list(one.rows)), torch.stack(list(other.rows)))
    if one.dist is not None:
        torch.testing.assert_close(torch.stack(list(one.dist)), torch.stack(list(other.dist)))
    for first, second in zip(one.signals, other.signals, strict=True):
        assert first.chosen == pytest.approx(second.chosen, rel=1e-5)
        if first.top1:
            assert (first.top1, first.top2) == pytest.approx((second.top1, second.top2), rel=1e-5)
        if first.entropy:
            assert first.entropy == pytest.approx(second.entropy, rel=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_texts_are_the_models_own_with_a_bad_drafter(batch: int) -> None:
    made, bad = model("llama"), model("llama", seed=3)
    prompts = [[3 + key, 5, 7 + key] for key in range(3)]
    target, drafter = HFTarget(made), LMDrafter(bad, VOCAB)
    for part in (target, drafter):
        use_graphs(part.runner, recorded=False)
    loop = loop_with(target, {"bad": drafter}, "static-3")
    assert written(loop, prompts, 30, batch) == [own_text(made, prompt, 30) for prompt in prompts]


def test_a_model_whose_cache_holds_more_than_keys_and_values_is_refused() -> None:
    with pytest.raises(Unfit, match="more than keys and values"):
        use_graphs(ModelRunner(model("deepseek-sparse")))
