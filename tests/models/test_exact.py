"""Exact passes: a token's logits are the same bits however its text is read, in half precision too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MambaConfig

from draftwise import Decoder, transformers_generate
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import UserError
from draftwise.models.compiled import heads
from draftwise.models.compiled.heads import own_attention
from draftwise.models.compiled.trial import compare
from draftwise.models.native import kernels as panels
from draftwise.models.runner import PassInput
from draftwise.models.runner.executors import cuda_graphs, exact
from draftwise.models.runner.executors.compile import compile_runner
from draftwise.models.runner.executors.device_capture import Capture, call
from draftwise.models.runner.executors.eager import Eager
from draftwise.models.runner.executors.exact import Agreement, ExactCompiler, passes_agree
from draftwise.models.runner.executors.functions import PassShape
from draftwise.models.weights import packed, timing
from draftwise.models.weights.layouts import KERNELS as OURS
from draftwise.models.weights.layouts import PANELS, SHORT
from draftwise.models.weights.packed import arrange, layout_of
from draftwise.targets.hf import HFTarget
from tests.core.turns import Stateless, loop_with, written
from tests.recording import recorder
from tests.tiny import KERNELS, VOCAB, lively, model, with_weights_of

STARTS = exact.STARTS
STATES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
Disturb = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Classes that a text of 150 tokens outgrows, and a cache of answers of its own."""
    monkeypatch.setattr(cuda_graphs, "FIRST_SLOTS", 128)
    monkeypatch.setattr(exact, "compare", lambda *given: None)  # models whose kernels differ are off
    monkeypatch.setattr(exact, "STARTS", 2)  # a rare difference is a test of its own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield


class Apart(Stateless):
    """A bad drafter: nearly all of its tokens are wrong, and drafts have any length."""

    def __init__(self) -> None:
        self.rng = Random(5)

    def one(self, job: Job) -> Draft:
        return Draft.chain([self.rng.randrange(VOCAB) for _ in range(self.rng.randint(0, job.length))])


def disturbed(name: str, change: Disturb) -> Any:
    """A model in whose first feed-forward layer a kernel computes something else, as told by the input."""
    made = model(name).to(torch.bfloat16)
    down = made.model.layers[0].mlp.down_proj
    forward = down.forward
    down.forward = lambda states: forward(states) * change(states)
    return made


def narrow(states: Tensor) -> Tensor:
    """As where other kernels compute passes of up to three tokens."""
    return torch.tensor(1.0 - (states.shape[-2] < 4), dtype=states.dtype)


def wide(states: Tensor) -> Tensor:
    return torch.tensor(1.0 - (states.shape[-2] > 16), dtype=states.dtype)


def several(states: Tensor) -> Tensor:
    return torch.tensor(1.0 - (states.shape[0] > 1), dtype=states.dtype)


def later(states: Tensor) -> Tensor:
    """As where the rounding depends on a token's place in the pass."""
    return 1.0 + (torch.arange(states.shape[-2]) > 7)[:, None].to(states.dtype) / 4


def exact_target(made: Any, capture: Capture = call) -> HFTarget:
    target = HFTarget(made, probe=False)
    target.runner.compiler = ExactCompiler(target.runner, lambda: capture)
    return target


def texts(target: HFTarget, policy: str = "none", batch: int = 1, new: int = 30) -> list[list[int]]:
    drafters = {} if policy == "none" else {"bad": Apart(), "ngram": NgramDrafter()}
    rng = Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(3, 90))] for _ in range(3)]
    return written(loop_with(target, drafters, policy), prompts, new, batch)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", torch.bfloat16),
        ("llama", torch.float32),
        ("gpt2", torch.float16),
        ("gemma3-window", torch.bfloat16),
    ],
)
def test_logits_and_hidden_states_have_the_same_bits_however_a_text_is_read(
    name: str, dtype: torch.dtype
) -> None:
    """In pieces of any length, beside other texts, after rollbacks, and beyond a class of slots."""
    made, rng = model(name).to(dtype), Random(1)
    runner = exact_target(made).runner
    runner.request_hidden_states((1,))
    limit = min(runner.max_length, 150)
    text = [rng.randrange(VOCAB) for _ in range(limit - 1)]
    seen: list[Tensor | None] = [None] * limit
    for rows in (1, 3):
        for row in range(rows):
            runner.open(row)
        while min(runner.cached_lengths) < limit - 20:
            starts = list(runner.cached_lengths)
            pieces = [text[start:][: rng.choice([1, 2, 5, 17, 40])] or [0] for start in starts]
            with torch.inference_mode():
                output = runner.forward(PassInput(0, pieces, max(map(len, pieces))))
            assert output.info.kind == "exact"
            for row, (start, piece) in enumerate(zip(starts, pieces, strict=True)):
                for at in range(min(len(piece), limit - 1 - start)):
                    numbers = torch.cat([output.logits[row, at], output.hidden_states[1][row, at]])
                    first = seen[start + at]
                    if first is None:
                        seen[start + at] = numbers.clone()
                    else:
                        assert torch.equal(first, numbers)
                runner.cached_lengths[row] = min(start + len(piece) - rng.randint(0, 1), limit - 2)
        for row in range(rows):
            runner.close(row)


