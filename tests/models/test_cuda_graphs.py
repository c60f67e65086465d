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
from draftwise.models.runner.cache import RowLayer
from draftwise.models.runner.drafts import DraftShape
from draftwise.models.runner.executors import cuda_graphs
from draftwise.targets.hf import HFTarget
from tests.core.turns import decode_all, loop_with, written
from tests.recording import agree, assert_alike, call, random_pass, recorder, runners, use_graphs
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


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_are_those_of_eager_passes(name: str) -> None:
    """For chains and trees, in rows of several lengths, also when a text outgrows the buffers."""
    (eager, graphs), rng = runners(model(name), 3), Random(1)
    for runner in (eager, graphs):
        runner.request_hidden_states((1, -1))
    executor = use_graphs(graphs, recorder() if name == "llama" else call)
    for _ in range(9):
        given = random_pass(rng, trees=0.4)
        agree(graphs, eager, given)
        for row, text in enumerate(given.tokens):
            back = len(text) - 1 if row in (given.parents or {}) else rng.randint(0, 1)
            for runner in (eager, graphs):
                runner.cached_lengths[row] -= back
    assert graphs.cache.plan.slots > 16, "a text outgrows the first buffers"
    assert executor.captures > len(executor.graphs), "whose graphs are captured again"


def test_rows_that_pad_a_pass_keep_what_they_hold() -> None:
    eager, graphs = runners(model("llama"), 4, 3, 4, 5)
    use_graphs(graphs, recorder())
    for given in (PassInput(0, [[6]] * 3, 1), PassInput(0, [[7, 8]] * 4, 2)):
        agree(graphs, eager, given)


def test_logits_stay_what_they_are_after_the_next_pass() -> None:
    runner = ModelRunner(model("llama"))
    use_graphs(runner, recorder())
    runner.open(0)
    logits = runner.forward(PassInput(0, [[3]], 1)).logits
    before = logits.clone()
    runner.forward(PassInput(0, [[4]], 1))
    torch.testing.assert_close(logits, before)


def test_buffers_stay_where_they_are_while_texts_come_and_go() -> None:
    runner = ModelRunner(model("llama"))
    executor = use_graphs(runner, recorder())
    places = set[int]()
    for key in range(3):
        runner.open(key)
        runner.forward(PassInput(0, [[3, 4, 5]], 1))
        places.add(runner.cache.layer(0).keys.data_ptr())
        runner.close(key)
    assert len(places) == 1
    assert executor.captures == 1


