"""What a model's authors set is used as Transformers uses it, and a call has the last word."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from draftwise import Decoder, UserError
from draftwise.errors import DraftwiseWarning
from draftwise.generation.settings import LEFT_OUT, USED, own_processors, own_settings
from tests.tiny import model
from tests.tiny_tokenizers import MAKERS

GenerationConfig: Any = transformers.GenerationConfig  # untyped
# fmt: off
# Settings that change no text: how it is computed, what else is returned, and options of beam search.
NEUTRAL = frozenset(
    {
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp", "low_memory",
        "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config",
        "renormalize_logits", "transformers_version", "output_attentions", "output_hidden_states",
        "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id",
        "decoder_start_token_id", "_from_model_config", "early_stopping", "length_penalty",
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
        "assistant_ensemble_weight", "speculation_type",
    }
)
# fmt: on
ELSEWHERE = frozenset({"do_sample", "eos_token_id"})
PROMPT = [3, 5, 7, 9, 3, 5, 7, 9]


def decoder(made: Any, **options: Any) -> Decoder:
    return Decoder.from_pretrained(made, tokenizer=MAKERS["byte-level"](), drafters=["ngram"], **options)


def sampled(**fields: Any) -> Any:
    made = model("llama", scale=3.0)
    made.generation_config = GenerationConfig(**{"pad_token_id": 0} | fields)
    return made


def test_every_field_of_transformers_is_decided() -> None:
    """A field of a new release fails here until it has been looked at."""
    parts = (USED, ELSEWHERE, NEUTRAL, LEFT_OUT)
    assert frozenset().union(*parts) >= set(GenerationConfig().to_dict())
    assert sum(map(len, parts)) == len(frozenset().union(*parts))


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {}),
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 50}),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {"temperature": 1.0, "top_k": 0, "min_p": 0.1}),
        ({"max_new_tokens": 12, "num_beams": 1, "guidance_scale": 1.0}, {"max_new_tokens": 12}),
        ({"pad_token_id": 0, "eos_token_id": [1, 2], "use_cache": False, "min_length": 0}, {}),
    ],
    ids=str,
)
def test_what_is_set_is_used(fields: dict[str, Any], settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_settings(GenerationConfig(**fields)) == settings
        assert own_settings(None) == {}


@pytest.mark.parametrize("name", ["no_repeat_ngram_size", "num_beams", "max_length", "suppress_tokens"])
def test_what_is_left_out_is_named(name: str) -> None:
    value = [4] if name == "suppress_tokens" else 4
    with pytest.warns(DraftwiseWarning, match=f"{name}=") as seen:
        decoder(sampled(**{name: value, "temperature": None}))
    assert len(seen) == 1 and "\n" not in str(seen[0].message) and seen[0].filename == __file__


def test_greedy_text_is_that_of_transformers_with_these_settings() -> None:
    made = sampled(do_sample=False, repetition_penalty=1.7, max_new_tokens=14, temperature=0.6, top_k=3)
    prompt = torch.tensor([PROMPT])
    own = made.generate(prompt, attention_mask=torch.ones_like(prompt))[0, len(PROMPT) :].tolist()
    out = decoder(made).generate(PROMPT)
    assert out.token_ids == own and len(own) == 14 and out.seed is None
    assert decoder(made).generate(PROMPT, repetition_penalty=1.0, max_new_tokens=9).token_ids != own[:9]


def test_sampled_text_has_the_law_of_these_settings_unless_a_call_says_otherwise() -> None:
    shaping: dict[str, Any] = {
        "temperature": 0.9,
        "top_k": 4,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
    }
    own = decoder(sampled(do_sample=True, **shaping), seed=0)
    plain = decoder(sampled(), seed=1)
    for seed in range(8):
        expected = plain.generate(PROMPT, max_new_tokens=12, seed=seed, **shaping)
        assert own.generate(PROMPT, max_new_tokens=12, seed=seed).token_ids == expected.token_ids
        other = plain.generate(PROMPT, max_new_tokens=12, seed=seed, **shaping | {"top_k": 2})
        assert own.generate(PROMPT, max_new_tokens=12, seed=seed, top_k=2).token_ids == other.token_ids
    greedy = plain.generate(PROMPT, max_new_tokens=12, repetition_penalty=1.2)
    assert own.generate(PROMPT, max_new_tokens=12, temperature=0).token_ids == greedy.token_ids


def test_decoders_without_a_seed_write_different_texts_that_their_seeds_repeat() -> None:
    made = sampled()
    settings: dict[str, Any] = {"temperature": 1.5, "max_new_tokens": 16}
    one, two = decoder(made), decoder(made)
    outs = [d.generate(PROMPT, **settings) for d in (one, one, two, two)]
    assert len({tuple(out.token_ids) for out in outs}) == 4
    for out in outs:
        assert decoder(made).generate(PROMPT, seed=out.seed, **settings).token_ids == out.token_ids
    drawn = one.generate(PROMPT, n=3, **settings)
    again = two.generate(PROMPT, n=3, seed=drawn.seed, **settings)
    assert [s.token_ids for s in again.samples] == [s.token_ids for s in drawn.samples]
    (many,) = one.generate_many([PROMPT], **settings)
    assert two.generate(PROMPT, seed=many.seed, **settings).token_ids == many.token_ids
    list(one.stream(PROMPT, **settings))
    assert two.generate(PROMPT, seed=one.last.seed, **settings).token_ids == one.last.token_ids


def test_a_decoder_with_a_seed_repeats_all_its_texts() -> None:
    made = sampled()
    texts = [
        [d.generate(PROMPT, temperature=1.5, max_new_tokens=9).token_ids for _ in range(3)]
        for d in (decoder(made, seed=5), decoder(made, seed=5), decoder(made, seed=6))
    ]
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(UserError, match=r"seed=1\.5"):
        decoder(made, seed=1.5)


def test_the_files_of_a_model_say_it_too(tmp_path: Path) -> None:
    sampled(do_sample=True, temperature=0.7, top_k=3, eos_token_id=[11, 12]).save_pretrained(tmp_path)
    MAKERS["byte-level"]().save_pretrained(tmp_path)
    made = Decoder.from_pretrained(str(tmp_path), pack=False)
    assert made.defaults == {"temperature": 0.7, "top_k": 3} and made.eos == {11, 12}


# -- which processors are factories: those that nobody could call with token ids and scores ---------------


class Module(torch.nn.Module):
    """A processor whose arguments are those of `forward`."""

    def forward(self, ids: Any, scores: Any) -> Any:
        return scores


class Scaled:
    """A processor with settings."""

    def __init__(self, by: float = 1.0, after: int = 0) -> None:
        self.by, self.after = by, after

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores * self.by


def passed_on(call: Any) -> Any:
    """A decorator that does not say what it wraps."""

    def wrapper(*given: Any, **named: Any) -> Any:
        return call(*given, **named)

    return wrapper


def weighed(ids: Any, scores: Any, weight: float = 1.0) -> Any:
    return scores * weight


PROCESSORS = {
    "module": Module(),
    "object": Scaled(),
    "function": weighed,
    "partial": functools.partial(weighed, weight=2.0),
    "decorated": passed_on(weighed),
    "any arguments": lambda *given: given[1],
    "defaults": lambda ids=None, scores=None: scores,
}
FACTORIES = {
    "class": Scaled,
    "no arguments": lambda: Scaled(2.0),
    "one default": lambda by=2.0: Scaled(by),
    "partial of a class": functools.partial(Scaled, 2.0),
    "partial by name": functools.partial(Scaled, after=1),
    "partial of a function": functools.partial(lambda by: Scaled(by), 2.0),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_is_used_as_it_is(name: str) -> None:
    given = PROCESSORS[name]
    assert own_processors([given], alone=True) == (given,)
    (copied,) = own_processors([given], alone=False)
    assert type(copied) is type(given)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_one_for_each_text(name: str) -> None:
    first, second = own_processors([FACTORIES[name]] * 2, alone=True)
    assert type(first) is type(second) is Scaled and first is not second
