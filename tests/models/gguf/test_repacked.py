"""Whether llama.cpp's repacked weights work is found out in a process of its own, once."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwise.models.gguf import library, repacked
from draftwise.models.gguf.repacked import Trial, known, run_trial, works


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A build of llama.cpp, with nothing known of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libggml-cpu.so").write_text("one")
    yield built(str(tmp_path / "__init__.py"))
    works.cache_clear()


def built(file: str, said: bytes = b"AVX2 = 1 | ") -> Any:
    made: Any = ModuleType("llama_cpp")
    made.__file__, made.llama_print_system_info = file, lambda: said
    return made


SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("code", "trial"),
    [
        ("print('loading'); print('{\"error\": 0.001}')", Trial()),
        (SEGFAULT, Trial("a trial ended by SIGSEGV")),
        ("import os; os.kill(os.getpid(), 9)", Trial("a trial ended by SIGKILL", lasting=False)),
        ("print('{\"error\": 0.7}')", Trial("their logits are off by 0.7 of the largest")),
        ("print('{\"error\": NaN}')", Trial("their logits are off by nan of the largest")),
        ("", Trial("a trial failed (it printed nothing)", lasting=False)),
        ("print('[]')", Trial("a trial failed (it printed nothing)", lasting=False)),
        ("raise SystemExit('no memory')", Trial("a trial failed (no memory)", lasting=False)),
    ],
)
def test_a_trial_says_what_is_wrong(code: str, trial: Trial) -> None:
    assert run_trial(child(code)) == trial


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacked, "PATIENCE", 0.5)
    found = run_trial(child("while True: pass"))
    assert not found.lasting and "longer" in found.fault
    assert "cannot be started" in run_trial(["/nowhere/python"]).fault


def test_a_crash_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    crash = "import os, sys; open(sys.argv[-1] + '/model.gguf', 'w'); os.kill(os.getpid(), 11)"
    assert run_trial(child(crash)).fault == "a trial ended by SIGSEGV"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "cannot be started" in run_trial(child("")).fault


def test_a_verdict_is_kept_for_this_build(
    build: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[Any] = []
    answer = Trial("a trial ended by SIGSEGV")

    def run(command: Any) -> Trial:
        runs.append(command)
        return answer

    monkeypatch.setattr(repacked, "run_trial", run)
    assert known(build) is None and not works(build)
    assert "SIGSEGV" in caplog.text
    works.cache_clear()
    caplog.clear()
    assert not works(build) and len(runs) == 1 and known(build) == answer.fault
    assert not caplog.records, "it was said once"
    (Path(build.__file__).parent / "lib" / "libggml-cpu.so").write_text("another")
    works.cache_clear()
    answer = Trial()
    assert known(build) is None and works(build) and known(build) == ""


def test_what_may_pass_is_tried_again(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        repacked, "run_trial", lambda command: Trial("a trial failed (no memory)", lasting=False)
    )
    assert not works(build) and known(build) is None


def test_without_the_writer_amx_is_not_trusted(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacked, "find_spec", lambda name: None)
    assert works(build)
    assert not works(built(build.__file__, b"AMX_INT8 = 1 | "))
    assert known(build) is None, "it is tried once it can be"


@pytest.mark.parametrize("answer", [True, False])
def test_models_are_loaded_as_the_verdict_says(
    answer: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = SimpleNamespace(use_extra_bufts=True, vocab_only=False)
    lib = SimpleNamespace(
        llama_model_default_params=lambda: asked, llama_model_load_from_file=lambda path, params: 1
    )
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    monkeypatch.setattr(library, "library", lambda: lib)
    monkeypatch.setattr(repacked, "works", lambda of: answer)
    library.load(tmp_path / "model.gguf")
    assert asked.use_extra_bufts == answer
    library.load(tmp_path / "model.gguf", use_extra_bufts=not answer)
    assert asked.use_extra_bufts != answer, "who asks for it is obeyed"

    def untried(of: Any) -> bool:
        raise AssertionError("a vocabulary has no weights")

    monkeypatch.setattr(repacked, "works", untried)
    library.load(tmp_path / "model.gguf", vocab_only=True)


def test_the_child_compares_every_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing (scripts/setup-gguf)")
    from draftwise.models.gguf import repacked_child

    real = repacked_child.logits

    def wrong(path: Path, *, extra: bool) -> Any:
        found = real(path, extra=False)
        return [-row for row in found] if extra else found

    monkeypatch.setattr(repacked_child, "logits", lambda path, extra: real(path, extra=False))
    repacked_child.main(str(tmp_path))
    assert capsys.readouterr().out == '{"error": 0.0}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"], "nowhere else"
    monkeypatch.setattr(repacked_child, "logits", wrong)
    repacked_child.main(str(tmp_path))
    assert float(capsys.readouterr().out.split()[1].rstrip("}")) > 1.0


def test_passes_of_several_tokens_run_on_quantised_weights(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing (scripts/setup-gguf)")
    from draftwise.models.gguf import repacked_child
    from draftwise.models.gguf.model import GgufModel

    for name in repacked_child.TYPES:
        repacked_child.write(tmp_path / f"{name}.gguf", name)
        assert GgufModel(str(tmp_path / f"{name}.gguf")).vocab_size == repacked_child.VOCAB
        rows = repacked_child.logits(tmp_path / f"{name}.gguf", extra=works(library.library()))
        assert len(rows) == len(repacked_child.PASSES) and all(np.isfinite(row).all() for row in rows)
