"""`bench` and `tune` from the command line, over models that write the alphabet."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from draftwise.measure.bench.ours import Models, Policy
from draftwise.measure.workloads import choose, load
from tests.measure.bench.conftest import sim_models

from .conftest import Refused, Run

ROWS = {
    "method", "engine", "category", "batch", "prompts", "new_tokens", "seconds", "tokens_per_s", "speedup",
    "ttft_s", "tpot_s", "interval", "mean_of_ratios", "mean_accepted", "tokens_per_round", "acceptance_rate",
    "rounds", "seconds_by_phase", "identical", "pulls",
}  # fmt: skip
SMALL = ("--per-category", "1", "--limit", "4", "--max-new-tokens", "12", "--drafters", "good,bad")


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What was asked to be loaded; reports are others' work."""
    asked: list[tuple[str, list[str]]] = []

    def fake(target: str, drafters: Any, **rest: Any) -> Models:
        asked.append((target, list(drafters)))
        return sim_models(list(drafters))

    monkeypatch.setattr(Models, "load", fake)
    monkeypatch.setattr("draftwise.measure.report.write_report", lambda out, **_: None)
    monkeypatch.setattr("draftwise.measure.bench.run.judge", lambda *_: [])
    return asked


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_run_leaves_what_the_contract_says(run: Run, tmp_path: Path) -> None:
    status, out, err = run("bench", *SMALL, "--policies", "static-3,ucb1", "--out", str(tmp_path))
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["method", "none", "static-3", "ucb1"]
    assert "NOT CLEAN" not in out
    found = json.loads((tmp_path / "results.json").read_text())
    assert found.keys() >= {"machine", "settings", "results", "absent", "clean", "load", "left_out", "busy"}
    assert all(set(row) == ROWS for row in found["results"])
    assert len(found["results"]) == 3 * 5
    everyone = {row["method"]: row for row in found["results"] if row["category"] == "all"}
    assert everyone["none"]["speedup"] == 1.0
    assert everyone["none"]["interval"] is None and "too few prompts" in out, "of four prompts"
    assert {row["identical"] for row in everyone.values()} == {4}
    assert {row["new_tokens"] for row in everyone.values()} == {48}
    assert everyone["static-3"]["mean_accepted"] > 0.5
    assert everyone["ucb1"]["pulls"].keys() == {"good:5", "bad:5"}
    prompts = read(tmp_path, "prompts.jsonl")
    assert len(prompts) == 12
    assert {row["identical"] for row in prompts} == {True}
    rounds = read(tmp_path, "rounds.jsonl")
    assert sum(len(row["tokens"]) for row in rounds if row["method"] == "ucb1") == 48
    assert rounds[0].keys() >= {"method", "category", "prompt", "round", "arm", "drafter", "length"}
    assert read(tmp_path, "pieces.jsonl")[0]["pieces"]


def test_the_same_command_again_does_nothing_again(run: Run, tmp_path: Path) -> None:
    command = ("bench", *SMALL, "--policies", "static-3", "--out", str(tmp_path), "--json")
    first = json.loads(run(*command)[1])
    before = (tmp_path / "rounds.jsonl").read_text()
    second = json.loads(run(*command)[1])
    assert second["results"] == first["results"]
    assert (tmp_path / "rounds.jsonl").read_text() == before
    assert len(second["load"]) == len(first["load"]) + 1, "and says that it began twice"


@pytest.mark.parametrize(
    "verb",
    [("bench", "--policies", "static-3"), ("tune", "--policy", "static?drafter=good", "--grid", "length=3")],
    ids=["bench", "tune"],
)
def test_interrupted_it_says_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    command = (*verb, *SMALL, "--out", str(tmp_path))
    real, calls = Policy.decode, iter(range(100))

    def decode(self: Policy, items: Any, generation: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return real(self, items, generation)

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "decode", decode)
        status, _, err = run(*command)
    assert (status, "the same command resumes the run" in err) == (130, True)
    assert not (tmp_path / "results.json").exists()
    assert len(read(tmp_path, "prompts.jsonl")) == 3
    assert run(*command)[0] == 0
    assert len(read(tmp_path, "prompts.jsonl")) == 8


