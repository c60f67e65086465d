"""Heads in the `speculators` format: the formula that they stand for, and what does not fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.heads import files
from draftwise.models.heads.eagle import Eagle3, PEagle, load_eagle
from tests.models.heads import folders, formula
from tests.tiny import VOCAB, model


@pytest.fixture(scope="module")
def target() -> Any:
    return model("llama", dtype=torch.float32)


def weights(folder: Path) -> formula.Weights:
    return load_file(folder / "model.safetensors")


@pytest.mark.filterwarnings("ignore:head .* was made for")
@pytest.mark.parametrize(
    ("layers", "depth", "settings"),
    [
        ("llama", 1, {}),
        ("qwen3", 2, {"norm_before_residual": True, "norm_before_fc": True}),
        ("llama", 2, {"fc_norm": True, "norm_output": True}),
    ],
)
def test_eagle3_is_the_formula_step_by_step(
    tmp_path: Path, target: Any, layers: str, depth: int, settings: dict[str, Any]
) -> None:
    """Two drafted steps: the second reads the first one's state in place of the target's features."""
    ids = [0, 1, -1] if layers == "llama" else [1, 0]
    settings = settings | {"eagle_aux_hidden_state_layer_ids": ids}
    folder = folders.eagle3(tmp_path / "head", layers=layers, depth=depth, **settings)
    w, head = weights(folder), load_eagle(folder, target)
    assert isinstance(head, Eagle3) and head.layers_read == tuple(ids)
    assert head.ids is not None and head.ids.tolist() == folders.IDS
    tokens, features = torch.tensor([3, 4, 5, 6]), torch.randn(4, len(ids) * 16)
    states = formula.read(features, w, len(ids))
    torch.testing.assert_close(head.read(features[None])[0], states)
    for step in range(2):
        words = w["embed_tokens.weight"][tokens]
        after = formula.eagle3(words, states, w, norms="norm_before_residual" in settings, depth=depth)
        normed = formula.norm(after, w["norm.weight"])
        onward = normed if "norm_output" in settings else after
        mine = head(tokens[None], states[None])
        torch.testing.assert_close(mine[0], onward)
        torch.testing.assert_close(head.logits(mine)[0], normed @ w["lm_head.weight"].T)
        states, tokens = torch.cat((states, onward[-1:])), torch.cat((tokens, torch.tensor([7 + step])))


def test_a_head_without_features_continues_from_the_last_state(tmp_path: Path, target: Any) -> None:
    """`use_aux_hidden_state` off, and no output layer: the target's rows of the drafted tokens."""
    folder = folders.eagle3(tmp_path / "head", eagle_config={"use_aux_hidden_state": False})
    w = weights(folder)
    dropped = ("fc.weight", "lm_head.weight")
    save_file({k: t for k, t in w.items() if k not in dropped}, folder / "model.safetensors")
    with pytest.warns(DraftwiseWarning, match="org/Tiny"):
        head = load_eagle(folder, named(target))
    assert head.layers_read == (-1,)
    states = torch.randn(1, 3, 16)
    torch.testing.assert_close(head.read(states), states)
    rows = target.lm_head.weight[folders.IDS]
    torch.testing.assert_close(head.logits(states), formula.norm(states, w["norm.weight"]) @ rows.T)


def named(target: Any, name: str = "org/Other") -> Any:
    target.name_or_path = name
    return target


@pytest.mark.parametrize(("name", "said"), [("org/Other", True), ("/models/tiny/", False)])
def test_a_head_for_another_target_is_warned_of(tmp_path: Path, name: str, said: bool) -> None:
    target = named(model("llama"), name)
    folder = folders.eagle3(tmp_path / "head")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        load_eagle(folder, target)
    texts = [str(one.message) for one in found if one.category is DraftwiseWarning]
    assert len(texts) == said
    if said:
        assert "made for org/Tiny (LlamaForCausalLM), and the target is org/Other" in texts[0]


