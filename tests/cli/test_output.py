"""Reports, output that cannot be written, and streams that the caller has closed: one line, no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftwise.cli import main, show
from draftwise.cli.prepare import _report
from draftwise.cli.show import to_stderr
from draftwise.core.round import Stats
from draftwise.generation.output import Output
from tests.measure.report import folder as made

from .conftest import Letters, Models, Refused, Result, Run

FULL = Path("/dev/full")


def shell(line: str) -> tuple[int, str, str]:
    """Run a shell line, in which $D stands for the command; gives its exit status, stdout and stderr."""
    command = f"{sys.executable} -m draftwise"
    done = subprocess.run(
        ["sh", "-c", line.replace("$D", command)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def one_line(result: Result, *said: str) -> None:
    status, out, err = result
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    for part in said:
        assert part in err


@pytest.mark.skipif(not FULL.exists(), reason="the system has no full device")
@pytest.mark.parametrize("verb", ["models --json", "--help"])
def test_a_full_disk_behind_standard_output(verb: str) -> None:
    one_line(shell(f"$D {verb} > {FULL}"), "cannot write the output: No space left on device;")


def test_what_was_trained_is_reported_with_whole_numbers_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    _report({"before": {"rounds": 9}, "after": {"rounds": 242, "acceptance_rate": 1.0}}, Path("made"))
    words = capsys.readouterr().out.split()
    assert {"9", "242", "1.000"} <= set(words) and "242.000" not in words
    _report({"after": {"accuracy": 1.0}}, Path("made"))
    assert capsys.readouterr().out.split("\n")[0].split() == ["held", "out", "after"], "nothing was before"


def test_a_closed_standard_output_is_no_fault() -> None:
    assert shell("$D models >&-") == (0, "", "")


def test_a_closed_standard_input_is_an_empty_one() -> None:
    one_line(shell("$D generate - <&-"), "the prompt is empty")


def test_a_closed_standard_error_leaves_the_output_alone() -> None:
    assert shell("$D --version 2>&-")[:2] == (0, shell("$D --version")[1])


def test_an_output_that_lacks_a_character_is_told(
    models: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not replaced by another one: the text would not be the model's own."""
    monkeypatch.setattr(Letters, "decode", lambda self, tokens, **_: "☃" * len(tokens))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
        status = main(["generate", "a", "--max-new-tokens", "3"])
    one_line((status, "", capsys.readouterr().err), "latin-1", "☃", "set PYTHONIOENCODING=utf-8")


def results(folder: Path, workload: str = "mixed") -> str:
    """A folder with `results.json` alone, which is soon drawn."""
    for path in made.write(folder, workload).glob("*.jsonl"):
        path.unlink()
    return str(folder)


@pytest.mark.parametrize("place", ["report.html", "report.md", "pictures"])
def test_a_report_that_cannot_be_written(run: Run, tmp_path: Path, place: str) -> None:
    here = Path(results(tmp_path / "run"))
    if place == "pictures":
        (here / place).write_text("mine")
    else:
        (here / place).mkdir()
    one_line(run("report", str(here)), f"cannot use {here / place}", "name another place")
    assert not list(here.rglob("*.part"))


