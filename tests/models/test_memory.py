"""How much memory a model needs, by its files, and how much there is; names of published drafters."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models import hub, load, memory
from draftwise.models.cache_names import cache_in
from draftwise.models.hub import list_heads, list_smaller, size_of
from draftwise.models.load import load_model
from draftwise.models.memory import cache_bytes, footprint
from draftwise.models.zoo import find, list_zoo

CPU = torch.device("cpu")


def test_weights_are_counted_in_the_precision_that_they_are_loaded_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(find("zoo:general"))
    assert memory.weight_bytes(folder, "float32") == 2 * memory.weight_bytes(folder, torch.bfloat16)  # type: ignore
    assert memory.weight_bytes(folder, "auto") == memory.weight_bytes(folder, "bfloat16"), "as it is stored"
    monkeypatch.setattr(hub, "ask", lambda name: (True, 8_000_000_000))
    assert memory.weight_bytes("some/model", "float32") == 32_000_000_000
    monkeypatch.setattr(hub, "ask", lambda name: (None, None))
    assert memory.weight_bytes("some/model", "float32") is None


def test_one_line_before_loading_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with pytest.warns(
        DraftwiseWarning, match=r"'zoo:general' needs 0\.0 GB in float32, and 0\.0 GB are free"
    ):
        load_model("zoo:general", device="cpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10**12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model("zoo:general", device="cpu")


@pytest.mark.parametrize("has_kernel", [True, False])
def test_weights_that_stay_in_16_bits_are_counted_so(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_reads_16_bits", lambda: has_kernel)
    free = memory.weight_bytes(str(find("zoo:general")), "auto")
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", DraftwiseWarning)
        load_model("zoo:general", device="cpu", lazy=True)
    assert [str(one.message).partition(" needs")[0] for one in seen] == ["model 'zoo:general'"] * (
        not has_kernel
    )


def test_free_memory_is_within_the_control_groups_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = memory.free_bytes(CPU)
    assert free is not None and free > 0
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_bytes(CPU) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory.free_bytes(CPU) or 0) > 2000
    assert memory.free_bytes(torch.device("meta")) is None


def test_the_footprint_of_the_bundled_models_is_that_of_the_loaded_ones() -> None:
    for one in list_zoo()[:2]:
        found = footprint(Path(one.path))
        model = load_model(one.name)
        assert found.parameters == model.num_parameters()
        assert found.weight_bytes == 2 * model.num_parameters(), "stored as bfloat16"


def test_the_kv_cache_is_what_a_model_allocates() -> None:
    model = load_model("zoo:target", dtype="bfloat16")
    with torch.no_grad():
        cache = cache_in(model(torch.ones((1, 50), dtype=torch.long), use_cache=True))
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    place = Path(list_zoo()[0].path)
    assert footprint(place).cache_bytes == held * 1000 // 50


def test_configurations_of_other_families() -> None:
    assert cache_bytes({"n_layer": 12, "n_head": 12, "n_embd": 768}) == 2 * 12 * 768 * 2 * 1000
    grouped = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
    assert cache_bytes({"text_config": grouped}) == 2 * 2 * 2 * 8 * 2 * 1000
    assert cache_bytes({"model_type": "strange"}) is None


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="holds no settings"):
        footprint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert footprint(tmp_path).parameters is None
    (tmp_path / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0nope!")
    with pytest.raises(UserError, match="download it again"):
        footprint(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(UserError, match="holds no Safetensors"):
        footprint(tmp_path)


def test_a_data_set_of_a_models_name_hides_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def downloaded(kind: str, *dates: float) -> Any:
        revisions = [SimpleNamespace(last_modified=at, snapshot_path=Path(f"{kind}{at}")) for at in dates]
        return SimpleNamespace(repo_id="some/name", repo_type=kind, revisions=revisions)

    repos = [downloaded("model", 1, 3, 2), downloaded("dataset", 4)]
    for found in (repos, repos[::-1]):
        monkeypatch.setattr(
            "huggingface_hub.scan_cache_dir", lambda found=found: SimpleNamespace(repos=found)
        )
        assert hub.cached_models() == {"some/name": Path("model3")}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-8B", 8.0),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", 0.36),
        ("lmsys/vicuna-13b-v1.3", 13.0),
        ("Qwen/Qwen2.5-0.5B", 0.5),
        ("gpt2", None),
        ("a/b4b", None),
    ],
)
def test_the_size_that_a_name_states(name: str, size: float | None) -> None:
    assert size_of(name) == size


def test_smaller_relatives_keep_the_name_and_change_the_size() -> None:
    assert "Qwen/Qwen3-0.6B" in list_smaller("Qwen/Qwen3-8B")
    assert "meta-llama/Llama-3.2-1B-Instruct" in list_smaller("meta-llama/Llama-3.2-70B-Instruct")
    assert "lmsys/vicuna-7b-v1.3" in list_smaller("lmsys/vicuna-33b-v1.3")
    assert all((size_of(name) or 0) <= 2.0 for name in list_smaller("Qwen/Qwen3-8B"))
    assert list_smaller("gpt2") == list_smaller("Qwen3-8B") == []


def test_heads_are_named_as_their_publishers_do() -> None:
    """The names of heads that their papers publish."""
    assert ("eagle", "yuhuili/EAGLE-LLaMA3-Instruct-8B") in list_heads("meta-llama/Meta-Llama-3-8B-Instruct")
    assert ("eagle", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B") in list_heads("meta-llama/Llama-3.1-8B-Instruct")
    assert ("eagle", "yuhuili/EAGLE-Vicuna-13B-v1.3") in list_heads("lmsys/vicuna-13b-v1.3")
    assert ("medusa", "FasterDecoding/medusa-vicuna-7b-v1.3") in list_heads("lmsys/vicuna-7b-v1.3")
    assert ("eagle", "AngelSlim/Qwen3-8B_eagle3") in list_heads("Qwen/Qwen3-8B")
    assert list_heads("zoo:target") == []
