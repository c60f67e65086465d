from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from draftwise.measure import machine
from draftwise.measure.machine import Meter, describe, judge
from draftwise.models import threads


def sample(others: float | None, over: float = 2.0) -> dict[str, Any]:
    return {"load": 1.0, "others": others, "over": over}


@pytest.mark.parametrize(
    "starts, samples, said",
    [
        ([0.3], [sample(0.05)] * 9, []),
        ([0.9], [sample(0.05)], ["load 0.90 on 2 cores at the start"]),
        ([0.1, 0.9], [sample(0.05)], ["load 0.90 on 2 cores at the start"]),
        ([0.1], [sample(0.3)] * 9, ["others used 0.30 of 2 cores on average"]),
        ([0.1], [sample(0.0)] * 30 + [sample(1.5)], ["others used up to 1.50 of 2 cores"]),
        ([0.1], [sample(0.0)] * 30 + [sample(1.5, over=0.02)], []),
        ([None], [sample(0.0)], ["this system tells no load average"]),
        ([0.1], [sample(None)], ["the load during the run was not measured"]),
    ],
)
def test_a_busy_machine_is_not_called_clean(starts: Any, samples: Any, said: list[str]) -> None:
    assert judge(starts, samples, 2) == said


def test_one_core_is_no_cores() -> None:
    assert judge([0.9], [sample(0.3)], 1) == [
        "load 0.90 on 1 core at the start",
        "others used 0.30 of 1 core on average",
    ]


def test_others_are_all_busy_time_less_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0])
    busy, own = iter([100.0, 112.0, 115.0]), iter([50.0, 59.0, 62.5])
    monkeypatch.setattr("draftwise.models.threads.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(threads, "_busy", lambda: next(busy))
    monkeypatch.setattr(Meter, "_own", lambda self: next(own))
    meter = Meter()
    assert meter.sample()["others"] == 0.3
    assert meter.sample()["others"] == 0.0, "a tick of the clock is not another process"


def test_without_proc_the_load_average_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_busy", lambda: float("nan"))
    monkeypatch.setattr(threads, "load_average", lambda: threads._own_cores() + 1.5)
    assert Meter().sample()["others"] == 1.5
    monkeypatch.setattr(threads, "load_average", lambda: None)
    assert Meter().sample()["others"] is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads /proc")
def test_a_process_of_ours_is_not_somebody_else() -> None:
    code = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
    code += "print('done', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        known, unknown = Meter({child.pid}), Meter()
        assert child.stdout is not None
        child.stdout.readline()
        (a, b) = known.sample(), unknown.sample()
        child.communicate("\n")
    assert a["others"] is not None and b["others"] is not None and b["over"] is not None
    assert b["others"] - a["others"] > 0.2 / b["over"]


def test_the_machine_is_described() -> None:
    facts = describe()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["versions"]["draftwise"]
    assert "vllm" not in facts["versions"] or facts["versions"]["vllm"]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            ["/home/me/.venv/bin/draftwise", "bench", "--out", "my results"],
            "draftwise bench --out 'my results'",
        ),
        (
            ["/lib/draftwise/__main__.py", "replay", "a", "--policies", ""],
            "python -m draftwise replay a --policies ''",
        ),
    ],
)
def test_a_command_can_be_pasted_again(
    argv: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    run = machine.run()
    assert run["command"] == command
    assert datetime.fromisoformat(run["date"]).utcoffset() is not None, "with its time zone"
