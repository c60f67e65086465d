"""A model becomes a GGUF file with its tokenizer and template, and llama.cpp writes the same text with it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from draftwise import UserError, export_gguf
from draftwise.cli import main
from draftwise.data import spec_bench
from draftwise.generation.prompts import encode
from draftwise.models.gguf import library
from draftwise.models.gguf.folder import export_folder
from draftwise.models.gguf.model import GgufTokenizer
from draftwise.models.load import load_model
from draftwise.models.weights.layouts import KERNELS
from draftwise.models.weights.timing import possible
from tests.gguf import Plain
from tests.tiny_tokenizers import tokenizer as tiny

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bundled target in float32, and the report."""
    path = tmp_path_factory.mktemp("export") / "target.gguf"
    return export_gguf("zoo:target", path, type="f32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose rows are whole blocks of every type, with two tokens of padding."""
    path, words = tmp_path_factory.mktemp("model"), tiny("byte-level")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words) + 2,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=words.eos_token_id,
    )
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).to(torch.bfloat16).save_pretrained(path)
    words.save_pretrained(path)
    return path


def test_the_report_says_what_was_written(bundled: Any) -> None:
    assert (bundled.architecture, bundled.type, bundled.pre) == ("llama", "f32", "gpt-2")
    assert bundled.bytes == bundled.path.stat().st_size > 4 * 22_000_000
    assert bundled.tensors == {"F32": 110}
    assert bundled.compared > 4000
    assert (bundled.fallbacks, bundled.notes) == ({}, ())
    assert [file.name for file in bundled.path.parent.iterdir()] == ["target.gguf"], (
        "nothing is left beside it"
    )


def test_the_file_alone_writes_the_text_of_transformers(
    bundled: Any, plain_model: Any, tokenizer: Any
) -> None:
    ours = GgufTokenizer.from_file(bundled.path)
    engine = Plain(str(bundled.path), context=1024)
    for question in spec_bench()[80:400:160]:
        ids = encode(ours, question.text, vocab_size=ours.size)
        assert ids == encode(tokenizer, question.text, vocab_size=ours.size)
        own = plain_model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)
        assert engine.write(ids, 20, ends=sorted(ours.ends)) == own[0, len(ids) :].tolist()


def test_eight_bits_stay_near(bundled: Any, tmp_path: Path) -> None:
    small = export_gguf("zoo:target", tmp_path / "small.gguf", type="q8_0")
    assert small.tensors == {"Q8_0": 85, "F32": 25}
    assert small.fallbacks == {}
    assert small.bytes < 0.28 * bundled.bytes
    ids = encode(GgufTokenizer.from_file(small.path), spec_bench()[0].text, vocab_size=4096)[:100]
    exact, near = (Plain(str(made.path), context=256).after(ids) for made in (bundled, small))
    assert 0 < np.abs(exact - near).max() < 0.05 * np.abs(exact).max()
    assert exact.argmax() == near.argmax()


@pytest.mark.parametrize(("type", "layout"), [("q8_0", "8-bit-panels"), ("q4_k", "4-bit-panels")])
def test_a_file_becomes_a_folder_whose_weights_are_read_in_their_bits(
    folder: Path, tmp_path: Path, type: str, layout: str
) -> None:
    """Q4_K_M has some matrices in Q6_K, whose codes need 8 bits."""
    file = export_gguf(str(folder), tmp_path / "small.gguf", type=type).path
    model: Any = load_model(str(export_folder(file, tmp_path / "new")))
    stored = next(one for one in gguf.GGUFReader(file).tensors if one.name == "blk.0.ffn_down.weight")
    values = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type))
    assert torch.equal(model.model.layers[0].mlp.down_proj.weight, values)
    layers = [layer for layer in model.model.modules() if isinstance(layer, nn.Linear)]
    used = {next(name for name in KERNELS if name in possible(layer.weight)) for layer in layers}
    assert layout in used and used <= {"4-bit-panels", "8-bit-panels"}


def test_a_folder_is_for_all_and_its_tensors_are_counted(folder: Path, tmp_path: Path) -> None:
    file = export_gguf(str(folder), tmp_path / "small.gguf", type="f32").path
    seen: list[tuple[str, int, int]] = []
    new = export_folder(file, tmp_path / "new", tell=lambda *row: seen.append(row))
    assert len({one.stat().st_mode for one in new.iterdir()}) == 1, (
        "weights are no more private than the rest"
    )
    counts = [row[1] for row in seen if row[0] == "reading tensors"]
    assert counts == list(range(len(gguf.GGUFReader(file).tensors) + 1))
    assert seen[-1][0] == "writing"


