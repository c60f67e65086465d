"""`trace`, `replay` and `oracle` at the command line: from a workload to a report, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Models, Refused, Run

COSTS = ("--costs", "c=0.1")


def test_from_a_workload_to_results(run: Run, traced: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    policies = "ucb1?length=6,static-3,metasd-ucb"
    status, text, err = run("replay", str(traced), "--policies", policies, "--out", str(out), *COSTS)
    assert status == 0, err
    assert text.splitlines()[0].split()[:2] == ["method", "prompts"]
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["none", *policies.split(",")]
    assert text.splitlines()[-1].startswith(f"written: {out}/report.html, ")
    found = json.loads((out / "results.json").read_text())
    rows = {(r["method"], r["category"]): r for r in found["results"]}
    assert {c for _, c in rows} == {"all", "x", "y"}
    for row in rows.values():
        assert row["engine"] == "replay" and 0.0 < row["fraction_of_optimum"] <= 1.0
        assert row["speedup"] == pytest.approx(rows["none", row["category"]]["seconds"] / row["seconds"])
    assert rows["none", "all"]["new_tokens"] == 120 and rows["none", "all"]["seconds"] == pytest.approx(120.0)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    mine = [r for r in rounds if r["method"] == "static-3"]
    assert len(mine) == rows["static-3", "all"]["rounds"]
    assert sum(len(r["tokens"]) for r in mine) == 120
    assert sum(sum(r["seconds"].values()) for r in mine) == pytest.approx(rows["static-3", "all"]["seconds"])
    assert all(0.0 <= r["overlap"] <= 1.0 and r["entropy"] for r in mine if r["drafted"])
    shown = [json.loads(line) for line in (out / "pieces.jsonl").read_text().splitlines()]
    assert {line["category"] for line in shown} == {"x", "y"}


def test_the_oracle_beside_the_results(run: Run, traced: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("replay", str(traced), "--policies", "ucb1?length=6", "--out", str(out), *COSTS)
    status, text, _ = run("oracle", str(traced), *COSTS, "--out", str(out))
    assert status == 0 and text.splitlines()[1].startswith("all")
    assert text.endswith(f"oracle.json; show it in a report with: draftwise report {out}\n")
    found = json.loads((out / "oracle.json").read_text())
    results = json.loads((out / "results.json").read_text())["results"]
    least = {row["category"]: row["optimum"] for row in found["results"]}
    for row in results:
        assert row["fraction_of_optimum"] == pytest.approx(least[row["category"]] / row["seconds"])
    assert sum(1 + n for _, _, n in found["lengths"]["0"]) == 30
    status, text, _ = run("oracle", str(traced), "--json")
    assert status == 0 and json.loads(text)["results"][0]["prompts"] == 4


def test_recording_goes_on_where_it_stopped(run: Run, models: Models, workload: Path, traced: Path) -> None:
    (traced / "000002.npz").unlink()
    status, _, err = run("replay", str(traced), "--out", str(traced.parent / "out"))
    assert status == 2 and "has 3 of its 4 prompts" in err and err.count("\n") == 1
    again = ("trace", "--workload", str(workload), "--max-new-tokens", "30", "--length", "6", "--overlap")
    status, text, _ = run(*again, "--out", str(traced), "--json")
    assert status == 0 and json.loads(text)["resumed"] == 3
    status, _, err = run(*again, "--out", str(traced), "--dtype", "bfloat16")
    assert status == 2 and "holds a trace with load {" in err and "'bfloat16'" in err


def test_interrupted_it_says_how_to_go_on(
    run: Run, models: Models, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("trace", "--workload", str(workload), "--max-new-tokens", "12", "--out", str(tmp_path / "new"))

    def record(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("draftwise.measure.trace.record.record", record)
        status, _, err = run(*command)
    assert (status, err) == (130, f"interrupted; the same command resumes the recording in {command[-1]}\n")
    assert run(*command)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["replay", "{trace}", "--policies", "tapout-seq-ucb1"],
            "the policy drafts up to 128 tokens",
        ),
        (["replay", "{trace}", "--policies", "disco?model=x"], "disco"),
        (["replay", "{trace}", "--policies", "nobody"], "unknown policy 'nobody'"),
        (["replay", "{trace}", "--drafters", "nobody"], "drafter 'nobody' was not recorded"),
        (["replay", "{trace}", "--policies", ""], "no policy is named"),
        (["replay", "{trace}", "--policies", "auto,auto"], "auto is repeated"),
        (["replay", "{trace}", "--policies", "auto,,none"], "has an empty name"),
        (["replay", "{trace}", "--drafters", ","], "--drafters ',' has an empty name"),
        (["replay", "{trace}", "--drafters", "ngram,ngram"], "ngram is repeated"),
        (["replay", "{trace}", "--costs", "nothing"], "cannot read the costs 'nothing'"),
        (["replay", "{trace}", "--out", "{here}"], "holds a benchmark: choose another --out"),
        (["replay", "{here}"], "cannot read the trace"),
        (["oracle", "{here}"], "cannot read the trace"),
        (["trace", "--length", "99999999999"], "--length 99999999999: give 1 to 4096"),
        (["trace", "--length", "0"], "--length 0: give 1 to 4096"),
        (["trace", "--limit", "-1"], "--limit -1: give 1 or more, or 0 for all"),
        (["trace", "--temperature", "nan"], "temperature=nan"),
        (["trace", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["trace", "--out", "{here}"], "holds a benchmark: choose another --out"),
        (["trace", "--out", "{here}/run.json/x"], "run.json is no folder; choose another --out"),
    ],
)
def test_bad_input_is_one_line_before_a_model_is_loaded(
    arguments: list[str], said: str, refused: Refused, models: Models, traced: Path, tmp_path: Path
) -> None:
    (here := tmp_path / "bench").mkdir()
    (here / "run.json").write_text("{}")
    verb, *asked = (one.format(trace=traced, here=here) for one in arguments)
    assert said in refused(verb, "--out", str(tmp_path / "new"), *asked)
    assert not models.asked and not (tmp_path / "new" / "results.json").exists()


def test_measuring_the_costs_of_a_trace_has_progress(
    run: Run, models: Models, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwise.cli.progress.EVERY", 0.0)
    size = ("--max-new-tokens", "12", "--length", "4", "--limit", "1")
    err = run("trace", "--workload", str(workload), *size, "--out", str(tmp_path / "new"))[2]
    assert "measuring costs, rounds " in err.splitlines()[-1], err


def test_prompts_that_do_not_fit_are_named(run: Run, models: Models, workload: Path, tmp_path: Path) -> None:
    models.max_length = 36
    where = ("--workload", str(workload), "--out", str(tmp_path / "t"))
    status, text, _ = run("trace", *where, "--max-new-tokens", "30", "--length", "2")
    assert (
        status == 0
        and text.splitlines()[0] == "left out: x 0: 7 tokens and 30 new ones do not fit the window of 36"
    )
    status, _, err = run("trace", *where, "--max-new-tokens", "300")
    assert status == 2 and "no prompt fits" in err


def test_drawn_traces(run: Run, models: Models, workload: Path, tmp_path: Path) -> None:
    folder, sampled = tmp_path / "t", ["--max-new-tokens", "20", "--temperature", "1", "--seed", "3"]
    status, _, err = run("trace", "--workload", str(workload), "--out", str(folder), *sampled)
    assert status == 0, err
    ask = ("replay", str(folder), "--policies", "ucb1", "--out", str(tmp_path / "o"))
    status, text, err = run(*ask, "--json", *COSTS)
    assert status == 0, err
    assert all("fraction_of_optimum" not in row for row in json.loads(text)["results"])
    status, _, err = run("oracle", str(folder))
    assert status == 2 and "record it at --temperature 0" in err


BUSY = {"machine": {"cores": 2}, "load": [{"start": 1.5}, {"load": 1.6, "others": 1.25, "over": 3.0}]}
QUIET = {"machine": {"cores": 2}, "load": [{"start": 0.1}, {"load": 0.2, "others": 0.0, "over": 3.0}]}
UNKNOWN: dict[str, Any] = {"machine": {}, "load": []}  # as an older trace has it


@pytest.mark.parametrize(
    ("noted", "clean", "said"),
    [
        (BUSY, False, "NOT CLEAN, the machine was busy when the costs were measured: load 1.50 on 2 cores"),
        (QUIET, True, ""),
        (UNKNOWN, None, "NOT KNOWN TO BE CLEAN: the trace does not say how busy its machine was"),
    ],
)
def test_a_replay_repeats_how_busy_the_machine_was(
    run: Run, traced: Path, tmp_path: Path, noted: Any, clean: bool | None, said: str
) -> None:
    costs = json.loads((traced / "costs.json").read_text())
    assert costs["machine"]["cores"] >= 1 and "start" in costs["load"][0] and len(costs["load"]) == 2
    (traced / "costs.json").write_text(json.dumps(costs | noted))
    out = tmp_path / "out"
    status, text, err = run("replay", str(traced), "--policies", "static-3", "--out", str(out))
    assert status == 0, err
    found = json.loads((out / "results.json").read_text())
    assert found["settings"]["costs"]["source"] == "measured", "the default"
    assert (found["clean"], found["load"], found["machine"]) == (clean, noted["load"], noted["machine"])
    assert said in text and ("CLEAN" in text) == bool(said)
    report = (out / "report.md").read_text()
    notes = {False: "Not a clean run: when the costs", True: "idle when the costs", None: "Not known to be"}
    assert notes[clean] in report
    status, text, err = run("oracle", str(traced))
    assert status == 0 and said in text, err


def test_supposed_costs_were_measured_nowhere(run: Run, traced: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ask = ("--policies", "static-3", "--out", str(out), *COSTS)
    status, text, err = run("replay", str(traced), *ask)
    assert status == 0 and "CLEAN" not in text, err
    found = json.loads((out / "results.json").read_text())
    assert (found["clean"], found["busy"], found["load"]) == (None, [], [])
    assert "the cost profile `c=0.1`, not measured" in (out / "report.md").read_text()