@pytest.mark.parametrize(("width", "kind"), [(60, "graph"), (70, "eager")])
def test_graphs_are_given_up_before_the_cache_grows(
    width: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep the tensors that they read, and there may be no memory for both."""
    (eager, graphs), kept = runners(model("llama"), 1), list[int]()
    executor, grow = use_graphs(graphs, call), RowLayer.grow
    eager.cache.fix(1, 128)
    agree(graphs, eager, PassInput(0, [[3, 4]], 1))
    assert executor.graphs

    def watched(layer: RowLayer) -> None:
        kept.append(len(executor.graphs))
        grow(layer)

    monkeypatch.setattr(RowLayer, "grow", watched)
    agree(graphs, eager, PassInput(0, [[at % VOCAB for at in range(width)]], 1), kind)
    assert kept and not any(kept)


def test_graphs_that_are_prepared_beside_an_open_text_leave_it_as_it_is() -> None:
    """A drafter may ask for hidden states in the middle of a text, and graphs are captured again."""
    eager, graphs = runners(model("llama"), 1, 3, 4, 5, 6, 7)
    use_graphs(graphs, call).prepare(graphs)
    agree(graphs, eager, PassInput(0, [[8]], 1))


def test_after_a_capture_that_fails_other_passes_are_eager() -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("out of memory")

    eager, graphs = runners(model("llama"), 1)
    executor = use_graphs(graphs, call)
    agree(graphs, eager, PassInput(0, [[3, 4]], 1))
    executor.capture = fail
    agree(graphs, eager, PassInput(0, [[5]], 1), "eager")
    agree(graphs, eager, PassInput(0, [[6, 7]], 2))


def test_a_pass_whose_capture_fails_is_not_timed() -> None:
    """Its time is that of the attempt, which is not repeated."""

    def fail(*given: Any) -> Any:
        raise RuntimeError("not permitted")

    runner = ModelRunner(model("llama"))
    use_graphs(runner, fail)
    runner.open(0)
    outputs = [runner.forward(PassInput(0, [[token]], 1)) for token in (3, 4)]
    assert [(output.info.kind, output.info.is_timed) for output in outputs] == [
        ("eager", False),
        ("eager", True),
    ]


def test_where_the_cache_has_no_memory_for_a_class_of_slots_passes_are_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An eager pass needs fewer; the growth is tried once, and other classes have graphs again."""
    (eager, graphs), tried, grow = runners(model("llama"), 1), list[int](), RowLayer.grow
    use_graphs(graphs, recorder())
    eager.cache.fix(1, 128)

    def short(layer: RowLayer) -> None:
        if layer.plan is graphs.cache.plan and layer.plan.slots > 64:
            layer.plan.is_torn = True
            tried.append(layer.plan.slots)
            raise torch.OutOfMemoryError("CUDA out of memory")
        grow(layer)

    monkeypatch.setattr(RowLayer, "grow", short)
    monkeypatch.setattr(cuda_graphs, "FIRST_SLOTS", 16)
    text = [at % VOCAB for at in range(30)]
    for tokens, kind in ((text, "graph"), ([3, 4], "graph"), ([5], "eager"), ([6], "eager")):
        if kind == "eager":
            monkeypatch.setattr(cuda_graphs, "slots_class", lambda longest: 128)
        agree(graphs, eager, PassInput(0, [tokens], 1), kind)
    assert tried == [128]
    monkeypatch.undo()
    agree(graphs, eager, PassInput(0, [[7]], 1))


def requests(seed: int) -> list[Request]:
    rng = Random(seed)
    made = []
    for at in range(4):
        text = [rng.randrange(2, VOCAB) for _ in range(rng.randint(2, 9))]
        sampling = Sampling(max_new_tokens=200, **SETTINGS[(at + seed) % len(SETTINGS)])
        made.append(Request(at, text, len(text), sampling, Random(at), Random(at)))
    return made


def drafted(drafter: LMDrafter, lengths: list[int], rounds: int) -> list[tuple[Any, Draft]]:
    """What some requests are drafted over several rounds, and where their generators are afterwards."""
    rng, texts = Random(0), requests(0)
    made: list[tuple[Any, Draft]] = []
    for _ in range(rounds):
        some = rng.sample(texts, rng.randint(1, 2))
        jobs = [
            Job(one, rng.choice(lengths), (rng.choice(RULES),), rng.choice([1, 3]), rows=True) for one in some
        ]
        for one, draft in zip(some, drafter.draft(jobs), strict=True):
            made.append((one.rng.getstate(), draft))
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
    executor = use_graphs(other.runner, recorder() if rounds < 10 else call)
    pairs = zip(drafted(one, lengths, rounds), drafted(other, lengths, rounds), strict=True)
    for (state, draft), (place, made) in pairs:
        assert state == place
        assert_alike(draft, made)
    assert {shape.width for shape in executor.graphs if isinstance(shape, DraftShape)} >= {3}


@pytest.mark.parametrize("batch", [1, 3])
def test_texts_are_the_models_own_with_a_bad_drafter(batch: int) -> None:
    made, bad = model("llama"), model("llama", seed=3)
    prompts = [[3 + key, 5, 7 + key] for key in range(3)]
    target, drafter = HFTarget(made), LMDrafter(bad, VOCAB)
    for part in (target, drafter):
        use_graphs(part.runner, call)
    loop = loop_with(target, {"bad": drafter}, "static-3")
    assert written(loop, prompts, 30, batch) == [own_text(made, prompt, 30) for prompt in prompts]


def test_the_last_text_of_a_batch_goes_on_as_graphs() -> None:
    """Graphs are of the first rows: a text in another one has to move there."""
    made = model("llama")
    target = HFTarget(made)
    use_graphs(target.runner, call)
    loop = loop_with(target, {}, "none")
    for prompt, n in (([3, 4], 2), ([5, 6, 7], 9)):
        loop.add(prompt, Sampling(max_new_tokens=n))
    kinds, tokens = list[str](), list[int]()
    for round in decode_all(loop):
        kinds.append(target.info.latest.kind)
        tokens += round.tokens if round.request == 1 else ()
    assert set(kinds) == {"graph"} and tokens == own_text(made, [5, 6, 7], 9)


def test_a_model_whose_cache_holds_more_than_keys_and_values_is_refused() -> None:
    with pytest.raises(Unfit, match="more than keys and values"):
        use_graphs(ModelRunner(model("deepseek-sparse")), call)
