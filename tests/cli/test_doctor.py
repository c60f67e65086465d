"""`draftwise doctor`: what there is, what is missing, and a status that says whether something is broken."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, PackageNotFoundError, metadata
from importlib.util import find_spec

import pytest

from draftwise import UserError, registry
from draftwise.cli.doctor import some, threads
from draftwise.measure import checkup, machine
from draftwise.models.threads import FIXED
from draftwise.models.zoo import INSTALL

from .conftest import Run


def test_the_facts_are_there_and_nothing_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = checkup.checkup()
    monkeypatch.setattr(checkup, "checkup", lambda: found)
    status, out, _ = run("doctor")
    assert status == 0 and out.endswith("Nothing is broken.\n")
    named = [line.split("  ")[0] for line in out.splitlines()]
    wanted = ["CPU", "cores", "threads", "instructions", "memory", "compiler", "GPU", "load", "torch"]
    assert set(wanted) <= set(named)
    assert {f"[{extra}]" for extra in metadata("draftwise").get_all("Provides-Extra") or []} <= set(named)
    status, out, err = run("doctor", "--json")
    assert (status, err, json.loads(out), found["broken"]) == (0, "", found, [])
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["machine"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert found["versions"]["torch"] == torch.__version__
    assert found["zoo"]["installed"] and "zoo:target" in found["zoo"]["models"]


@pytest.mark.parametrize(
    "fixed, used, said",
    [
        ("", 0.1, "2 by PyTorch"),
        ("", 1.4, "2 by PyTorch, of which models get 1 while others use 1.4 cores"),
        ("OMP_NUM_THREADS", 1.4, "too many while others use 1.4 cores: unset it, or set it to 1"),
        ("", None, "2 by PyTorch"),
    ],
)
def test_threads_are_those_that_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, fixed: str, used: float | None, said: str
) -> None:
    monkeypatch.setattr("draftwise.models.threads._own_cores", lambda: 2)
    monkeypatch.setattr("draftwise.models.threads.quota", lambda: None)
    for name in FIXED:
        monkeypatch.delenv(name, raising=False)
    if fixed:
        monkeypatch.setenv(fixed, "2")
    line = threads(2, checkup._load({"load": 2.0, "others": used}, 2))
    assert line.endswith(said) and line.startswith(f"2 by {fixed or 'PyTorch'}")


def test_llamacpp_has_a_line_where_it_is_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | BLAS = 1 | CUDA : ARCHS = 900 | "
    assert machine.llamacpp_features(said) == ["SSE3", "AVX2", "BLAS", "ARCHS"]
    there = find_spec("llama_cpp") is not None
    assert ("llama.cpp" in [line.split("  ")[0] for line in run("doctor")[1].splitlines()]) is there

    engine = {"version": "0.3", "features": ["AVX2"], "repacked": "a trial ended by SIGSEGV"}
    monkeypatch.setattr(checkup, "_llamacpp", lambda broken: engine)
    assert "without repacked weights: a trial ended by SIGSEGV" in run("doctor")[1]
    monkeypatch.undo()

    def unusable() -> None:
        raise UserError("llama-cpp-python is too old")

    monkeypatch.setattr(checkup, "find_spec", lambda name: "somewhere")
    monkeypatch.setattr(checkup, "library", unusable)
    status, out, _ = run("doctor")
    assert status == 1
    assert "BROKEN: llama-cpp-python is too old" in out


def test_what_is_missing_comes_from_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["numpy>=1", "torch>=99", "absent-one>=2; extra == 'some'", "numpy>=1; extra == 'other'"]
    monkeypatch.setattr(checkup, "requires", lambda name: said)
    assert [what for what, _ in checkup._lacking("some")] == ["absent-one>=2"]
    assert [what for what, _ in checkup._lacking("other")] == []
    (line,) = checkup.unmet()
    assert line.startswith("torch>=99 is required and not satisfied by the installed 2.")


def test_a_missing_requirement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(checkup, "version", absent)
    monkeypatch.setattr(checkup, "requires", lambda name: ["typer>=0.15"])
    assert checkup.unmet() == ["typer>=0.15 is required and not installed"]


def test_a_plug_in_that_cannot_be_imported_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = EntryPoint("echo", "no_such_package:Echo", "draftwise.drafters")
    known = registry.points("drafters") | {"echo": wrong}
    monkeypatch.setattr(registry, "points", lambda group: known if group == "drafters" else {})
    status, out, _ = run("doctor")
    assert status == 1
    assert "BROKEN: drafters: echo (no_such_package:Echo) cannot be imported: ModuleNotFoundError" in out


def test_a_zoo_that_is_not_installed_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "zoo_folder", lambda: None)
    broken: list[str] = []
    assert checkup._zoo(broken) == {"installed": False, "remedy": INSTALL} and not broken


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000\n", 1.5), ("", None)])
def test_the_limit_of_a_control_group(text: str, cores: float | None) -> None:
    assert checkup.quota(text) == cores


def test_of_many_missing_packages_three_are_named() -> None:
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