@pytest.mark.parametrize("change", [narrow, wide, several])
def test_texts_with_drafts_are_those_without_where_kernels_differ(change: Disturb) -> None:
    plain = texts(exact_target(disturbed("llama", change)))
    for policy, batch in (("ucb1", 1), ("static-24?drafter=bad", 3)):
        capture = recorder() if batch == 1 and change is narrow else call
        assert texts(exact_target(disturbed("llama", change), capture), policy, batch) == plain
    ways = [("none", 1), ("static-24?drafter=bad", 1), ("none", 3)]
    inexact = [texts(HFTarget(disturbed("llama", change), probe=False), *way) for way in ways]
    assert any(one != inexact[0] for one in inexact), "these kernels change texts, so that the test can fail"


def test_a_rare_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value in a hundred thousand that is off by its last bit."""
    monkeypatch.setattr(exact, "STARTS", STARTS)
    calls = Random(2)

    def rarely(states: Tensor) -> Tensor:
        factor = torch.ones_like(states[..., :16])
        if states.shape[-2] < 4 and calls.random() < 0.1:
            factor.view(-1)[0] += torch.finfo(states.dtype).eps
        return factor

    agreement = Agreement(HFTarget(disturbed("llama", rarely), probe=False).runner)
    assert not agreement.holds(PassShape(1, 1, 128))


def on_two_devices() -> Any:
    made = model("llama")
    made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.to("meta"))
    return made


def other_with_more_slots() -> Any:
    made = model("llama").to(torch.bfloat16)
    attention = made.model.layers[0].self_attn
    forward = attention.forward

    def longer(*args: Any, **named: Any) -> Any:
        mixed, weights = forward(*args, **named)
        return mixed * (1.0 + (named["attention_mask"].shape[-1] > 128) / 16), weights

    attention.forward = longer
    return made


PLACE = "its logits depend on where in a pass a token is, even in passes of one size"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: disturbed("llama", later), PLACE),
        (other_with_more_slots, PLACE),
        (on_two_devices, "its weights are on several devices"),
        (lambda: lively(MambaConfig(**STATES)), "it keeps a state that cannot rewind"),
    ],
)
def test_models_without_exact_passes_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(UserError, match=f"exact=True: {reason}; leave exact out"):
        exact_target(make())


def test_passes_that_compute_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph in which a number is baked in, for example."""
    monkeypatch.setattr(exact, "compare", compare)
    assert exact_target(model("llama")).runner.executor.kind == "exact"

    def baked(function: Any, inputs: Any) -> Any:
        outputs = function(*inputs)
        return lambda: outputs

    with pytest.raises(UserError, match="exact=True: its logits are off by"):
        exact_target(model("llama"), baked)


def test_what_cannot_be_captured_is_called() -> None:
    def fail(*given: object) -> Any:
        raise RuntimeError("no memory")

    plain = texts(exact_target(disturbed("llama", narrow)))
    assert texts(exact_target(disturbed("llama", narrow), fail), "ucb1") == plain


def test_answers_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = HFTarget(disturbed("llama", narrow), probe=False).runner
    before = Agreement(runner)
    assert not before.holds(PassShape(1, 2, 128))
    monkeypatch.setattr(exact, "run_pass", None)
    after = Agreement(runner)
    assert not after.holds(PassShape(1, 2, 128))
    assert after.holds(PassShape(1, 16, 256))


def test_hidden_states_and_other_weights_begin_again() -> None:
    target = exact_target(disturbed("llama", narrow))
    runner, first = target.runner, target.runner.executor
    runner.request_hidden_states((1,))
    second = runner.executor
    assert second.kind == "exact" and second is not first
    runner.has_changed()
    with torch.no_grad():
        next(runner.model.parameters()).add_(1.0)
    assert runner.has_changed()
    assert runner.executor.kind == "exact" and runner.executor is not second


def test_trees_are_refused_and_not_offered() -> None:
    target = exact_target(model("llama"))
    assert not target.can_read_trees()
    request = Request(0, [1, 2, 3], 3, Sampling(max_new_tokens=8), Random(0), Random(0))
    target.open(request)
    with pytest.raises(UserError, match="exact=True reads no trees"):
        target.verify([(request, Draft((4, 5), parents=(-1, -1)))])


class Compiled(Eager):
    """Eager passes that take themselves for compiled ones."""

    kind = "compiled"


def test_passes_that_do_not_agree_are_replaced() -> None:
    runner = HFTarget(disturbed("llama", narrow), probe=False).runner
    runner.executor = Compiled()
    assert not passes_agree(runner)
    assert ExactCompiler(runner, lambda: call, Compiled()).state.startswith("exact: a token takes")