def test_a_head_for_another_architecture_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(
        DraftwiseWarning, match=r"LlamaForCausalLM.*the target is unnamed \(Qwen3ForCausalLM\)"
    ):
        load_eagle(folders.eagle3(tmp_path / "head"), named(model("qwen3"), ""))


def edit(folder: Path, settings: dict[str, Any], tensors: dict[str, Any], drop: tuple[str, ...]) -> None:
    """Change the files of a head; settings of None, and tensors to drop, are removed."""
    raw = json.loads((folder / "config.json").read_text()) | settings
    raw = {key: value for key, value in raw.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    kept = {k: t for k, t in weights(folder).items() if k not in drop}
    save_file(kept | tensors, folder / "model.safetensors")


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...], str]] = {
    "other type": (
        {"speculators_model_type": "dspark"},
        {},
        (),
        "'dspark' is not supported: choose a head of",
    ),
    "layer ids": (
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 7]},
        {},
        (),
        "reads layer 7 .* layers 0 to 1: choose",
    ),
    "too few layers": (
        {"eagle_aux_hidden_state_layer_ids": [0, 1]},
        {},
        (),
        "fc reads 48 numbers, and 2 .* 32",
    ),
    "other width": ({}, {"fc.weight": torch.zeros(16, 96)}, (), "fc reads 96 .* 16 wide, give 48"),
    "other embedding": ({}, {"embed_tokens.weight": torch.zeros(40, 16)}, (), "embedding has 40 tokens"),
    "no d2t": ({}, {}, ("d2t",), "drafts 9 of the target's 23 tokens, and has no tensor d2t"),
    "all of another target's": (
        {"transformer_layer_config": {"model_type": "llama", "vocab_size": 9}},
        {},
        ("d2t",),
        "drafts 9 tokens, and the target has 23: choose the head made for this target",
    ),
    "d2t beyond": ({}, {"d2t": torch.full((9,), 20)}, (), "from 20 to 28, and the target has 23"),
    "d2t twice": ({}, {"d2t": torch.arange(9, 0, -1)}, (), "1 different tokens for 9"),
    "d2t too long": ({}, {"d2t": torch.zeros(12, dtype=torch.long)}, (), r"d2t is \(12,\) .* \(9,\)"),
    "layers of another type": (
        {"eagle_aux_hidden_state_layer_ids": "abc"},
        {},
        (),
        "do not make a head .TypeError.*: fetch",
    ),
    "settings of another type": ({"transformer_layer_config": [1]}, {}, (), "do not make a head .TypeError"),
    "size of another type": ({"draft_vocab_size": "x"}, {}, ("d2t",), "do not make a head .ValueError"),
    "embedding of no size": ({}, {"embed_tokens.weight": torch.zeros(())}, (), "do not make a head .TypeErr"),
    "missing tensor": ({}, {}, ("norm.weight",), r"tensor norm.weight is missing where this target asks"),
    "missing layer": ({}, {}, ("layers.0.mlp.up_proj.weight",), r"midlayer.mlp.up_proj.weight is missing"),
    "not a mapping": ({"transformer_layer_config": {"model_type": "gpt2"}}, {}, (), "of the kind 'gpt2'"),
    "unknown layers": (
        {"transformer_layer_config": {"model_type": "nope"}},
        {},
        (),
        "does not make a head.*nope",
    ),
}


@pytest.mark.filterwarnings("ignore:head .* was made for")
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, target: Any, case: str) -> None:
    settings, tensors, drop, said = WRONG[case]
    folder = folders.eagle3(tmp_path / "head")
    load_eagle(folder, target)
    edit(folder, settings, tensors, drop)
    with pytest.raises(UserError, match=said) as error:
        load_eagle(folder, target)
    assert str(folder) in str(error.value) or case == "not a mapping"
    assert "\n" not in str(error.value)


