"""DFlash's heads: the formula that they stand for, in both published layouts, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftwise.errors import UserError
from draftwise.models.heads.dflash import DFlash, make_dflash
from draftwise.models.heads.files import read_head
from tests.models.heads import folders, formula
from tests.models.heads.test_published import edit
from tests.tiny import model

pytestmark = pytest.mark.filterwarnings("ignore:head .* was made for")


@pytest.fixture(scope="module")
def target() -> Any:
    return model("llama", dtype=torch.float32)


def load(folder: Path, target: Any) -> DFlash:
    return make_dflash(read_head(str(folder)), target)


def slides(folder: Path, **more: Any) -> Path:
    """The second layer sees a window of five positions."""
    raw = json.loads((folder / "config.json").read_text())
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}
    inner = raw["transformer_layer_config"] | kinds | {"use_sliding_window": True}
    edit(folder, {"transformer_layer_config": inner} | more, {}, ())
    return folder


@pytest.mark.parametrize(
    ("case", "window", "causal"),
    [("speculators", 0, False), ("authors", 0, False), ("window", 5, True), ("wide window", 5, False)],
)
def test_it_is_the_formula(tmp_path: Path, target: Any, case: str, window: int, causal: bool) -> None:
    """A text in two pieces and another one beside it, of other length, in one batch."""
    folder = folders.dflash(tmp_path / "head", authors=case == "authors")
    if window:
        slides(folder, sliding_window_non_causal=not causal)
    w, head = load_file(folder / "model.safetensors"), load(folder, target)
    assert head.layers_read == ((1, -1) if case == "authors" else (0, 1)) and head.size == 4
    own = target.get_input_embeddings().weight.detach()
    table, out = w.get("embed_tokens.weight", own), w.get("lm_head.weight", target.lm_head.weight.detach())
    texts = [torch.randn(9, 32), torch.randn(3, 32)]
    blocks = torch.tensor([[3, 2, 2, 2], [8, 2, 2, 2]])
    parts = [torch.cat((head.context(t[:2], 0), head.context(t[2:], 2)), dim=3) for t in texts]
    padded = torch.zeros(2, 2, 2, 2, 9, 8)
    for row, part in enumerate(parts):
        padded[:, :, row, :, : part.shape[3]] = part
    states = head(blocks, torch.tensor([9, 3]), padded)
    for row, text in enumerate(texts):
        wanted = formula.dflash(table[blocks[row]], text, w, depth=2, window=window, causal=causal)[1:]
        torch.testing.assert_close(states[row], wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(head.logits(states)[row], wanted @ out.T, rtol=1e-4, atol=1e-5)


def test_a_head_may_predict_from_the_last_known_token_on(tmp_path: Path, target: Any) -> None:
    head = load(folders.dflash(tmp_path / "head", sample_from_anchor=True), target)
    assert head(torch.tensor([[3, 2, 2, 2]]), torch.tensor([1]), torch.zeros(2, 2, 1, 2, 1, 8)).shape[1] == 4


def test_layers_that_no_setting_names_are_spread_as_the_authors_do(tmp_path: Path) -> None:
    from draftwise.models.heads.dflash import _spread

    assert _spread(36, 5) == [1, 9, 17, 25, 33] and _spread(10, 1) == [5]


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...], str]] = {
    "layer ids": ({"aux_hidden_state_layer_ids": [1, 3]}, {}, (), "states after 3 layers .* has 2: choose"),
    "too few layers": ({"aux_hidden_state_layer_ids": [1]}, {}, (), "fc reads 32 numbers, and 1 .* 16"),
    "no mask": ({"mask_token_id": None}, {}, (), "no mask_token_id: add the id"),
    "no block": ({"block_size": None}, {}, (), "no block_size: add the number"),
    "empty block": ({"block_size": 0}, {}, (), "block_size is 0: a block has 2"),
    "layers of another type": (
        {"transformer_layer_config": folders.SHAPE | {"model_type": "qwen3", "num_hidden_layers": "two"}},
        {},
        (),
        "does not make a head .*num_hidden_layers",
    ),
    "mask beyond": ({"mask_token_id": 23}, {}, (), "mask token 23 is not among the target's 23 tokens"),
    "no d2t": ({}, {}, ("d2t",), "no tensor d2t"),
    "other vocabulary": ({}, {"embed_tokens.weight": torch.zeros(40, 16)}, (), "embedding has 40 tokens"),
    "missing": ({}, {}, ("layers.1.self_attn.q_norm.weight",), "q_norm.weight is missing"),
    "turned otherwise": ({"is_neox_style": False}, {}, (), "is_neox_style false"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, target: Any, case: str) -> None:
    settings, tensors, drop, said = WRONG[case]
    folder = folders.dflash(tmp_path / "head")
    edit(folder, settings, tensors, drop)
    with pytest.raises(UserError, match=said) as error:
        load(folder, target)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_another_width_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    from tests.tiny import CONFIGS

    config = CONFIGS["llama"]()
    config.hidden_size = 8
    folder = folders.dflash(tmp_path / "head", authors=True)
    with pytest.raises(UserError, match=r"fc reads 32 numbers, and 2 layers of this target, 8 wide, give 16"):
        load(folder, LlamaForCausalLM(config))
