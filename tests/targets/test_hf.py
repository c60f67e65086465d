"""Every architecture writes its own text, token for token, whoever drafts and whatever the batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from draftwise.core.drafts import Draft, Job
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.models.runner.cache import KEPT
from draftwise.targets.hf import HFTarget
from tests.core.turns import Stateless, decode_all, loop_with, watch_passes, written
from tests.effort import some
from tests.tiny import CONFIGS, VOCAB, model, own_text


class Oracle(Stateless):
    """Drafts the target's own text with some tokens spoilt: every draft length and rejection happens."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]], spoil: float) -> None:
        self.texts, self.spoil, self.random = texts, spoil, random.Random(3)

    def one(self, job: Job) -> Draft:
        r = job.request
        rest = self.texts[tuple(r.tokens[: r.prompt_length])][r.position :]
        rest = rest[: self.random.randint(0, job.length)]
        return Draft.chain([t if self.random.random() > self.spoil else (t + 1) % VOCAB for t in rest])


def prompts(n: int = 4) -> list[list[int]]:
    """Texts of all lengths; in batches of three, one has to wait for a row."""
    rng = random.Random(1)
    return [[rng.randrange(2, VOCAB) for _ in range((3, 1, 12, 30)[at % 4])] for at in range(n)]


def run(
    target: Any, team: dict[str, Any], policy: str, n: int, batch: int, **loop_options: Any
) -> list[list[int]]:
    loop = loop_with(target, team, policy, **loop_options)
    return written(loop, prompts(), n, batch)


EAGER_ONLY = {"gemma2-window"}
KINDS = [(n, a) for n in CONFIGS for a in ("sdpa", "eager") if a == "eager" or n not in EAGER_ONLY]


