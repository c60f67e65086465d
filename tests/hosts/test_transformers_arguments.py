"""Every argument of `generate` is obeyed, refused by name, or without effect on plain decoding too.

A new argument or setting of a new release fails here until someone decides what becomes of it.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, LlamaConfig, MptConfig

from draftwise import UserError, transformers_generate
from tests.hosts.arguments import EARLIER, FIELDS, IDS, MODEL, NOTES, OBEYED, REFUSED, SIGNATURE
from tests.tiny import COMMON, VOCAB, model

ROWS = {**SIGNATURE, **MODEL, **FIELDS}


@pytest.fixture(scope="module")
def target() -> Any:
    return model("llama")


@pytest.fixture(scope="module")
def drafted() -> Any:
    return transformers_generate(drafters=["ngram"], policy="static-3", tokenizer=object())


def test_every_argument_is_in_the_table() -> None:
    parameters = set(inspect.signature(GenerationMixin.generate).parameters)
    assert parameters - {"self", "kwargs"} == set(SIGNATURE)
    plain: Any = GenerationConfig  # whose types are not said
    fields = {name for name in vars(plain()) if not name.startswith("_")}
    assert fields - NOTES == set(FIELDS)


def written(target: Any, **given: Any) -> torch.Tensor:
    """The ids of a batch; the attention mask is made of the padding."""
    usual: dict[str, Any] = {"inputs": IDS, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": 15}
    given = usual | given
    if given["inputs"] is not None and given["inputs"].shape == IDS.shape:
        given.setdefault("attention_mask", (IDS != 0).long())
    torch.manual_seed(0)
    out = target.generate(**given)
    found: torch.Tensor = getattr(out, "sequences", out)
    return found


@pytest.mark.parametrize("name", [name for name, (_, example, _) in ROWS.items() if example is not None])
@pytest.mark.filterwarnings("ignore")
def test_arguments(target: Any, drafted: Any, name: str) -> None:
    verdict, example, _ = ROWS[name]
    assert example is not None
    made = model("gpt2") if name == "token_type_ids" else target
    if name == "cache_config":  # Transformers makes a stream for it
        try:
            torch.Stream()
        except RuntimeError:
            pytest.skip("a CUDA build of PyTorch without a driver makes no streams")
    if verdict == REFUSED:
        said = "cache_implementation" if name == "cache_config" else name
        with pytest.raises(UserError, match=said):
            written(made, **example, custom_generate=drafted)
    elif verdict == EARLIER:
        with pytest.raises((ValueError, AttributeError, TypeError)):
            written(made, **example, custom_generate=drafted)
    else:
        own = written(made, **example)
        assert torch.equal(written(made, **example, custom_generate=drafted), own)


@pytest.mark.parametrize("name", [n for n, (v, example, _) in FIELDS.items() if v == OBEYED and example])
@pytest.mark.filterwarnings("ignore")
def test_what_is_obeyed_matters(target: Any, name: str) -> None:
    """The examples would show a setting that is dropped: plain decoding writes something else with it, but
    for those that only change what is returned or how it is computed."""
    silent = {"do_sample", "use_cache", "cache_implementation", "max_cache_len", "renormalize_logits"}
    silent |= {"output_scores", "output_logits", "return_dict_in_generate", "disable_compile"}
    silent |= {"prefill_chunk_size", "remove_invalid_values", "num_return_sequences"}
    if name in silent:
        pytest.skip("changes no token")
    example = FIELDS[name][1]
    assert example is not None
    inputs = {key: value for key, value in example.items() if key == "inputs"}
    drawn: dict[str, Any] = {"do_sample": True, "top_k": 0} if example.get("do_sample") else {}
    if drawn:
        drawn |= {"temperature": 9.0, "max_new_tokens": 40}  # anything may come, unless forbidden
    with_it = written(target, **drawn | example | {k: v for k, v in drawn.items() if k == "max_new_tokens"})
    without = written(target, **inputs, **drawn)
    assert with_it.shape != without.shape or not torch.equal(with_it, without)


def test_padding_on_the_right_is_refused(target: Any, drafted: Any) -> None:
    with pytest.raises(UserError, match="padded on the right"):
        written(target, attention_mask=(IDS.flip(1) != 0).long(), custom_generate=drafted)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drafters": None}, "drafters None: give a list"),
        ({"drafters": 5}, "drafters 5: give a list"),
        ({"drafters": (name for name in ["ngram"])}, "give a list"),
        ({"drafters": ["ngrm"]}, "did you mean ngram"),
        ({"policy": "best"}, "'best'"),
        ({"policy": 5}, "5 is not a name"),
        ({"seed": "x"}, "seed='x'"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"compile": "x"}, "compile='x'"),
    ],
)
def test_the_arguments_of_the_method_itself_are_looked_at_when_it_is_made(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as error:
        transformers_generate(**given)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_is_a_name_or_one_that_is_loaded(plain_model: Any, tokenizer: Any) -> None:
    ids = tokenizer("Ein Hund", return_tensors="pt").input_ids
    asked = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    own = plain_model.generate(ids, **asked)
    for given in ("zoo:target", tokenizer):
        named = transformers_generate(drafters=["zoo:general"], tokenizer=given)
        assert torch.equal(plain_model.generate(ids, custom_generate=named, **asked), own)
    for wrong in (5, object()):
        with pytest.raises(UserError, match=r"tokenizer=.*: give a model's name, or a loaded tokenizer"):
            odd = transformers_generate(drafters=["zoo:general"], tokenizer=wrong)
            plain_model.generate(ids, custom_generate=odd, **asked)


def test_settings_of_the_model_itself_are_obeyed(drafted: Any) -> None:
    shipped = model("llama")
    shipped.generation_config.update(repetition_penalty=1.7, max_new_tokens=9, pad_token_id=0)
    own = shipped.generate(IDS[1:])
    assert own.shape[1] == IDS.shape[1] + 9
    assert torch.equal(shipped.generate(IDS[1:], custom_generate=drafted), own)


def uncached(config: Any) -> Any:
    """A random model whose own settings say `use_cache=False`, as every MPT's do."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).double().eval()
    assert made.generation_config.use_cache is False
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return made


def test_a_model_that_decodes_without_a_cache_by_default_is_decoded_with_one(drafted: Any) -> None:
    sizes: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 64}
    mpt = uncached(MptConfig(vocab_size=VOCAB, **sizes))
    for ids in (IDS[:1, 2:], IDS[1:], IDS[1:, :3]):
        own = written(mpt, inputs=ids)
        assert torch.equal(written(mpt, inputs=ids, custom_generate=drafted), own)
        assert len(set(own[0, ids.shape[1] :].tolist())) > 2


def test_a_model_whose_cache_changes_its_text_is_not_decoded_with_one_instead(drafted: Any) -> None:
    """This class ignores the window, which the cache of `generate` applies."""
    llama = uncached(LlamaConfig(**COMMON | {"use_cache": False, "sliding_window": 8}))
    assert not torch.equal(written(llama), written(llama, use_cache=True))
    with pytest.raises(UserError, match=r"use_cache=False: LlamaForCausalLM .* give use_cache=True"):
        written(llama, custom_generate=drafted)
    own = written(llama, use_cache=True)
    assert torch.equal(written(llama, use_cache=True, custom_generate=drafted), own)
