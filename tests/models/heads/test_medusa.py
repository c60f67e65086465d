"""Medusa heads: what they compute, and the published files that they come in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwise.errors import UserError
from draftwise.models.heads.medusa import Medusa, load_medusa, new_medusa
from tests.tiny import VOCAB, model


def published(folder: Path, *, file: str, prefix: str, heads: int = 3, blocks: int = 1) -> Path:
    """Heads as their authors publish them, with random numbers; their configuration counts two."""
    torch.manual_seed(5)
    tensors = {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{prefix}{head}.{block}.linear.weight"] = torch.randn(16, 16)
            tensors[f"{prefix}{head}.{block}.linear.bias"] = torch.randn(16)
        tensors[f"{prefix}{head}.{blocks}.weight"] = torch.randn(VOCAB, 16)
    folder.mkdir()
    raw = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "a/b"}
    (folder / "config.json").write_text(json.dumps(raw))
    if file.endswith(".pt"):
        torch.save(tensors, folder / file)
    else:
        save_file(tensors | {"model.layers.0.mlp.up_proj.weight": torch.zeros(2)}, folder / file)
    return folder


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(
    ("file", "prefix"),
    [("medusa_lm_head.pt", ""), ("medusa_lm_head.safetensors", ""), ("model.safetensors", "medusa_head.")],
)
def test_published_files_load(tmp_path: Path, file: str, prefix: str, blocks: int) -> None:
    folder = published(tmp_path / "heads", file=file, prefix=prefix, blocks=blocks)
    heads = load_medusa(folder, model("llama"))
    assert len(heads.medusa_head) == 3 and heads.blocks == blocks and not heads.tied and not heads.training
    assert heads(torch.randn(2, 5, 16, dtype=torch.float64)).shape == (3, 2, 5, VOCAB)


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_is_loaded_again(tmp_path: Path, tied: bool) -> None:
    target = model("llama")
    heads = new_medusa(target, heads=2, tied=tied)
    torch.nn.init.normal_(heads.medusa_head[1][0].linear.weight)  # type: ignore[index]
    heads.save(tmp_path / "heads")
    again = load_medusa(tmp_path / "heads", target)
    states = torch.randn(5, 16, dtype=torch.float64)
    assert again.tied == tied and len(again.state_dict()) == (4 if tied else 6)
    torch.testing.assert_close(again(states), heads(states))


@pytest.mark.parametrize("tied", [False, True])
def test_new_heads_say_what_the_target_says(tied: bool) -> None:
    target = model("llama")
    states = torch.randn(5, 16, dtype=torch.float64)
    for logits in new_medusa(target, tied=tied)(states):
        torch.testing.assert_close(logits, target.lm_head(states))


def test_a_head_is_residual_blocks_and_an_output_layer(tmp_path: Path) -> None:
    target = model("llama")
    heads = load_medusa(published(tmp_path / "h", file="medusa_lm_head.pt", prefix="", blocks=2), target)
    w = heads.medusa_head.state_dict()
    x = states = torch.randn(5, 16, dtype=torch.float64)
    for block in range(2):
        x = x + torch.nn.functional.silu(x @ w[f"1.{block}.linear.weight"].T + w[f"1.{block}.linear.bias"])
    torch.testing.assert_close(heads(states)[1], x @ w["1.2.weight"].T)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    target = model("llama")
    folder = published(tmp_path / "heads", file="model.safetensors", prefix="medusa_head.")
    wide = Medusa(model("gpt2")).medusa_head.state_dict()
    save_file({k: t[:8].clone() for k, t in wide.items()}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"0.0.linear.bias is \(8,\) where this target asks for \(16,\)"):
        load_medusa(folder, target)
    save_file({"lm_head.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"no tensor 0.0.linear.weight"):
        load_medusa(folder, target)
