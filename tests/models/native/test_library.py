"""The library of kernels is made by this machine's compiler, or there is none, and nothing else changes."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise.models import compiler
from draftwise.models.native import kernels
from draftwise.models.weights import timing
from draftwise.models.weights.layouts import PANELS

made = pytest.mark.skipif(kernels.library() is None, reason="no C++ compiler here")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has not looked for a kernel yet, and an empty cache; returns its folder of libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("library", "linear_kernel", "attention_kernel"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).__wrapped__)
    return tmp_path / "draftwise" / "native"


@pytest.fixture
def small(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The same with a source of one line, where the subject is the file: the kernels take six seconds."""
    monkeypatch.setattr(kernels, "SOURCES", tmp_path / "small")
    kernels.SOURCES.mkdir()
    (kernels.SOURCES / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    return fresh


def file(folder: Path) -> Path:
    (found,) = folder.glob("*.so")
    return found


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler here")
def test_the_sources_compile_where_there_is_a_compiler() -> None:
    """Else all tests of what they compute would be left out. This run's cache was empty when it began."""
    assert kernels.find_library().is_file()
    for dtype in (torch.float32, torch.bfloat16):
        assert kernels.linear_kernel(dtype) is not None and kernels.attention_kernel(dtype) is not None


@made
def test_the_library_is_compiled_once_and_again_if_it_is_damaged(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kernels.find_library()
    assert path == file(small)
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", None)
        assert kernels.find_library() == path, "nothing is compiled again"
    path.write_bytes(whole[:-100])
    assert kernels.find_library() == path and path.read_bytes() == whole
    assert sorted(p.suffix for p in small.iterdir()) == [".json", ".so"], "nothing is left over"


@made
def test_old_libraries_make_room(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.mkdir(parents=True)
    for age, name in ((30, "old"), (20, "new")):
        for suffix in (".so", ".json"):
            (small / f"{name}{suffix}").write_bytes(b"x" * 100)
            os.utime(small / f"{name}{suffix}", (time.time() - age,) * 2)
    monkeypatch.setattr(compiler, "MOST", 150)
    made_now = kernels.find_library()
    names = {path.name for path in small.iterdir()}
    assert names == {"new.so", "new.json", made_now.name, made_now.with_suffix(".json").name}


@made
def test_a_library_that_others_may_write_to_is_not_loaded(small: Path, caplog: Any) -> None:
    kernels.find_library()
    file(small).chmod(0o666)
    with caplog.at_level(logging.INFO):
        assert (
            kernels.linear_kernel(torch.float32) is None and kernels.attention_kernel(torch.float32) is None
        )
    assert "may be written by others: delete it" in caplog.text


@pytest.mark.parametrize("harm", ["no compiler", "a compiler that fails", "no space", "a hung compiler"])
def test_without_a_kernel_there_is_no_such_layout(
    fresh: Path, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    said = {"no compiler": "there is no C++ compiler", "no space": "No space", "a hung compiler": "timed out"}

    def run(command: list[str], **more: Any) -> Any:
        if harm == "a hung compiler":
            raise subprocess.TimeoutExpired(command, compiler.PATIENCE)
        return subprocess.CompletedProcess(command, 1, "", "fatal error: disk of sand\nmore")

    def full(*args: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: None if harm == "no compiler" else f"/{name}")
    if harm == "no space":
        monkeypatch.setattr(Path, "mkdir", full)
    with caplog.at_level(logging.INFO):
        assert PANELS not in timing.possible(torch.zeros(1, 1 << 17))
    assert said.get(harm, "/g++: fatal error: disk of sand") in caplog.text
    assert not fresh.exists() or not list(fresh.iterdir())


def test_a_compiler_that_fails_is_asked_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes seconds, and a model is loaded in every process."""
    ran: list[list[str]] = []

    def run(command: list[str], **more: Any) -> Any:
        ran.append(command)
        return subprocess.CompletedProcess(command, 1, "", "fatal error")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/{name}")
    assert kernels.library() is None
    asked = len(ran)
    assert asked and kernels.library() is None and len(ran) == asked
    monkeypatch.setattr(shutil, "which", lambda name: f"/elsewhere/{name}")
    assert kernels.library() is None and len(ran) == 2 * asked, "another compiler may do better"


LINEAR = (
    ("return sum + input * weights", "return sum - input * weights"),
    ("sums[k] += bias[k]", "sums[k] -= bias[k]"),
    ("if (!at.first)", "if (false)"),
)
ATTENTION = (
    ("+= weight * value[p]", "-= weight * value[p]"),
    ("scores[j] += single(mask[j])", "scores[j] += 0"),
    ("shared * a.groups + t / a.width", "shared"),
)


@made
@pytest.mark.parametrize(
    "faults", [(LINEAR[0], None), (None, ATTENTION[0]), *zip(LINEAR[1:], ATTENTION[1:], strict=True)]
)
def test_a_kernel_that_computes_something_else_is_not_used(
    fresh: Path, faults: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Each fault by itself is enough, and a kernel without one is used."""
    sources = fresh.parent.parent / "sources"
    shutil.copytree(kernels.SOURCES, sources)
    monkeypatch.setattr(kernels, "SOURCES", sources)
    monkeypatch.setattr(
        kernels, "TUNED", [["-O0", *more] for _, *more in kernels.TUNED]
    )  # a quarter of the time
    for name, fault in zip(("linear", "attention"), faults, strict=True):
        if fault:
            text = (sources / f"{name}.cpp").read_text()
            assert fault[0] in text
            (sources / f"{name}.cpp").write_text(text.replace(*fault))
    with caplog.at_level(logging.INFO):
        usable = [kernels.linear_kernel(torch.float32), kernels.attention_kernel(torch.float32)]
    assert [kernel is None for kernel in usable] == [fault is not None for fault in faults]
    assert "no kernel of our own for" in caplog.text


@made
def test_two_processes_may_compile_it_at_once(small: Path) -> None:
    code = f"""
from pathlib import Path
from draftwise.models.compiler import library
print(library(Path({str(kernels.SOURCES)!r}), "here", options=[[]]).is_file())"""
    command, environment = (
        [sys.executable, "-c", code],
        os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["True", "True"]
    assert sorted(p.suffix for p in small.iterdir()) == [".json", ".so"]
