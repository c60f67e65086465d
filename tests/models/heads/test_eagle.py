"""EAGLE and EAGLE-3 heads: what they compute, and the published files that they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from draftwise.errors import UserError
from draftwise.models.heads.eagle import Eagle, Eagle3, load_eagle, new_eagle
from tests.models.heads import folders, formula
from tests.tiny import model

IDS = list(range(3, 21, 2))  # the drafted tokens


def shapes_of(eagle3: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of a published head for the tiny Llama, but for its vocabulary's maps."""
    shapes = folders.layer("midlayer" if eagle3 else "layers.0", "llama", first=eagle3)
    if eagle3:
        return shapes | {"fc.weight": (16, 48), "norm.weight": (16,), "lm_head.weight": (9, 16)}
    del shapes["layers.0.input_layernorm.weight"]
    return shapes | {"fc.weight": (16, 32), "fc.bias": (16,)}


def published(folder: Path, *, eagle3: bool, file: str = "model.safetensors", prefix: str = "") -> Path:
    """A head as its authors publish it, with random numbers."""
    tensors = folders.random(shapes_of(eagle3)) | (folders.maps(IDS) if eagle3 else {})
    config = folders.SHAPE | {"model_type": "llama", "num_hidden_layers": 1, "torch_dtype": "float16"}
    folders.write(folder, config | ({"draft_vocab_size": 9} if eagle3 else {}), {})
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    (folder / "model.safetensors").unlink()
    if file.endswith(".bin"):
        torch.save(named, folder / file)
    else:
        save_file(named, folder / file)
    return folder


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("eagle3", [False, True])
def test_published_files_load(tmp_path: Path, eagle3: bool, file: str, prefix: str) -> None:
    target = model("llama")
    folder = published(tmp_path / "head", eagle3=eagle3, file=file, prefix=prefix)
    head = load_eagle(folder, target)
    assert type(head) is (Eagle3 if eagle3 else Eagle) and not head.training
    assert head.layers_read == ((1, 1, 0) if eagle3 else (-1,))
    assert next(head.parameters()).dtype == torch.float64
    if eagle3:
        assert head.ids is not None and head.ids.tolist() == IDS
    own = {name for name in head.state_dict() if "rotary" not in name}
    assert own == shapes_of(eagle3).keys() | ({"d2t", "t2d"} if eagle3 else set())


def test_a_layer_may_be_named_as_others_name_it(tmp_path: Path) -> None:
    """`layers.0` for `midlayer`, no `t2d`, and the shape of the layer in a part of its own."""
    folder = published(tmp_path / "head", eagle3=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors["t2d"]
    save_file(
        {n.replace("midlayer", "layers.0"): t for n, t in tensors.items()}, folder / "model.safetensors"
    )
    raw = json.loads((folder / "config.json").read_text())
    drafted = raw.pop("draft_vocab_size")
    nested = {"transformer_layer_config": raw, "draft_vocab_size": drafted, "norm_before_residual": True}
    nested |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, -1]}}
    (folder / "config.json").write_text(json.dumps(nested))
    head = load_eagle(folder, model("llama"))
    assert isinstance(head, Eagle3) and head.norms_residual
    assert head.layers_read == (0, 1, -1) and head.t2d.nonzero().ravel().tolist() == IDS


@pytest.mark.parametrize("eagle3", [False, True])
def test_what_is_saved_is_loaded_again(tmp_path: Path, eagle3: bool) -> None:
    target = model("llama")
    head = new_eagle(target, eagle3=eagle3, drafted=9 if eagle3 else 0)
    if isinstance(head, Eagle3):
        head.choose([1, 2, 4, 6, 8, 10, 12, 20, 22])
    head.save(tmp_path / "head")
    again = load_eagle(tmp_path / "head", target)
    tokens, states = torch.tensor([[3, 4, 5]]), torch.randn(1, 3, 16, dtype=torch.float64)
    torch.testing.assert_close(again(tokens, states), head(tokens, states))
    torch.testing.assert_close(again.logits(states), head.logits(states))
    assert (again.ids is None) == (head.ids is None)
    assert not list((tmp_path / "head").glob("*.part"))


def test_eagle_is_the_papers_formula(tmp_path: Path) -> None:
    target = model("llama", dtype=torch.float32)
    folder = published(tmp_path / "head", eagle3=False)
    w, head = load_file(folder / "model.safetensors"), load_eagle(folder, target)
    tokens, states = torch.tensor([[3, 4, 5, 6]]), torch.randn(1, 4, 16)
    words = target.get_input_embeddings()(tokens)[0]
    x = torch.cat((words, states[0]), -1) @ w["fc.weight"].T + w["fc.bias"]
    wanted = formula.perceptron(x + formula.attention(x, w, "layers.0"), w, "layers.0")
    torch.testing.assert_close(head(tokens, states)[0], wanted)
    torch.testing.assert_close(head.logits(wanted), target.lm_head(wanted))


@pytest.mark.parametrize("eagle3", [False, True])
def test_a_cache_gives_what_reading_it_all_gives(eagle3: bool) -> None:
    head = new_eagle(model("llama"), eagle3=eagle3).eval()
    tokens, states = torch.tensor([[3, 4, 5, 6]]), torch.randn(1, 4, 16, dtype=torch.float64)
    cache = DynamicCache()
    head(tokens[:, :3], states[:, :3], cache=cache)
    place = torch.tensor([[3]])
    last = head(tokens[:, 3:], states[:, 3:], position_ids=place, cache=cache)
    torch.testing.assert_close(last, head(tokens, states)[:, 3:])


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    target = model("llama")
    folder = published(tmp_path / "head", eagle3=False)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"fc.weight": torch.zeros(16, 30)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"fc.weight is \(16, 30\) where this target asks for \(16, 32\)"):
        load_eagle(folder, target)
    save_file(tensors | {"layers.0.extra.weight": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"layers.0.extra.weight is \(3,\) .* none"):
        load_eagle(folder, target)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"hidden_size": 32}))
    with pytest.raises(UserError, match="32 wide and the target 16"):
        load_eagle(folder, target)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config.json"):
        load_eagle(folder, target)
    with pytest.raises(UserError, match="no model"):
        load_eagle(tmp_path / "nothing" / "here", target)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


def test_a_pickle_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    folder = published(tmp_path / "head", eagle3=False, file="pytorch_model.bin")
    torch.save({"fc.weight": Evil(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="could run code"):
        load_eagle(folder, model("llama"))
    assert not (tmp_path / "ran").exists()
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="no weights"):
        load_eagle(folder, model("llama"))
