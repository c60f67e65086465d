"""Layers of multi-token prediction in a model's own files: found, loaded, and the published formula."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.errors import UserError
from draftwise.models.heads.mtp import load_mtp
from tests.models.heads import folders
from tests.models.heads.mtp_folders import AFTER, LAYOUTS, loaded, reference, written
from tests.tiny import model

FAMILIES = list(LAYOUTS)


close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)  # Transformers' norms are in float32


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_formula_step_by_step(tmp_path: Path, family: str) -> None:
    """Three drafted tokens: later steps continue from the layer's own states."""
    w = written(tmp_path, family)
    target = loaded(w.folder)
    head = load_mtp(w.folder, target)
    assert not hasattr(head, "embed_tokens") and not hasattr(head, "lm_head")  # the same as the model's
    assert next(head.layer.parameters()).dtype == torch.float64
    text = [3, 4, 5, 6, 7]
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, :-1].detach()
    tokens = torch.tensor(text[1:])
    for step in range(3):
        words = target.get_input_embeddings()(tokens).detach()
        onward, last = reference(w, family, words, states)
        mine = head(tokens[None], head.read(states[None])).detach()
        close(mine[0], onward)
        close(head.logits(mine)[0], target.lm_head(last).detach())
        states = torch.cat((states, onward[-1:]))
        tokens = torch.cat((tokens, torch.tensor([8 + step])))


def changed(folder: Path, drop: str, tensors: dict[str, torch.Tensor]) -> None:
    """Change the weights of a folder; names with this in them are removed."""
    file = folder / "model.safetensors"
    kept = {key: t for key, t in load_file(file).items() if not drop or drop not in key}
    save_file(kept | tensors, file, metadata={"format": "pt"})


def test_its_own_embedding_and_output_layer_are_used_where_they_differ(tmp_path: Path) -> None:
    w = written(tmp_path, "glm-4.5")
    mine, head = torch.randn(23, 16).double(), torch.randn(23, 16).double()
    changed(tmp_path, "", {f"{AFTER}embed_tokens.weight": mine, f"{AFTER}shared_head.head.weight": head})
    found: Any = load_mtp(tmp_path, loaded(tmp_path))
    torch.testing.assert_close(found.embed_tokens.weight.detach(), mine)
    torch.testing.assert_close(
        found.logits(torch.eye(16).double()[None]), found.norm(torch.eye(16).double()[None]) @ head.T
    )
    assert w.folder == tmp_path


def test_the_first_of_several_layers_is_used(tmp_path: Path) -> None:
    w = written(tmp_path, "mimo")
    target, extra = loaded(tmp_path), load_file(tmp_path / "model.safetensors")
    first = load_mtp(tmp_path, target)
    second = {
        k.replace("mtp_layers.0", "mtp_layers.1"): t + 1 for k, t in extra.items() if "mtp_layers.0" in k
    }
    changed(tmp_path, "", second)
    again = load_mtp(tmp_path, target)
    for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    assert w.folder == tmp_path


WRONG: dict[str, tuple[str, str, dict[str, tuple[int, ...]], str]] = {
    "none": ("mimo", "mtp", {}, r"holds? no tensor named mtp, and none of a layer after 1; name the folder"),
    "no projection": ("mimo", "input_proj", {}, "no tensor for a projection of two states to one"),
    "no norm": ("glm-4.5", "hnorm", {}, "no tensor for a norm of the states"),
    "no tensor": (
        "glm-4.5",
        f"{AFTER}self_attn.o_proj",
        {},
        r"self_attn.o_proj.weight is missing where a layer",
    ),
    "no expert": ("deepseek-v3", f"{AFTER}mlp.experts", {}, r"mlp.* is missing where a layer of this target"),
    "other width": (
        "mimo",
        "",
        {"model.mtp_layers.0.input_proj.weight": (32, 64)},
        r"is \(32, 64\) and the .*\(16, 32\)",
    ),
    "other vocabulary": (
        "glm-4.5",
        "",
        {f"{AFTER}embed_tokens.weight": (40, 16)},
        r"is \(40, 16\) and the .*\(23, 16\)",
    ),
    "other shape": (
        "mimo",
        "",
        {"model.mtp_layers.0.mlp.up_proj.weight": (30, 16)},
        r"up_proj.weight is \(30, 16\)",
    ),
    "quantised": (
        "mimo",
        "",
        {"model.mtp_layers.0.mlp.up_proj.weight_scale_inv": (1, 1)},
        "quantised .*bfloat16",
    ),
    "unknown layout": (
        "mimo",
        "mtp",
        {"model.mtp_block.0.x.weight": (16, 16)},
        "model.mtp_block.0.x.weight of un",
    ),
    "unknown tensor": (
        "qwen3-next",
        "",
        {"mtp.gate.weight": (16, 16)},
        "mtp.gate.weight of un",
    ),
    "second norm": ("qwen3-next", "", {"mtp.other_norm.weight": (16,)}, "other_norm.weight of un"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    family, drop, more, said = WRONG[case]
    written(tmp_path, family)
    target = loaded(tmp_path)
    changed(tmp_path, drop, {key: torch.ones(shape).double() for key, shape in more.items()})
    with pytest.raises(UserError, match=said) as error:
        load_mtp(tmp_path, target)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_a_target_without_such_layers_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "mimo")
    with pytest.raises(
        UserError, match=r"GPT2LMHeadModel is not supported, since its decoder has no rotary_emb"
    ):
        load_mtp(tmp_path, model("gpt2"))


def test_the_speculators_format_reads_the_token_first(tmp_path: Path) -> None:
    """The same names as MiMo's, and the other order."""
    w = written(tmp_path, "mimo")
    found = load_file(tmp_path / "model.safetensors")
    mine = {k.removeprefix("model."): t.clone() for k, t in found.items() if "mtp_layers" in k}
    config = folders.speculators("mtp", "qwen2", 3, draft_vocab_size=None, num_nextn_predict_layers=1)
    head = load_mtp(folders.write(tmp_path / "head", config, mine), loaded(tmp_path))
    assert not head.states_first and load_mtp(tmp_path, loaded(tmp_path)).states_first
    assert w.folder == tmp_path
