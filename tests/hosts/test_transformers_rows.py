"""Inside `generate`, every row of a batch is what it is in plain decoding: processors and criteria that count
their calls, know rows by their index or look at the whole batch are called as plain decoding calls them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkingConfig,
)
from transformers.generation.streamers import BaseStreamer

from draftwise import UserError, transformers_generate
from draftwise.hosts.transformers.call import RowView
from draftwise.targets.hf import HFTarget
from tests.distributions import p_value
from tests.effort import drawn, some
from tests.tiny import VOCAB, model

IDS = torch.tensor([[0, 0, 3, 4, 5, 3, 4, 5], [7, 8, 9, 7, 8, 9, 7, 8], [0, 6, 5, 6, 5, 6, 5, 6]])
BATCH = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
ENDS = {"eos_token_id": [11, 12], "pad_token_id": 0}


@pytest.fixture(scope="module")
def target() -> Any:
    return model("llama")


@cache
def method(drafter: str = "ngram") -> Any:
    """A decoding method whose drafter is a lookup, or a model that guesses badly and draws."""
    drafters: list[Any] = [model("llama", seed=5)] if drafter == "bad" else [drafter]
    return transformers_generate(drafters=drafters, policy="static-3", tokenizer=object())


class Calls(LogitsProcessor):
    """Forbids some token by row and call, and writes down what it was shown."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # cannot be copied
        self.shown: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row in range(len(scores)):
            scores[row, (3 * row + len(self.shown)) % 7 :: 7] = -float("inf")  # in place
        self.shown.append(input_ids.tolist())
        return scores


class Mean(LogitsProcessor):
    """Looks at the whole batch: what any row has said becomes less likely in all."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = torch.zeros_like(scores)
        said.index_fill_(1, input_ids.flatten(), 1.0)
        return scores - 2 * said


PROCESSORS: list[Callable[[], dict[str, Any]]] = [
    dict,
    lambda: {"logits_processor": [Calls()]},
    lambda: {"logits_processor": [Mean()]},
    lambda: {"prefix_allowed_tokens_fn": lambda row, ids: [row + 1, row + 4, int(ids[-1]) + 1]},
    lambda: {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    lambda: {"encoder_repetition_penalty": 0.7},
    lambda: {"encoder_no_repeat_ngram_size": 2},
    lambda: {"guidance_scale": 1.7, "negative_prompt_ids": torch.tensor([[3, 4, 9]] * 3)},
    lambda: {"sequence_bias": [[[4], 5.0], [[5, 6], -9.0]], "bad_words_ids": [[7], [8, 9]]},
    lambda: {"forced_eos_token_id": 12, "begin_suppress_tokens": [3, 4], "suppress_tokens": [9]},
    lambda: {"exponential_decay_length_penalty": (4, 1.5), "min_new_tokens": 6, "eos_token_id": 4},
    lambda: {"watermarking_config": WatermarkingConfig(bias=4.0)},
    lambda: {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3)},
]


with suppress(ValueError):  # earlier releases take one number for all rows
    ends = RepetitionPenaltyLogitsProcessor(1.6, torch.tensor([2, 5, 4]))  # of each row's prompt
    PROCESSORS.append(lambda: {"logits_processor": [ends]})


GREEDY = [
    pytest.param(drafter, ends, more, id=f"{'+'.join(more()) or 'none'}-{name}-{drafter}")
    for k, more in enumerate(PROCESSORS)
    for name, ends in {"no end": {"pad_token_id": 0}, "ends": ENDS}.items()
    for drafter in ("ngram", "bad")[:: -1 if k % 2 == (name == "ends") else 1]
]


@pytest.mark.parametrize(("drafter", "ends", "more"), some(GREEDY, 2))  # each ending, and each drafter
def test_greedy_batches_are_the_same(target: Any, drafter: str, ends: Any, more: Any) -> None:
    settings = {"max_new_tokens": 12, "do_sample": False, **ends}
    own = target.generate(**BATCH, **settings | more())
    out = target.generate(**BATCH, **settings | more(), custom_generate=method(drafter))
    assert torch.equal(out, own)


@pytest.mark.parametrize("ends", [{"pad_token_id": 0}, ENDS], ids=["no end", "ends"])
def test_the_users_own_processor_is_called_once_a_step_with_all_rows(target: Any, ends: Any) -> None:
    seen = []
    for more in ({}, {"custom_generate": method()}):
        mine = Calls()
        target.generate(**BATCH, max_new_tokens=16, **ends, logits_processor=[mine], **more)
        seen.append(mine.shown)
    assert seen[0] == seen[1] and len(seen[0]) > 4


@pytest.mark.parametrize(
    "more", [{"logits_processor": [Mean()]}, {"output_scores": True}], ids=["own", "scores"]
)
def test_steps_together_draw_the_text_of_plain_decoding(target: Any, more: Any) -> None:
    settings = {"max_new_tokens": 14, "do_sample": True, "temperature": 1.7, "top_k": 0, **ENDS, **more}
    for seed in range(4):
        texts = []
        for host in ({}, {"custom_generate": method("bad")}):
            torch.manual_seed(seed)
            texts.append(target.generate(**BATCH, **settings, **host, return_dict_in_generate=True).sequences)
        assert torch.equal(*texts)


WARPERS: list[list[Any]] = [
    [TopPLogitsWarper(0.6), TemperatureLogitsWarper(3.0)],
    [TemperatureLogitsWarper(3.0), TopPLogitsWarper(0.6)],
    [TopKLogitsWarper(3, filter_value=-1.0), TemperatureLogitsWarper(2.0)],
    [TopPLogitsWarper(0.1, min_tokens_to_keep=3), RepetitionPenaltyLogitsProcessor(1.5)],
    [MinPLogitsWarper(0.3), TemperatureLogitsWarper(4.0), TopKLogitsWarper(5)],
]


@pytest.mark.parametrize("warpers", some(WARPERS, 3), ids=lambda w: "+".join(type(p).__name__[:6] for p in w))
@torch.no_grad()
def test_the_users_warpers_keep_their_order_and_settings(target: Any, warpers: list[Any]) -> None:
    """The first two tokens of many rows, against their exact distribution; a bad drafter draws its
    guesses."""
    ids, bad = torch.tensor([[3, 4, 5, 3, 4]]), model("llama", seed=5, scale=3.0)
    drafted = transformers_generate(drafters=[bad], policy="static-2", tokenizer=object())
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": 0, "max_new_tokens": 3}
    torch.manual_seed(1)
    out = target.generate(
        ids.repeat(drawn(1800), 1), **settings, logits_processor=warpers, custom_generate=drafted
    )
    firsts = distribution(target, warpers, ids)
    after = (torch.cat([ids, torch.tensor([[token]])], dim=1) for token in range(VOCAB))
    exact = firsts[:, None] * torch.stack([distribution(target, warpers, one) for one in after])
    seen = Counter(tuple(pair) for pair in out[:, 5:7].tolist())
    assert p_value(seen, {(a, b): float(exact[a, b]) for a in range(VOCAB) for b in range(VOCAB)}) > 1e-4
    if len({type(p) for p in warpers} & {TopPLogitsWarper, TemperatureLogitsWarper}) == 2:  # the test sees it
        other = distribution(target, warpers[::-1], ids)
        alone: Counter[tuple[int, ...]] = Counter((first,) for first in out[:, 5].tolist())
        assert p_value(alone, {(t,): float(other[t]) for t in range(VOCAB)}) < 1e-6


def distribution(target: Any, warpers: list[Any], ids: torch.Tensor) -> torch.Tensor:
    """The distribution of the next token, shape (vocabulary,)."""
    scores = target(ids).logits[:, -1].float()
    for processor in warpers:
        scores = processor(ids, scores)
    probabilities: torch.Tensor = scores.softmax(-1)[0]
    return probabilities


class RowLength(StoppingCriteria):
    """Ends row r after 3 + 2 r tokens; with `counts`, by its own count of calls, all rows at once."""

    def __init__(self, counts: bool = False) -> None:
        self.counts, self.calls = counts, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        self.calls += 1
        if self.counts:
            return self.calls >= 7
        return input_ids.shape[1] - IDS.shape[1] >= 3 + 2 * torch.arange(len(input_ids))


class Scored(StoppingCriteria):
    """Looks at the scores of the steps, as `output_scores` lets it."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        assert len(scores) == input_ids.shape[1] - IDS.shape[1]
        sure: torch.Tensor = scores[-1].softmax(-1).amax(-1) < 0.9
        return sure


