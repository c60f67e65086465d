"""Images, sound and encoders: `generate` writes with drafts what it writes without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationMixin, LlamaConfig, LogitsProcessor

from draftwise import UserError, transformers_generate
from draftwise.models import prompted, verdicts
from draftwise.models.cache_names import CACHE, cache_in
from tests.architectures.inputs.judge import Guesser
from tests.distributions import p_value
from tests.effort import drawn
from tests.tiny import lively

from .prompted import KINDS, VOCAB, bart, gemma3, shown, whisper

NEW = 14


def written(made: Any, inputs: dict[str, Any], n: int = NEW, **more: Any) -> Any:
    """What the model's own `generate` returns; Whisper's own is passed by, for one window of sound."""
    return GenerationMixin.generate(made, **inputs, max_new_tokens=n, **{"do_sample": False} | more)


def guessers(truth: torch.Tensor) -> list[Any]:
    rows = [row[-NEW:] for row in truth.tolist()]
    return [Guesser("good", 0.1, rows), Guesser("bad", 0.8, rows), "ngram"]


def drafted(truth: torch.Tensor, **more: Any) -> Any:
    options: dict[str, Any] = {"policy": "random", "tokenizer": object()} | more
    return transformers_generate(drafters=guessers(truth), **options)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_models_own(kind: str, rows: int) -> None:
    made, inputs = KINDS[kind](), shown(kind, rows)
    truth = written(made, inputs)
    assert len(set(truth[0, -NEW:].tolist())) > 2
    assert torch.equal(written(made, inputs, custom_generate=drafted(truth)), truth)


@pytest.mark.parametrize("kind", ["gemma3", "bart"])
def test_a_snapshot_is_as_good_as_a_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose states cannot be cut are put back, and what was accepted is read again."""
    monkeypatch.setattr(prompted, "WAYS", {"snapshot": prompted.Snapshot})
    monkeypatch.setattr(verdicts, "load", lambda *_: None)
    monkeypatch.setattr(verdicts, "keep", lambda *_: None)
    made, inputs = KINDS[kind](), shown(kind, 2)
    truth = written(made, inputs)
    assert torch.equal(written(made, inputs, custom_generate=drafted(truth)), truth)


class Stays(prompted.Crop):
    """Forgets to take anything back."""

    def cut(self, cached: int, length: int) -> int:
        return length


class Early(prompted.Snapshot):
    """Keeps the states from after the pass."""

    def cut(self, cached: int, length: int) -> int:
        self.saved = [prompted.copy_layer(layer) for layer in self.layers]
        return super().cut(cached, length)


@pytest.mark.parametrize("kind", ["qwen2_vl", "t5"])
def test_a_way_that_is_wrong_is_not_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompted, "WAYS", {"crop": Stays, "snapshot": Early})
    monkeypatch.setattr(verdicts, "load", lambda *_: None)
    made, inputs = KINDS[kind](), shown(kind, 1)
    with pytest.raises(UserError, match="cannot read several tokens after this prompt"):
        written(made, inputs, custom_generate=drafted(written(made, inputs)))


@pytest.mark.parametrize(("kind", "more"), [
    ("gemma3", {"output_scores": True}),
    ("bart", {"output_logits": True, "eos_token_id": [7, 30, 31, 32, 33, 34, 35]}),
    ("t5", {"do_sample": True, "temperature": 2.0, "output_scores": True}),
    ("whisper", {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}),
    ("qwen2_vl", {"num_return_sequences": 2, "do_sample": True, "output_scores": True}),
])  # fmt: skip
def test_what_is_returned_is_that_of_plain_decoding(kind: str, more: dict[str, Any]) -> None:
    """Rows take their steps together, so that a seed gives the text of plain decoding."""
    made, inputs = KINDS[kind](), shown(kind, 2)
    more = more | {"return_dict_in_generate": True}
    torch.manual_seed(4)
    own = written(made, inputs, **more)
    torch.manual_seed(4)
    out = written(made, inputs, **more, custom_generate=drafted(own.sequences))
    assert torch.equal(out.sequences, own.sequences) and type(out) is type(own)
    assert cache_in(out).get_seq_length() == cache_in(own).get_seq_length()
    for name in ("scores", "logits"):
        pairs = zip(getattr(out, name) or (), getattr(own, name) or (), strict=True)
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)