def test_a_busy_machine_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.measure.bench.run.judge", lambda *_: ["load 9.00 on 2 cores at the start"])
    _, out, _ = run("bench", *SMALL, "--policies", "none", "--out", str(tmp_path))
    assert "NOT CLEAN, the machine was busy: load 9.00 on 2 cores at the start" in out
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["clean"], found["busy"]) == (False, ["load 9.00 on 2 cores at the start"])


def test_a_peer_that_is_not_there_is_absent_and_has_no_row(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwise.measure.bench.peers.find_spec", lambda name: None)
    peers = ("--policies", "none", "--peers", "llamacpp:plain,vllm")
    command = ("bench", *SMALL, *peers, "--out", str(tmp_path))
    found = json.loads(run(*command, "--json")[1])
    assert [a["method"] for a in found["absent"]][:2] == ["llamacpp:plain", "vllm:plain"]
    assert {a["reason"] for a in found["absent"]} == {
        "llama-cpp-python is not installed",
        "vllm is not installed",
    }
    assert {row["method"] for row in found["results"]} == {"none"}
    assert "absent: vllm:suffix: vllm is not installed" in run(*command)[1]


def test_batches_and_drawing(run: Run, tmp_path: Path) -> None:
    command = ("bench", *SMALL, "--policies", "static-3", "--batch", "1,3", "--temperature", "1")
    found = json.loads(run(*command, "--out", str(tmp_path), "--json")[1])
    rows = [row for row in found["results"] if row["category"] == "all"]
    assert [(row["batch"], row["method"]) for row in rows] == [
        (b, m) for b in (1, 3) for m in ("none", "static-3")
    ]
    assert {row["identical"] for row in rows} == {None}
    assert found["settings"]["speedup"] == "ratio of total times per token"


def test_what_does_not_fit_the_window_is_left_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "abc"}\n' + json.dumps({"prompt": "abc" * 50}) + "\n")
    monkeypatch.setattr(Models, "load", lambda *_, **__: sim_models(max_length=40))
    command = ("bench", "--workload", str(prompts), "--max-new-tokens", "12", "--policies", "none")
    found = json.loads(run(*command, "--out", str(tmp_path / "out"), "--json")[1])
    assert found["results"][0]["prompts"] == 1
    assert found["left_out"] == ["prompt 2: 150 tokens and 12 new ones do not fit the window of 40"]
    prompts.write_text(json.dumps({"prompt": "abc" * 50}) + "\n")
    status, _, err = run(*command, "--out", str(tmp_path / "other"))
    assert (status, "no prompt fits the target's window: prompt 1: 150 tokens" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "--workload", "nothing"], "no workload or file 'nothing'"),
        (["bench", "--workload", "spec-bnch"], "did you mean spec-bench?"),
        (["bench", "--peers", "hf"], "no peer 'hf': choose from transformers:plain"),
        (["bench", "--peers", "transformers:plan"], "no peer 'transformers:plan': did you mean plain?"),
        (["bench", "--peers", "lamacpp"], "no peer 'lamacpp': did you mean llamacpp?"),
        (["bench", "--batch", "one"], "--batch one: give comma-separated whole numbers"),
        (["bench", "--drafters", "good,,bad"], "has an empty name"),
        (["bench", "--split", "train"], "--split train: choose from all, test, validation"),
        (["bench", "--policies", "nobody"], "unknown policy 'nobody'"),
        (["bench", "--policies", "ucb1?nope=1"], "ucb1 has no option 'nope'"),
        (["bench", "--policies", "auto,auto"], "auto is repeated"),
        (["bench", "--out", "{}/file/x"], "file is no folder; choose another --out"),
        (["tune", "--policy", "static", "--grid", "nope=1"], "static has no option 'nope'"),
        (["tune", "--policy", "svip", "--grid", "threshold=x"], "'x' is not a number"),
        (["tune", "--policy", "ucb1"], "nothing to tune in 'ucb1': give --grid option=A,B"),
    ],
)
def test_what_needs_no_model_is_refused_before_one_is_loaded(
    refused: Refused, tmp_path: Path, models: list[Any], arguments: list[str], said: str
) -> None:
    (tmp_path / "file").write_text("")
    asked = [one.format(tmp_path) for one in arguments[1:]]
    assert said in refused(arguments[0], *SMALL, "--out", str(tmp_path / "out"), *asked)
    assert not models and not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", [["bench"], ["tune", "--policy", "static"]])