def test_what_is_no_model_becomes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and nothing else")
    with pytest.raises(UserError, match=r"no file .*absent\.gguf"):
        export_folder(tmp_path / "absent.gguf", tmp_path / "new")
    with pytest.raises(UserError, match="exists: name a new folder"):
        export_folder(tmp_path / "bad.gguf", tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*bad\.gguf"):
        export_folder(tmp_path / "bad.gguf", tmp_path / "new")
    with pytest.raises(UserError, match=r"no folder '.*none': make it first"):
        export_folder(tmp_path / "bad.gguf", tmp_path / "none" / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.gguf"]


def test_a_full_disk_leaves_no_folder(tmp_path: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(UserError, match=r"cannot write .*No space left on device.*choose another folder"):
        export_folder(bundled.path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_short_rows_fall_back_and_are_counted(tmp_path: Path) -> None:
    made = export_gguf("zoo:target", tmp_path / "small.gguf", type="q4_k")
    assert sum(made.fallbacks.values()) == 73, "all but the twelve matrices with rows of 1024"
    assert set(made.fallbacks) == {"Q5_0", "Q8_0"}
    assert made.tensors["Q4_K"] + made.tensors["Q6_K"] == 12


def test_whole_rows_become_four_bits(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    made = export_gguf(
        str(folder),
        tmp_path / "m.gguf",
        type="q4_k",
        tell=lambda what, done, total: seen.append((what, done, total)),
    )
    assert made.fallbacks == {}
    assert set(made.tensors) == {"Q4_K", "Q6_K", "F32"}
    assert [done for what, done, _ in seen if what == "quantising"] == list(range(1, 22))
    assert {total for what, _, total in seen if what == "quantising"} == {21}
    assert {what for what, _, _ in seen} == {"loading", "trying pre-tokenizers", "writing", "quantising"}
    assert made.notes == ("only llama.cpp ends a text at '<|im_end|>'",)
    ours = GgufTokenizer.from_file(made.path)
    assert ours.get_vocab() == tiny("byte-level").get_vocab()
    assert ours.size == len(ours) + 2


def test_a_failure_leaves_the_file_of_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.gguf"
    out.write_text("before")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("draftwise.models.gguf.export.quantize", full)
    with pytest.raises(UserError, match=r"cannot write '.*m.gguf': No space left on device; choose another"):
        export_gguf(str(folder), out, type="q8_0")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("m.gguf", "before")]


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown type 'q5': choose from f32, f16, bf16, q8_0, q4_k"):
        export_gguf("zoo:target", tmp_path / "m.gguf", type="q5")
    with pytest.raises(UserError, match="is a folder: name the file to write"):
        export_gguf("zoo:target", tmp_path)
    with pytest.raises(UserError, match=r"no folder '.*none': make it first"):
        export_gguf("zoo:target", tmp_path / "none" / "m.gguf")
    with pytest.raises(UserError, match="zoo:eagle is not a language model"):
        export_gguf("zoo:eagle", tmp_path / "m.gguf")


def test_a_folder_without_permission_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    def work(*_: object, **__: object) -> None:
        raise AssertionError("nothing is loaded")

    (tmp_path / "bad.gguf").write_bytes(b"GGUF and nothing else")
    monkeypatch.setattr("draftwise.models.gguf.export.TemporaryFile", full)
    monkeypatch.setattr("draftwise.models.gguf.export.load_tokenizer", work)
    with pytest.raises(UserError, match=r"cannot write '.*m.gguf': Permission denied; choose another file"):
        export_gguf("zoo:target", tmp_path / "m.gguf")
    monkeypatch.setattr("draftwise.models.gguf.folder.tempfile.TemporaryFile", full)
    monkeypatch.setattr("draftwise.models.gguf.folder.write_folder", work)
    with pytest.raises(UserError, match=r"cannot write '.*new': Permission denied; choose another folder"):
        export_folder(tmp_path / "bad.gguf", tmp_path / "new")


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.gguf"
    assert main(["export", "gguf", str(folder), "-o", str(out), "--type", "q8_0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(out)
    assert told["tensors"] == {"Q8_0": 16, "F32": 5}
    assert main(["export", "gguf", str(folder), "-o", str(out), "--quiet"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{out}: llama, f16, ")
    assert said[1:3] == [
        "tensors: 16 F16, 5 F32",
        f"tokenizer: gpt-2, which gives Transformers' ids and texts for {told['compared']:,} texts",
    ]
    back = tmp_path / "back"
    assert main(["export", "safetensors", str(out), "-o", str(back), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"path": str(back), "bytes": sum(file.stat().st_size for file in back.iterdir())}
    assert main(["export", "safetensors", str(out), "-o", str(back), "--type", "f32"]) == 2
    assert "--type f32: is of GGUF files alone" in capsys.readouterr().err
    assert main(["export", "onnx", str(folder), "-o", str(out)]) == 2
    assert "unknown format 'onnx': choose from gguf" in capsys.readouterr().err


def test_without_llama_cpp_an_export_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(library, "import_module", missing)
    library.library.cache_clear()
    with pytest.raises(UserError, match=r"llama-cpp-python is not installed .*: pip install"):
        export_gguf("zoo:target", tmp_path / "target.gguf")
    library.library.cache_clear()
    assert not list(tmp_path.iterdir())