def test_passes_that_agree_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a compiled graph with our kernels: tests/models/compiled has them."""
    monkeypatch.setattr(exact, "passes_agree", lambda runner: True)
    runner = HFTarget(model("llama"), probe=False).runner
    runner.executor = before = Compiled()
    assert ExactCompiler(runner, lambda: call, None).state == "exact: its compiled passes agree as they are"
    assert runner.executor is before and runner.is_exact


def test_what_has_no_exact_passes_is_refused() -> None:
    with pytest.raises(UserError, match="exact=True: Apart has no exact passes; leave exact out"):
        compile_runner(Apart(), "off", exact=True)


def test_decoders_and_transformers_take_it(tokenizer: Any) -> None:
    ids = torch.tensor([[3, 4, 5, 3, 4, 5]])
    given: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    texts = []
    for policy in ("none", "static-9"):
        options: dict[str, Any] = {"policy": policy, "compile": "off", "exact": True, "state": "off"}
        options |= {"tokenizer": tokenizer, "drafters": [] if policy == "none" else [Apart()]}
        decoder = Decoder.from_pretrained(disturbed("llama", narrow), **options)
        assert decoder.compiled["target"].startswith("exact: a token takes")
        texts.append(decoder.generate(ids[0].tolist(), max_new_tokens=30, eos=()).token_ids)
        method = transformers_generate(**options)
        written = disturbed("llama", narrow).generate(ids, custom_generate=method, **given)
        texts.append(written[0, ids.shape[1] :].tolist())
    assert len(texts[0]) == 30 and texts.count(texts[0]) == 4


def test_packed_weights_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama").to(torch.bfloat16)
    arrange(made, True)
    assert packed.layouts({"target": SimpleNamespace(runner=SimpleNamespace(model=made))})
    target = exact_target(made)
    kinds = set[str]()
    forward = target.runner.forward

    def counted(given: PassInput) -> Any:
        output = forward(given)
        kinds.add(output.info.kind)
        return output

    monkeypatch.setattr(target.runner, "forward", counted)
    plain = texts(target)
    assert texts(target, "ucb1", 3) == plain
    assert kinds == {"exact"}


def test_a_model_in_training_mode_writes_what_it_does_in_the_other() -> None:
    made = disturbed("llama", narrow)
    made.model.layers[0].mlp.act_fn = torch.nn.Sequential(
        made.model.layers[0].mlp.act_fn, torch.nn.Dropout(0.5)
    )
    made.eval()
    plain = texts(exact_target(made))
    made.train()
    assert texts(exact_target(made), "ucb1", 3) == plain
    assert made.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", [torch.float32, *SHORT.values()])
def test_on_a_cpu_weights_and_attention_are_of_our_kernels(
    dtype: torch.dtype, values: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a graph agrees as it is; without `exact` they are where they are faster."""
    if panels.linear_kernel(dtype) is None:
        pytest.skip("no C++ compiler here")
    monkeypatch.setattr(timing, "SMALLEST", 0)
    monkeypatch.setattr(timing, "decided", lambda *given: heads.THEIRS)
    used = []
    for exact_ in (False, True):
        made = with_weights_of(lively(LlamaConfig(**KERNELS)).float(), values).to(dtype)
        arrange(made, "auto", exact=exact_)
        layouts = {layout_of(part) for part in made.modules()} - {""}
        used.append((layouts, own_attention(made, [(0, 2, 16, 2, 16)], exact=exact_)))
    assert not {*OURS} & used[0][0] and not used[0][1]
    short = {values: name for name, values in SHORT.items()} if dtype == torch.float32 else {}
    best = short.get(values, PANELS)
    assert used[1] == ({best}, True)


def test_a_lack_of_memory_is_no_lasting_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> Any:
        raise torch.OutOfMemoryError("none left")

    runner, shape = HFTarget(disturbed("llama", narrow), probe=False).runner, PassShape(2, 16, 128)
    with monkeypatch.context() as patch:
        agreement = Agreement(runner)
        patch.setattr(agreement, "_agrees", fail)
        assert not agreement.holds(shape)
    assert Agreement(runner).holds(shape)


class Positions:
    """In place of a runner: logits are positions, other ones in passes of one token from some length on."""

    together, executor, max_length = True, None, 1 << 30

    def __init__(self, length: int) -> None:
        self.length, self.done = length, 0
        self.config = model("llama").config
        self.model = SimpleNamespace(config=self.config)

    def scratch(self, executor: None) -> Positions:
        return Positions(self.length)

    def open(self, request: int) -> None: ...

    def forward(self, given: PassInput) -> Any:
        text = given.tokens[-1]
        at = torch.arange(self.done, self.done + len(text))
        self.done += len(text)
        numbers = at + ((at >= self.length) & (len(text) == 1))
        return SimpleNamespace(logits=numbers.expand(len(given.tokens), -1)[..., None])


@pytest.mark.parametrize("length", [512, 1 << 30])
def test_passes_that_differ_after_a_long_text_do_not_agree(length: int) -> None:
    """Kernels may split attention over many keys in another way."""
    runner: Any = Positions(length)
    assert passes_agree(runner) == (length > 1000)