def test_a_conversation_goes_on_from_the_cache_of_its_picture() -> None:
    made, inputs = gemma3(), shown("gemma3", 1)

    def twice(**more: Any) -> torch.Tensor:
        first = written(made, inputs, return_dict_in_generate=True, **more)
        ids = torch.cat([first.sequences, torch.tensor([[5, 9, 11]])], dim=1)
        second: torch.Tensor = written(made, {"input_ids": ids, CACHE: cache_in(first)}, **more)
        return second

    truth = twice()
    assert torch.equal(twice(custom_generate=drafted(truth)), truth)


class Broken(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > 5:
            raise ArithmeticError("no")
        return scores


def test_a_call_that_fails_holds_no_cache() -> None:
    made, inputs = bart(), shown("bart", 1)
    adaptive = transformers_generate(drafters=["ngram"], tokenizer=object())
    with pytest.raises(ArithmeticError, match="no"):
        written(made, inputs, logits_processor=[Broken()], custom_generate=adaptive)
    ((_, target, _),) = adaptive.__self__.hosted.values()  # type: ignore[attr-defined]
    assert target.rows is None and target.latest is None and not hasattr(target, "inputs")


def test_a_smaller_model_of_the_kind_drafts_from_the_same_sound() -> None:
    made, inputs = whisper(), shown("whisper", 2)
    truth = written(made, inputs)
    for helper in (whisper(), whisper(3, layers=1)):
        adaptive = transformers_generate(drafters=[helper, "ngram"], policy="random", tokenizer=object())
        assert torch.equal(written(made, inputs, custom_generate=adaptive), truth)
    rounds = transformers_generate(drafters=[whisper()], policy="static-4", tokenizer=object())
    written(made, inputs, custom_generate=rounds)
    passes = counted(made, lambda: written(made, inputs, custom_generate=rounds))
    assert passes <= 2 + NEW // 5, "the same weights draft what it writes itself"
    host: Any = rounds.__self__  # type: ignore[attr-defined]
    ((loop, *_),) = host.hosted.values()
    (drafter,) = loop.pool.drafters.values()
    assert drafter.prompted is drafter.read is None and not drafter.prompt, "nothing of the sound is kept"


@pytest.mark.parametrize("rows", [1, 2])
def test_a_recorder_is_told_what_the_smaller_model_would_have_drafted(rows: int) -> None:
    """At the place that it asks about, whichever tokens have been written since."""
    made, inputs = whisper(), shown("whisper", rows)
    adaptive = transformers_generate(
        drafters=[whisper(), "ngram"], policy="hedgespec?length=4", tokenizer=object()
    )
    told: list[tuple[tuple[int, ...], list[int]]] = []
    truth = written(made, inputs, 30)
    written(made, inputs, 2, custom_generate=adaptive)
    ((loop, _, _),) = adaptive.__self__.hosted.values()  # type: ignore[attr-defined]
    (name, drafter), *_ = loop.pool.drafters.items()
    draft = drafter.draft

    def spy(jobs: Any) -> Any:
        drafts = draft(jobs)
        for job, one in zip(jobs, drafts, strict=True):
            row = truth[drafter.order[job.request.id], 1:].tolist()
            told.append((one.tokens, row[job.request.position :][: len(one.tokens)]))
        return drafts

    drafter.draft = spy
    assert torch.equal(written(made, inputs, 30, custom_generate=adaptive), truth)
    assert len(told) > 3 and not loop.pool.faults[name]
    assert all(list(drafted)[: len(wanted)] == wanted for drafted, wanted in told)


def counted(made: Any, run: Any) -> int:
    """Passes of the decoder."""
    calls = []
    hook = made.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    run()
    hook.remove()
    return len(calls)


def test_a_lookup_sees_the_text_of_the_encoder() -> None:
    """A model that copies would be drafted from its input."""
    made, inputs = bart(), shown("bart", 1)
    seen: list[list[int]] = []

    class Looks(Guesser):
        def one(self, job: Any) -> Any:
            seen.append(job.request.tokens)
            return super().one(job)

    truth = written(made, inputs)
    adaptive = transformers_generate(
        drafters=[Looks("looks", 0.5, [row[-NEW:] for row in truth.tolist()])],
        policy="static-3",
        tokenizer=object(),
    )
    assert torch.equal(written(made, inputs, custom_generate=adaptive), truth)
    encoded = inputs["input_ids"][0, :11].tolist()
    assert all(tokens[:11] == encoded and tokens[11] == 1 for tokens in seen)


def law(made: Any, inputs: dict[str, Any], k: int, n: int) -> dict[tuple[int, ...], float]:
    """The distribution of the first `n` tokens with top-k, by whole passes of the model."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(n):
        longer: dict[tuple[int, ...], float] = {}
        for text, p in texts.items():
            top = whole(made, inputs, text).topk(k)
            for token, q in zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True):
                longer[(*text, token)] = p * q
        texts = longer
    return texts


def whole(made: Any, inputs: dict[str, Any], text: tuple[int, ...]) -> torch.Tensor:
    new = torch.tensor([text], dtype=torch.long)
    with torch.no_grad():
        if made.config.is_encoder_decoder:
            start = torch.tensor([[1]])
            logits: torch.Tensor = made(**inputs, decoder_input_ids=torch.cat([start, new], 1)).logits
        else:
            more = {"attention_mask": torch.ones_like(new), "token_type_ids": torch.zeros_like(new)}
            ids = torch.cat([inputs["input_ids"], new], 1)
            named = {k: torch.cat([inputs[k], v], 1) for k, v in more.items()}
            logits = made(input_ids=ids, pixel_values=inputs["pixel_values"], **named).logits
    return logits[0, -1].float()


def llama() -> Any:
    return lively(LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    ))  # fmt: skip


@pytest.mark.parametrize(("kind", "helper"), [("gemma3", llama), ("bart", lambda: bart(5))])
def test_sampled_texts_have_the_models_distribution(kind: str, helper: Any) -> None:
    """Drafts sampled by a model that knows little, and by one that always errs."""
    made, inputs = KINDS[kind](), shown(kind, 1)
    wanted = law(made, inputs, 3, 3)
    likeliest = max((p, text) for text, p in wanted.items())[1]
    bad = Guesser("bad", 1.0, [list(likeliest)])
    adaptive = transformers_generate(drafters=[helper(), bad], policy="random", tokenizer=object())
    seen: dict[tuple[int, ...], int] = {}
    torch.manual_seed(0)
    for _ in range(drawn(600) * 2 // 3):
        out = written(made, inputs, 3, do_sample=True, top_k=3, custom_generate=adaptive)
        text = tuple(out[0, -3:].tolist())
        seen[text] = seen.get(text, 0) + 1
    assert p_value(seen, wanted) > 1e-3


def test_decoding_without_a_cache_is_refused() -> None:
    made, inputs = bart(), shown("bart", 1)
    with pytest.raises(UserError, match="use_cache=False"):
        written(made, inputs, use_cache=False, custom_generate=drafted(torch.zeros(1, NEW)))


def test_trees_heads_and_other_kinds_are_refused_by_name() -> None:
    made, inputs = bart(), shown("bart", 1)
    with pytest.raises(UserError, match="hidden states"):
        written(made, inputs, custom_generate=transformers_generate(drafters=["lookahead", "early-exit"]))
    helper = transformers_generate(drafters=[bart()], policy="static-3", tokenizer=object())
    with pytest.raises(UserError, match="is an encoder-decoder, and the target is none"):
        written(gemma3(), shown("gemma3", 1), custom_generate=helper)
