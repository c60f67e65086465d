"""PEFT: the adapted model's text, whatever adapts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise import UserError, transformers_generate
from draftwise.models.cache_names import CACHE, cache_in
from tests.tiny import model

peft = pytest.importorskip("peft")

IDS = torch.tensor([[3, 4, 5, 3, 4], [8, 9, 7, 8, 9]])
EVEN = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
LEFT = torch.tensor([[0, 0, 3, 4, 5], [7, 8, 9, 7, 8]])
PADDED = {"input_ids": LEFT, "attention_mask": (LEFT != 0).long()}
ADAPTERS: dict[str, Any] = {
    "lora": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False
    ),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "p-tuning": lambda: peft.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=8
    ),
}


@pytest.fixture(scope="module")
def drafted() -> Any:
    return transformers_generate(drafters=["ngram"], policy="static-3", tokenizer=object())


def sound(adapted: Any) -> bool:
    """Whether the logits of PEFT's own `generate` are those of the adapted model when it reads the text anew.

    Prompt learning of PEFT 0.21 knows the cache by its name before Transformers 5.24 alone: with later ones a
    prompt is put before every token, and a prefix is lost.
    """
    asked = {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
    out = adapted.generate(**EVEN, **asked, pad_token_id=0)
    ids = out.sequences[:, :-1]
    with torch.no_grad():
        said = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -6:]
    return torch.allclose(torch.stack(out.logits, dim=1).to(said), said, atol=1e-4)


def with_drafts(adapted: Any, drafted: Any, **given: Any) -> Any:
    """The text with drafts; None if they are refused, since PEFT gives a prompt again."""
    try:
        return adapted.generate(**given, custom_generate=drafted)
    except UserError as error:
        assert "given a prompt again" in str(error)
        return None


@pytest.mark.parametrize("more", [{}, {"output_scores": True, "eos_token_id": 4}], ids=["text", "scores"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapted_models_write_their_own_text(drafted: Any, kind: str, adapter: str, more: Any) -> None:
    torch.manual_seed(1)
    base = model(kind)
    settings = {"max_new_tokens": 12, "pad_token_id": 0, "return_dict_in_generate": True, **more}
    plain = base.generate(**EVEN, **settings).sequences
    adapted = peft.get_peft_model(base, ADAPTERS[adapter]()).double().eval()
    own = adapted.generate(**EVEN, **settings)
    whole = sound(adapted)
    assert whole or (CACHE != "past_key_values" and adapter != "lora")
    assert not (whole and torch.equal(own.sequences, plain))
    out = with_drafts(adapted, drafted, **EVEN, **settings)
    if out is None:
        assert not whole
        return
    assert torch.equal(out.sequences, own.sequences)
    assert cache_in(out).get_seq_length() == cache_in(own).get_seq_length()
    if more:
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(out.scores, own.scores, strict=True))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_padded_batches_are_exact(drafted: Any, adapter: str) -> None:
    adapted = peft.get_peft_model(model("llama"), ADAPTERS[adapter]()).double().eval()
    settings = {"max_new_tokens": 12, "pad_token_id": 0}
    own = adapted.generate(**PADDED, **settings)
    out = with_drafts(adapted, drafted, **PADDED, **settings)
    assert not sound(adapted) if out is None else torch.equal(out, own)


def test_adapters_that_differ_by_row_are_refused(drafted: Any) -> None:
    adapted = peft.get_peft_model(model("llama"), ADAPTERS["lora"]()).double().eval()
    with pytest.raises(UserError, match="adapter_names"):
        adapted.generate(
            **EVEN, max_new_tokens=4, adapter_names=["default", "__base__"], custom_generate=drafted
        )


def test_embeddings_are_obeyed(drafted: Any) -> None:
    target = model("llama")
    soft = target.get_input_embeddings()(IDS).detach().clone()
    soft[:, :2] = torch.randn(2, 2, soft.shape[-1], generator=torch.Generator().manual_seed(0)) * 3
    for given in ({"input_ids": IDS, "inputs_embeds": soft}, {"inputs_embeds": soft}):
        given |= {"max_new_tokens": 10, "pad_token_id": 0}
        own = target.generate(**given)
        assert torch.equal(target.generate(**given, custom_generate=drafted), own)