@pytest.mark.parametrize("ends", [{"pad_token_id": 0}, ENDS], ids=["no end", "ends"])
@pytest.mark.parametrize(
    "make",
    [RowLength, lambda: RowLength(counts=True), Scored],
    ids=["by row", "by call", "by score"],
)
def test_criteria_see_every_step_of_the_batch(target: Any, ends: Any, make: Any) -> None:
    settings = {"max_new_tokens": 20, **ends}
    if make is Scored:
        settings |= {"output_scores": True, "return_dict_in_generate": True}
    texts = []
    for host in ({}, {"custom_generate": method()}):
        out = target.generate(**BATCH, **settings, stopping_criteria=[make()], **host)
        texts.append(getattr(out, "sequences", out))
    assert torch.equal(*texts)


class Put(BaseStreamer):
    def __init__(self) -> None:
        self.got: list[list[Any]] = []

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.tolist())

    def end(self) -> None:
        self.got.append([])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("more", [{}, {"logits_processor": [Mean()]}], ids=["apart", "together"])
def test_a_streamer_gets_all_rows_of_a_step(target: Any, rows: int, more: Any) -> None:
    some = {name: value[-rows:] for name, value in BATCH.items()}
    seen = []
    for host in ({}, {"custom_generate": method()}):
        streamer = Put()
        target.generate(**some, max_new_tokens=14, **ENDS, **more, streamer=streamer, **host)
        seen.append(streamer.got)
    assert seen[0] == seen[1] and len(seen[0]) > 5