def test_no_memory_is_no_wrong_file(tmp_path: Path, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(files, "read_tensors", fail)
    with pytest.raises(UserError, match=r"^out of memory for the head .*: free some, or take a smaller"):
        load_eagle(folders.eagle3(tmp_path / "head"), target)


@pytest.mark.filterwarnings("ignore:head .* was made for")
def test_windows_and_other_widths_are_refused(tmp_path: Path, target: Any) -> None:
    folder = folders.eagle3(tmp_path / "head", layers="qwen3")
    raw = json.loads((folder / "config.json").read_text())
    window = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
    edit(folder, {"transformer_layer_config": raw["transformer_layer_config"] | window}, {}, ())
    with pytest.raises(UserError, match="see a window of 8 tokens: choose"):
        load_eagle(folder, target)
    wide = raw["transformer_layer_config"] | {"hidden_size": 32}
    edit(folder, {"transformer_layer_config": wide}, {}, ("embed_tokens.weight",))
    with pytest.raises(UserError, match="32 wide and the target 16"):
        load_eagle(folder, target)


@pytest.mark.filterwarnings("ignore:head .* was made for")
@pytest.mark.parametrize("authors", [False, True])
def test_p_eagle_is_the_formula(tmp_path: Path, target: Any, authors: bool) -> None:
    """Pairs of the mask after the known ones: one pass is what reading them in turn gives."""
    folder = folders.eagle3(tmp_path / "head", kind="peagle", layers="qwen3")
    w = weights(folder)
    if authors:  # without the library's settings: one flat mapping, and the name that vLLM reads
        flat = folders.SHAPE | {"num_hidden_layers": 1, "model_type": "llama", "ptd_token_id": 2}
        flat |= {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
        (folder / "config.json").write_text(json.dumps(flat))
    head = load_eagle(folder, target)
    assert isinstance(head, PEagle) and head.mask_token == 2 and head.longest == (0 if authors else 4)
    tokens, features = torch.tensor([3, 4, 5, 2, 2]), torch.randn(5, 48)
    features[3:] = w["mask_hidden"][0, 0]
    torch.testing.assert_close(head.mask_hidden[0], features[3:4])
    after = formula.eagle3(w["embed_tokens.weight"][tokens], formula.read(features, w, 3), w, norms=False)
    mine = head(tokens[None], head.read(features[None]))
    torch.testing.assert_close(mine[0], after)
    edit(folder, {"mask_token_id": None, "ptd_token_id": None}, {}, ())
    with pytest.raises(UserError, match="no mask_token_id: add"):
        load_eagle(folder, target)


def test_names_of_the_first_release_are_read(tmp_path: Path, target: Any) -> None:
    """EAGLE of `speculators` 0.1: `fusion_fc` and `transformer`."""
    shapes: dict[str, tuple[int, ...]] = {"fusion_fc.weight": (16, 32)}
    shapes |= folders.layer("transformer", "llama")
    shapes.pop("transformer.input_layernorm.weight")
    config = folders.speculators("eagle", "llama", 1, draft_vocab_size=None)
    folder = folders.write(tmp_path / "head", config, folders.random(shapes))
    head, w = load_eagle(folder, named(target, "Tiny")), weights(folder)
    w = {name.replace("transformer.", "layers.0."): t for name, t in w.items()}
    tokens, states = torch.tensor([3, 4, 5]), torch.randn(3, 16)
    words = target.get_input_embeddings()(tokens)
    x = torch.cat((words, states), -1) @ w["fusion_fc.weight"].T
    wanted = formula.perceptron(x + formula.attention(x, w, "layers.0"), w, "layers.0")
    torch.testing.assert_close(head(tokens[None], states[None])[0], wanted)
    assert head.logits(wanted).shape == (3, VOCAB)


def test_a_head_in_this_format_is_suggested(tmp_path: Path) -> None:
    from draftwise.cli.lists import kind_of_head

    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(folders.SHAPE))
    assert kind_of_head(folders.eagle3(tmp_path / "a", kind="peagle"), target) == "eagle"
    assert kind_of_head(folders.dflash(tmp_path / "b", authors=True), target) == "eagle"
    (target / "config.json").write_text(json.dumps(folders.SHAPE | {"hidden_size": 32}))
    assert kind_of_head(tmp_path / "a", target) is None