@pytest.mark.parametrize(("name", "attention"), some(KINDS, 3))
def test_greedy_text_is_the_models_own(name: str, attention: str) -> None:
    target = model(name, attention=attention)
    own = [own_text(target, p, 40) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    for batch in (1, 3):
        team = {
            "lm": LMDrafter(model(name, seed=1, attention=attention), VOCAB),
            "self": LMDrafter(model(name, attention=attention), VOCAB),
            "oracle": Oracle(truth, 0.3),
            "ngram": NgramDrafter(),
            "suffix": SuffixDrafter(),
        }
        assert (
            run(HFTarget(target, chunk=8), team, "random?arms=drafters*lengths&lengths=0,1,4,7", 40, batch)
            == own
        )


def test_the_drafts_of_that_test_are_accepted_and_rejected() -> None:
    target = model("llama")
    truth = {tuple(p): own_text(target, p, 40) for p in prompts()}
    loop = loop_with(HFTarget(target), {"oracle": Oracle(truth, 0.3)}, "static-6")
    rounds = list(loop.run(prompts(), Sampling(max_new_tokens=40), batch=3))
    assert any(r.accepted == r.drafted > 2 for r in rounds)
    assert any(0 < r.accepted < r.drafted for r in rounds)
    assert any(r.accepted == 0 < r.drafted for r in rounds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions_run(dtype: torch.dtype) -> None:
    made = model("llama", dtype=dtype)
    texts = run(
        HFTarget(made), {"lm": LMDrafter(model("llama", seed=1, dtype=dtype), VOCAB)}, "static-3", 12, 3
    )
    assert all(len(t) == 12 for t in texts)


@pytest.mark.filterwarnings("error")  # no text is longer than what was trained, however batches are padded
def test_a_window_sized_request_fills_the_window_and_no_more() -> None:
    target = HFTarget(model("gpt2"))
    loop = loop_with(target, {"ngram": NgramDrafter()}, "static-6")
    request = loop.add([5, 6, 5, 6] * 30, Sampling(max_new_tokens=50))
    short = loop.add([7, 8], Sampling(max_new_tokens=200))
    decode_all(loop)
    assert len(request.tokens) == 129 and len(short.tokens) == 129, "the last one is never read"
    for one, prompt in ((request, [5, 6, 5, 6] * 30), (short, [7, 8])):
        assert one.tokens == prompt + own_text(model("gpt2"), prompt, 129 - len(prompt))
    assert request.finish_reason == "length"
    with pytest.raises(UserError, match="128"):
        loop.add([5] * 129)
    loop.add([5] * 128, Sampling(max_new_tokens=9))
    (last,) = loop.step()
    assert [*last.tokens] == own_text(model("gpt2"), [5] * 128, 1) and last.done


def test_samples_of_one_prompt_read_it_once() -> None:
    target = HFTarget(model("llama"))
    fed = watch_passes(target.runner)
    loop = loop_with(target, {}, "none")
    prompt = [random.Random(0).randrange(2, VOCAB) for _ in range(60)]
    for _ in range(4):
        loop.add(prompt, Sampling(max_new_tokens=5))
    texts = {r.request: r.tokens for r in loop.step()}
    assert sum(fed) < 60 + 4 * 4
    assert len(set(texts.values())) == 1
    assert list(texts[0]) == own_text(target.runner.model, prompt, 1)


def test_prompts_that_begin_alike_share_what_was_read() -> None:
    target = HFTarget(model("llama"))
    fed = watch_passes(target.runner)
    loop = loop_with(target, {}, "none")
    first = [random.Random(0).randrange(2, VOCAB) for _ in range(60)]
    others = [first, [*first[:40], 5, 6, 7], first[:50], [*first, 8, 9], [9, *first]]
    requests = [loop.add(first, Sampling(max_new_tokens=20))]
    for _ in range(5):  # the first row now holds more than the prompt
        loop.step()
    requests += [loop.add(prompt, Sampling(max_new_tokens=20)) for prompt in others]
    fed.clear()
    loop.step()
    assert sum(fed) < 61 + 5 * 6  # all of the last, and a few tokens of each other
    decode_all(loop)
    for request, prompt in zip(requests, [first, *others], strict=True):
        assert request.tokens[len(prompt) :] == own_text(target.runner.model, prompt, 20)


def test_a_parked_text_keeps_its_row_when_others_come_and_go() -> None:
    target = HFTarget(model("llama"))
    loop = loop_with(target, {}, "none")
    parked = loop.add([3, 5, 3, 5, 8], Sampling(max_new_tokens=8), keep=True)
    decode_all(loop)
    for prompt in ([7, 8, 9], [6, 6]):
        loop.add(prompt, Sampling(max_new_tokens=8))
        list(loop.run([[4, 2, 4]], Sampling(max_new_tokens=5), batch=2))
    loop.extend(parked, [9, 4], Sampling(max_new_tokens=8))
    decode_all(loop)
    before = parked.tokens[: parked.prompt_length]
    assert parked.tokens[parked.prompt_length :] == own_text(target.runner.model, before, 8)


def test_a_new_turn_has_its_own_settings() -> None:
    target = HFTarget(model("llama"))
    loop = loop_with(target, {}, "none")
    request = loop.add([3, 5, 3, 5], Sampling(max_new_tokens=8, frequency_penalty=9.0), keep=True)
    decode_all(loop)
    settings = Sampling(max_new_tokens=8, frequency_penalty=2.0)
    loop.extend(request, [4, 9], settings)
    fresh = loop.add(request.tokens, settings)
    decode_all(loop)
    assert request.tokens == fresh.tokens


def test_memory_that_was_never_written_does_no_harm() -> None:
    """PyTorch fills new memory with NaN here, which would spread even where the mask hides it."""
    made = model("llama")
    own = [own_text(made, prompt, 20) for prompt in prompts()]
    torch.use_deterministic_algorithms(True)
    try:
        assert run(HFTarget(made, chunk=8), {"ngram": NgramDrafter()}, "static-4", 20, 3) == own
    finally:
        torch.use_deterministic_algorithms(False)


def test_rows_are_freed() -> None:
    target, lm = HFTarget(model("llama")), LMDrafter(model("llama", seed=1), VOCAB)
    run(target, {"lm": lm}, "static-2", 8, 3)
    assert target.runner.request_ids == [] and target.runner.cache.bytes <= KEPT and not target.chains
    assert lm.runner.request_ids == [] and lm.runner.cache.bytes <= KEPT and not lm.cached


class Plain:
    """The configuration of a model that is refused."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def get_text_config(self, decoder: bool = True) -> Plain:
        return self


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"_attn_implementation": "flash_attention_2"}, "sdpa"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    made = model("llama")
    for key, value in fields.items():
        object.__setattr__(made.config, key, value)
    made.config.name_or_path = "acme/model"
    with pytest.raises(UserError, match=said) as error:
        HFTarget(made)
    assert "\n" not in str(error.value) and "Llama" in str(error.value)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("policy", ["none", "static-4"])
def test_greedy_with_processors_takes_the_largest_logit_and_not_the_largest_chance(
    scale: float, policy: str
) -> None:
    """A softmax in float32 gives logits that differ by little the same chance."""
    made = model("llama", scale=5.0).float()
    made.lm_head.weight.data *= scale
    team: dict[str, Any] = {"ngram": NgramDrafter(), "bad": LMDrafter(model("llama", seed=9), VOCAB)}
    settings = Sampling(max_new_tokens=25, repetition_penalty=1.0 + 1e-7)
    for prompt in prompts(4):
        loop = loop_with(HFTarget(made), team, f"{policy}?drafter=bad" if policy != "none" else policy)
        request = loop.add(prompt, settings)
        decode_all(loop)
        ids = torch.tensor([prompt])
        asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 25, "do_sample": False}
        own = made.generate(ids, **asked, repetition_penalty=1.0 + 1e-7)[0].tolist()
        assert request.tokens == own


def test_a_processor_may_force_a_token_with_an_infinite_logit() -> None:
    def four(ids: Any, scores: Any) -> Any:
        scores[:, 4] = float("inf")
        return scores

    loop = loop_with(HFTarget(model("llama")), {}, "none")
    request = loop.add([5, 6], Sampling(max_new_tokens=5, processors=(four,)))
    decode_all(loop)
    assert request.tokens[2:] == [4] * 5


class Elsewhere:
    """Logits on a device that has no float64, of which nothing but a copy is asked."""

    device = torch.device("mps")

    def __init__(self, logits: torch.Tensor) -> None:
        self.shape, self.cpu = logits.shape, lambda: logits


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.2}, {"temperature": 0.8, "seed": 4}])
def test_logits_of_a_device_without_float64_are_read_on_the_host(settings: dict[str, Any]) -> None:
    texts = []
    for there in (False, True):
        target = HFTarget(model("llama"))
        forward = target.runner.forward

        def moved(given: Any, forward: Any = forward) -> Any:
            output: Any = forward(given)
            output.logits = Elsewhere(output.logits)
            return output

        if there:
            target.runner.forward = moved  # type: ignore[method-assign]
        loop = loop_with(target, {"ngram": NgramDrafter()}, "static-3")
        rounds = list(loop.run(prompts(2), Sampling(max_new_tokens=12, **settings), batch=2))
        assert not any(round.fault for round in rounds)
        texts.append([round.tokens for round in rounds])
    assert texts[0] == texts[1]


def test_a_row_is_free_though_its_closing_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    target = HFTarget(model("llama"))
    loop = loop_with(target, {}, "none")
    request = loop.add([3, 5], Sampling(max_new_tokens=9))
    loop.step()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(target.runner, "has_changed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.close(request)
    assert not loop.open and not target.runner.request_ids