def test_progress_begins_before_pytorch_is_imported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.setattr("draftwise.cli.progress.SOON", 0.0)
    err = run(*verb, "--batch", "one", "--out", str(tmp_path / "out"))[2]  # refused after the import
    assert err.startswith("loading models")


def test_progress_is_a_line_now_and_then(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.cli.progress.EVERY", 0.0)
    _, _, err = run("bench", *SMALL, "--policies", "static-3", "--out", str(tmp_path))
    lines = [line for line in err.splitlines() if "/8; " in line]
    assert len(lines) == 8 and len(err.splitlines()) == 12, "before that, each method is prepared"
    assert " 0/8; " in lines[0]
    assert lines[0].endswith("time left: not known yet")
    assert lines[-1].endswith("left")
    assert "0:00:00" in lines[-1]


def test_tune_finds_the_best_length_on_prompts_kept_for_it(run: Run, tmp_path: Path) -> None:
    command = ("tune", "--policy", "static?drafter=good", "--grid", "length=1,4", *SMALL)
    found = json.loads(run(*command, "--out", str(tmp_path), "--json")[1])
    tried = {row["method"]: row for row in found["tried"]}
    assert tried.keys() == {"none", "static?drafter=good&length=1", "static?drafter=good&length=4"}
    best = found["best"]["static?drafter=good"]
    assert tried[best]["speedup"] == max(row["speedup"] for m, row in tried.items() if m != "none")
    used = {row["question_id"] for row in read(tmp_path, "prompts.jsonl")}
    assert used
    assert not used & {p.question_id for p in choose(load("spec-bench"), split="test")}
    assert found["settings"]["split"] == "validation"


def test_what_tune_prints_is_what_bench_takes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run("tune", "--policy", "static,svip", "--grid", "drafter=good,bad", *SMALL)
    lines = out.splitlines()
    assert lines[0].split() == ["method", "prompts", "tokens/s", "speedup", "95", "%", "accepted"]
    assert sum(line.endswith("best") for line in lines) == 2
    said, _, command = lines[-1].partition(": ")
    assert said == "measure on the test split with"
    program, *arguments = shlex.split(command)
    assert program == "draftwise" and "--out" in arguments
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert status == 0, err
    chosen = [line.partition(": ")[2] for line in lines if line.startswith("best ")]
    assert len(chosen) == 2 and all(policy in out for policy in chosen)


def test_tune_says_where_even_the_best_is_slower_than_plain_decoding(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"method": "static?length=1", "speedup": 0.9}
    monkeypatch.setattr("draftwise.measure.bench.tune.best", lambda *_: row)
    lines = run("tune", "--policy", "static", "--grid", "length=1", *SMALL)[1].splitlines()
    assert "slower than plain decoding: static?length=1, though the best of its grid" in lines
    monkeypatch.setattr("draftwise.measure.bench.tune.best", lambda *_: row | {"speedup": 1.1})
    assert "slower" not in run("tune", "--policy", "static", "--grid", "length=1", *SMALL)[1]


def test_a_folder_of_something_else_is_left_alone(
    run: Run, tmp_path: Path, models: list[tuple[str, list[str]]]
) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    status, _, err = run("bench", *SMALL, "--out", str(tmp_path))
    assert status == 2 and "holds letter.txt, and no run: name a new or empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert not models, "before anything is loaded"
