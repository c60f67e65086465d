from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from errno import ENOMEM
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from draftwise.errors import UserError
from draftwise.models import load as models
from draftwise.models.load import load_model, load_tokenizer, resolve
from draftwise.models.zoo import bundled

hf: Any = transformers  # its own types do not know that configurations take keywords
TINY: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a one-layer Llama in bfloat16."""
    folder = tmp_path_factory.mktemp("tiny")
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**TINY, vocab_size=50, bos_token_id=1, eos_token_id=2))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def edited(tiny: Path, tmp_path: Path) -> Callable[..., str]:
    """A copy of the tiny model with other lines in its config.json."""

    def edit(**changes: Any) -> str:
        folder = shutil.copytree(tiny, tmp_path / "edited")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return str(folder)

    return edit


def refused(name: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_model(name, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_auto_is_float32_on_the_cpu_alone() -> None:
    assert models._choose_dtype("auto", "cuda") == models._choose_dtype("auto", "mps") == "auto"
    model = load_model("zoo:general", device="cpu")
    assert model.dtype == torch.float32, "auto on the CPU"
    assert not model.training
    assert sum(p.numel() for p in model.parameters()) == bundled("zoo:general").parameters
    assert load_model("zoo:general", device="cpu", dtype="bfloat16").dtype == torch.bfloat16
    assert load_model("zoo:general", device="cpu", dtype=torch.float16).dtype == torch.float16


def test_tokenizer() -> None:
    tokenizer = load_tokenizer("zoo:target")
    text = "def naïve(x): return 'ß'"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_loading_is_silent_and_leaves_settings_as_they_were(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = hf.utils.logging.get_verbosity(), hf.utils.logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(str(tiny), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (hf.utils.logging.get_verbosity(), hf.utils.logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    "name", ["zoo:nothing", "./nowhere", "a/b/c", "", "no such model", "~no-such-user/model", __file__]
)
def test_names_that_cannot_be_models(name: str) -> None:
    assert repr(name) in refused(name)
    assert [resolve(one) for one in ("gpt2", "Qwen/Qwen3-0.6B")] == ["gpt2", "Qwen/Qwen3-0.6B"]


def test_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused("nobody/nothing")
    assert "'nobody/nothing'" in message
    assert "check the name, the network" in message
    with pytest.raises(UserError, match="tokenizer 'nobody/nothing'"):
        load_tokenizer("nobody/nothing")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("T5ForConditionalGeneration", "encoder-decoder"),
        ("BertForMaskedLM", "BertForMaskedLM"),
        ("LlamaForSequenceClassification", "LlamaForSequenceClassification"),
        ("LlamaModel", "LlamaModel"),
    ],
)
def test_other_kinds_of_models(tmp_path: Path, model: str, said: str) -> None:
    kind = getattr(hf, model)
    kind(kind.config_class(**TINY, d_model=16, d_kv=8, num_layers=1, vocab_size=9)).save_pretrained(tmp_path)
    message = refused(str(tmp_path))
    assert said in message
    assert "name a decoder-only text model" in message


def test_vision_language(tmp_path: Path) -> None:
    hf.LlavaConfig().save_pretrained(tmp_path)
    assert "reads images" in refused(str(tmp_path))


def test_a_model_that_reads_pictures_too_is_loaded_for_its_text(tmp_path: Path) -> None:
    """Gemma 3's class is what AutoModelForCausalLM gives."""
    text = {**TINY, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 50}
    config = hf.Gemma3Config(text_config=text, vision_config=TINY, mm_tokens_per_image=4)
    hf.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), device="cpu")
    assert type(loaded).__name__ == "Gemma3ForConditionalGeneration"


def test_code_in_the_folder_runs_only_when_trusted(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = shutil.copytree(tiny, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    assert "--trust-remote-code" in refused(str(folder))
    assert not (tmp_path / "ran").exists()
    assert type(load_model(str(folder), device="cpu", trust_remote_code=True)).__name__ == "OwnModel"
    assert (tmp_path / "ran").exists()


def test_pickles_are_not_read(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    assert "no weights" in refused(str(folder))
    torch.save({}, folder / "pytorch_model.bin")
    message = refused(str(folder))
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 2}, "model.layers.1"),
        ({"intermediate_size": 64}, "do not fit"),
        ({"model_type": "tomorrow"}, "'tomorrow'"),
    ],
)
def test_a_configuration_that_does_not_fit_its_weights(
    edited: Callable[..., str], changes: dict[str, Any], said: str
) -> None:
    assert said in refused(edited(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "16"}, "'hidden_size' expected int"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"architectures": 1}, "TypeError"),
        ({"text_config": None}, "AttributeError"),
    ],
)
def test_values_of_a_wrong_type_are_refused_with_the_name_of_the_file(
    edited: Callable[..., str], changes: dict[str, Any], said: str
) -> None:
    message = refused(edited(**changes))
    assert said in message and "config.json must be as save_pretrained writes" in message


@pytest.mark.parametrize("text", ["[]", "null", "1", "{}", '{"model": 1, "added_tokens": []}'])
def test_files_without_what_they_should_hold_are_refused(tiny: Path, tmp_path: Path, text: str) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"cannot load the tokenizer.*tokenizer files must be"):
        load_tokenizer(str(folder))
    if text[0] != "{":
        (folder / "generation_config.json").write_text(text)
        assert "generation_config.json" in refused(str(folder))
        (folder / "config.json").write_text(text)
        assert "its config.json must be" in refused(str(folder))


def test_broken_folders(edited: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(edited())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert repr(str(folder)) in refused(str(folder))
    (folder / "config.json").write_text("{")
    assert "not a valid JSON" in refused(str(folder))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no config.json" in refused(str(empty))
    with pytest.raises(UserError, match=r"needs tokenizer\.json"):
        load_tokenizer(str(empty))


def test_dtype_and_device_are_checked(tiny: Path) -> None:
    assert "'int4'" in refused(str(tiny), dtype="int4")
    with pytest.raises(UserError, match="'abacus'"):
        load_model(str(tiny), device="abacus")


def allocate_too_much() -> None:
    torch.empty(1 << 58)


def give_out(error: BaseException) -> None:
    raise error


NO_MEMORY: dict[str, Callable[[], None]] = {
    "device": lambda: give_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "host": allocate_too_much,
    "Python": lambda: give_out(MemoryError()),
    "file": lambda: give_out(OSError(ENOMEM, "Cannot allocate memory")),
}


@pytest.mark.parametrize("fail", NO_MEMORY.values(), ids=NO_MEMORY)
def test_no_memory_is_no_wrong_file(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    monkeypatch.setattr(models, "_read_weights", lambda path, **options: fail())
    said = refused(str(tiny))
    assert said.startswith(f"out of memory for the model '{tiny}' (") and "take a smaller model" in said


def test_a_device_without_memory_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *size, **options: NO_MEMORY["device"]())
    assert refused(str(tiny)).startswith(
        "out of memory for device 'cpu' (OutOfMemoryError: CUDA out of memory"
    )