def test_half_a_report_never_replaces_a_whole_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    here = Path(results(tmp_path / "run"))
    assert run("report", str(here))[0] == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}

    def full(figure: object, file: Path, **_: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    one_line(run("report", str(here)), f"cannot use {here / 'pictures'}", ".png: No space left on device")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("verb", [["replay", "--policies", "static-3"], ["oracle"]])
def test_results_that_cannot_be_written_are_told_before_the_work(
    run: Run, traced: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    def refused(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("draftwise.measure.writing.TemporaryFile", refused)
    monkeypatch.setattr("draftwise.measure.trace.results.ReplayState", None)
    out = str(traced.parent / "out")
    one_line(run(verb[0], str(traced), "--out", out, *verb[1:]), f"cannot write to '{out}': Read-only")


def test_a_replay_that_fails_leaves_no_part(run: Run, traced: Path, tmp_path: Path) -> None:
    (traced / "000002.npz").write_bytes(b"damaged")
    out = tmp_path / "out"
    one_line(run("replay", str(traced), "--policies", "static-3", "--out", str(out)), "000002.npz")
    assert list(out.iterdir()) == []


def test_a_replay_that_finds_the_disk_full_at_its_end_leaves_the_files_of_another(
    run: Run, traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of one run beside the results of another would make a wrong report."""

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    ask = ("replay", str(traced), "--out", str(out := tmp_path / "out"), "--policies")
    assert run(*ask, "static-3")[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr("draftwise.measure.trace.results.write_json", full)
    one_line(run(*ask, "static-2"), f"cannot use {out / 'results.json'}: No space left on device")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_simulation_is_written_whole_and_its_folder_tried_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ask = ("simulate", "--policies", "ucb1", "--tokens", "50", "--seeds", "1", "--out")
    one_line(run(*ask, str(tmp_path / "file" / "x")), "cannot write to", "choose another --out")
    assert run(*ask, str(tmp_path / "new"))[0] == 0
    assert json.loads((tmp_path / "new" / "simulation.json").read_text())["policies"]
    assert not list((tmp_path / "new").rglob("*.part"))


def test_an_error_of_the_network_is_not_called_one_of_a_file(
    models: Models, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("draftwise.Decoder.from_specs", unreachable)
    with pytest.raises(ConnectionRefusedError):
        run("generate", "a")


def test_equal_faults_are_told_once_with_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    stats = Stats(faults=["ngram: it failed"] * 15 + ["suffix: too slow"])
    output = Output(finish_reason="stop", stats=stats)
    with to_stderr():
        show.report(output, wanted=False)
    assert capsys.readouterr().err.splitlines() == [
        "warning: ngram: it failed (15 times)",
        "warning: suffix: too slow",
    ]


def test_a_replay_and_a_simulation_load_no_models() -> None:
    """Names of policies are read without the engines of a benchmark, which take seconds to import."""
    code = (
        "import sys; from draftwise.cli import main; "
        "status = main(['simulate', '--policies', 'ucb1', '--tokens', '50', '--seeds', '1', '--quiet']); "
        "main(['replay', 'nowhere', '--out', 'x']); "
        "sys.exit(status or 'torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.sep)
    assert done.returncode == 0, done.stderr


# -- reports ------------------------------------------------------------------------------------------------


def test_report_writes_the_page_and_says_where(run: Run, tmp_path: Path) -> None:
    here = results(tmp_path / "run")
    status, out, err = run("report", here)
    assert (status, out.strip(), err) == (0, f"{here}/report.html", "")
    assert (tmp_path / "run/report.html").exists()


def test_report_as_json_beside_another_run(run: Run, tmp_path: Path) -> None:
    one, other = results(tmp_path / "one"), results(tmp_path / "other", "phased")
    status, out, _ = run("report", one, "--beside", other, "--json")
    assert (status, Path(json.loads(out)["markdown"]).exists()) == (0, True)
    assert (tmp_path / "one/pictures/beside.png").exists()


def test_a_folder_without_results_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert "no results.json" in refused("report", str(tmp_path))


GOOD = {"method": "static-5", "speedup": 1.5, "interval": [1.4, 1.6], "prompts": 9, "pulls": {"ngram:5": 3}}
SIMULATED: dict[str, Any] = {
    "policies": [{"policy": "ucb1", "rounds": 3.0, "best_choices": 0.5, "switches": 1.0}],
    "arms": [],
    "marks": [9],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b"caf\xe9"),
        ("results.json", b"[1]"),
        ("results.json", b"[" * 100_000),
        ("results.json", {"results": [GOOD | {"speedup": "fast"}]}),
        ("results.json", {"results": [GOOD | {"interval": ["a", "b"]}]}),
        ("results.json", {"results": [GOOD | {"interval": 3}]}),
        ("results.json", {"results": [GOOD | {"prompts": True}]}),
        ("results.json", {"results": [GOOD | {"pulls": {"ngram:5": "many"}}]}),
        ("results.json", {"results": [GOOD | {"pulls": 3}]}),
        ("results.json", {"results": ["static-5"]}),
        ("results.json", {"results": 5}),
        ("results.json", {"results": [GOOD], "machine": [1]}),
        ("results.json", {"results": [GOOD], "busy": 4}),
        ("results.json", {"results": [GOOD], "absent": ["vllm"]}),
        ("prompts.jsonl", b"\xe9\n{}\n"),
        ("prompts.jsonl", [3]),
        ("prompts.jsonl", [{"method": "static-5"}]),
        ("prompts.jsonl", [{"method": "static-5", "prompt": 0, "seconds": "two"}]),
        ("rounds.jsonl", [{"arm": "ngram:5"}]),
        ("rounds.jsonl", [{"method": "static-5", "length": "five"}]),
        ("pieces.jsonl", [{"method": "static-5", "prompt": 0, "pieces": [["a"]]}]),
        ("oracle.json", {"lengths": {"0": [["a", "b", "c"]]}}),
        ("oracle.json", {"results": [{"category": "all"}]}),
        ("simulation.json", SIMULATED),
        ("simulation.json", {"policies": "many"}),
    ],
)
def test_damaged_results_are_told_in_one_line(
    run: Run, refused: Refused, tmp_path: Path, name: str, content: Any
) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"results": [GOOD, GOOD | {"method": "none"}]}))
    assert run("report", str(tmp_path))[0] == 0
    if isinstance(content, list):
        content = "".join(json.dumps(line) + "\n" for line in content).encode()
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    err = refused("report", str(tmp_path))
    assert str(tmp_path) in err
    assert "again" in err or "remove it" in err