def test_a_function_around_the_method_keeps_the_streamer(target: Any) -> None:
    drafted, streamer = method(), Put()

    def around(*args: Any, **kwargs: Any) -> Any:
        return (lambda: drafted(*args, **kwargs))()

    out = target.generate(
        input_ids=IDS[1:2], max_new_tokens=9, pad_token_id=0, custom_generate=around, streamer=streamer
    )
    assert [token for some in streamer.got[1:-1] for token in some] == out[0, IDS.shape[1] :].tolist()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
def test_scores_and_logits_are_those_of_plain_decoding(target: Any, rows: int, sample: bool) -> None:
    """Finished rows too: plain decoding computes theirs from the padding that it feeds them."""
    some = {name: value[-rows:] for name, value in BATCH.items()}
    asked = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    settings = {"max_new_tokens": 30, "do_sample": sample, "top_k": 9, "temperature": 1.5, **ENDS, **asked}
    made = []
    for host in ({}, {"custom_generate": method()}):
        torch.manual_seed(0)
        made.append(target.generate(**some, **settings, **host))
    own, out = made
    assert torch.equal(out.sequences, own.sequences)
    for mine, theirs in ((out.scores, own.scores), (out.logits, own.logits)):
        assert len(mine) == len(theirs) and {m.shape for m in mine} == {t.shape for t in theirs}
        assert all(torch.allclose(m, t, atol=1e-4) for m, t in zip(mine, theirs, strict=True))
    assert out.attentions is None and out.hidden_states is None


class Devices(LogitsProcessor):
    """Notes on which devices it is given its arguments."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen = [input_ids.device.type, scores.device.type]
        return torch.zeros(scores.shape)


def test_a_rows_processors_run_where_the_ids_are() -> None:
    """There `generate` makes them; the logits may be on another device."""
    devices = Devices()
    ids = torch.zeros(3, dtype=torch.long, device="meta")
    processed = RowView([devices], 0, ids, 2)(torch.zeros((1, 4), dtype=torch.long), torch.ones((1, 5)))
    assert devices.seen == ["meta", "meta"] and processed.device.type == "cpu"


def test_ids_of_32_bits_grow_as_in_plain_decoding(target: Any) -> None:
    asked = {"max_new_tokens": 5, "pad_token_id": 0}
    own = target.generate(IDS[1:2].int(), **asked)
    out = target.generate(IDS[1:2].int(), **asked, custom_generate=method())
    assert out.dtype == own.dtype and torch.equal(out, own)


class Broken(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > IDS.shape[1] + 4:
            raise ArithmeticError("no")
        return scores


def test_what_a_processor_raises_is_raised_and_leaves_nothing_behind(target: Any) -> None:
    drafted = method()
    with pytest.raises(ArithmeticError, match="no"):
        target.generate(**BATCH, max_new_tokens=16, logits_processor=[Broken()], custom_generate=drafted)
    own = target.generate(**BATCH, max_new_tokens=16)
    assert torch.equal(target.generate(**BATCH, max_new_tokens=16, custom_generate=drafted), own)


def test_an_error_that_a_device_shows_late_ends_the_call(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that take their steps together share a failed pass: none of them is read again alone."""
    passes = []

    def read() -> Any:
        raise ArithmeticError("an illegal access")

    def scores(*_: Any) -> Any:
        passes.append(1)
        return read

    with monkeypatch.context() as patch:
        patch.setattr(HFTarget, "_scores", scores)
        with pytest.raises(ArithmeticError, match="an illegal access"):
            target.generate(**BATCH, max_new_tokens=16, logits_processor=[Mean()], custom_generate=method())
    assert len(passes) == 1


def test_a_call_from_inside_a_call_is_refused(target: Any) -> None:
    drafted = method()

    class Inner(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> bool:
            target.generate(IDS[:1], max_new_tokens=2, custom_generate=drafted)
            return False

    with pytest.raises(UserError, match="inside its own call"):
        target.generate(IDS[:1], max_new_tokens=4, custom_generate=drafted, stopping_criteria=[Inner()])


def test_a_model_that_is_tried_keeps_its_own_settings() -> None:
    """Another thread may call its `generate` meanwhile, which reads them before it waits for its turn."""
    made, seen = model("llama", seed=71), list[bool]()
    own = made.generation_config
    made.model.register_forward_pre_hook(lambda *_: seen.append(made.generation_config is own))
    alone = transformers_generate(drafters=["ngram"], policy="static-3", tokenizer=object())
    made.generate(**BATCH, max_new_tokens=4, pad_token_id=0, custom_generate=alone)
    assert len(seen) > 8 and all(seen), "the trials are passes of this model"


def test_eight_threads_with_one_method(target: Any) -> None:
    drafted = method()
    jobs = [(IDS[i % 3 : i % 3 + 1, 2:], {"max_new_tokens": 8 + i}) for i in range(16)]
    wanted = [target.generate(ids, **more, pad_token_id=0).tolist() for ids, more in jobs]

    def work(job: tuple[torch.Tensor, dict[str, Any]]) -> Any:
        ids, more = job
        return target.generate(ids, **more, pad_token_id=0, custom_generate=drafted).tolist()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, jobs)) == wanted
