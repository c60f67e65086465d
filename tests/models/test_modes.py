"""Training mode: texts are written without dropout, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise import UserError, transformers_generate
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with, written
from tests.hosts.prompted import bart, shown
from tests.tiny import VOCAB, model, own_text, random_texts


def dropping(name: str, part: str) -> Any:
    """A model whose attention, or one module of it, is in training mode and drops much."""
    made = model(name)
    for module in made.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    made.get_submodule(part).train()
    return made


@pytest.mark.parametrize(
    ("name", "part"), [("llama", ""), ("llama", "model.layers.1.self_attn"), ("gpt2", "transformer.drop")]
)
def test_a_text_is_written_without_dropout(name: str, part: str) -> None:
    (prompt,) = random_texts((30,))
    truth = own_text(model(name), prompt, 12)
    made = dropping(name, part)
    modes = [module.training for module in made.modules()]
    assert own_text(made, prompt, 12) != truth, "nothing is dropped"
    loop = loop_with(HFTarget(made, chunk=8), {"self": LMDrafter(made, VOCAB)}, "static-2")
    rounds = list(written(loop, [prompt] * 2, 12, 2))
    assert rounds == [truth] * 2
    ids = torch.tensor([prompt])
    decode = transformers_generate(drafters=[made], policy="static-2", tokenizer=object())
    out = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, custom_generate=decode)
    assert out[0, 30:].tolist() == truth
    assert [module.training for module in made.modules()] == modes and any(modes)


def test_an_encoder_that_has_read_with_dropout_is_refused() -> None:
    made = bart().train()
    with pytest.raises(UserError, match=r"BartForConditionalGeneration is in training mode.*eval\(\)"):
        made.generate(**shown("bart", 1), max_new_tokens=3, custom_generate=transformers_generate())
