"""The parts of the GPU study that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from studies.common import gpu_bench, parts
from studies.common.parts import Row, print_rows, run_part
from studies.exactness.sampled import two_samples
from studies.speed import gpu
from tests.core.test_late import late

ROOT = Path(__file__).parents[3]


def test_waits_and_copies_are_counted_a_round() -> None:
    names = ["cudaStreamSynchronize", "aten::mm", "cudaStreamSynchronize", "Memcpy DtoH (Device -> Pageable)"]
    assert gpu.event_counts(names, 2) == {"Memcpy DtoH": 0.5, "cudaStreamSynchronize": 1.0}
    assert gpu.event_counts([], 3) == {}


def test_a_timeline_shows_what_the_gpu_computes_in_each_phase() -> None:
    """Two rounds: kernels that run beside each other count once, and what comes late is hidden whole."""
    phases = [("launch", 0.0, 1e3), ("learn late", 1e3, 3e3), ("read", 3e3, 5e3), ("launch", 6e3, 7e3)]
    busy = [(500.0, 2e3), (1500.0, 4e3), (3e3, 4e3), (6500.0, 6600.0)]
    assert gpu.timeline(phases, busy, 2) == [
        {"phase": "launch", "ms": 1.0, "gpu_ms": 0.3},
        {"phase": "learn late", "ms": 1.0, "gpu_ms": 1.0},
        {"phase": "read", "ms": 1.0, "gpu_ms": 0.5},
    ]


def test_a_gpu_idles_where_no_kernel_runs_during_the_rounds() -> None:
    """Whatever the profiler takes before and after them; kernels beside each other count once."""
    phases = [("launch", 0.0, 1e3), ("read", 1e3, 4e3)]
    assert gpu.idle_share(phases, [(-5e3, 500.0), (1e3, 2e3), (1500.0, 2e3), (3500.0, 9e3)]) == 0.5
    assert gpu.idle_share(phases, []) == 1.0


def test_parts_have_more_time_where_there_is_more() -> None:
    assert gpu.limit("text", 2.0) == gpu.limit("text", 8.0) == gpu.PARTS["text"][1]
    assert gpu.limit("text", 16.0) == 2 * gpu.PARTS["text"][1]


@pytest.mark.parametrize(("only", "expected"), [("law,head", [45.0, 480.0]), ("exact", [480.0])])
def test_the_last_part_has_all_time_that_is_left(
    only: str, expected: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[float] = []
    monkeypatch.setattr(gpu, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(gpu, "run_part", lambda line, seconds, note: most.append(seconds))
    args = gpu.options().parse_args(["--only", only, "--out", str(tmp_path)])
    gpu.run_all(args, [])
    assert most == expected


def test_phases_of_rounds_are_marked_once_each() -> None:
    """Of a target with a device of its own the launch, the late learning and the read; of others the pass."""
    for is_asynchronous, passes in ((True, ["launch", "learn late", "read"]), (False, ["verify"])):
        loop, _ = late("static-3?drafter=good")
        loop.launcher = loop.target if is_asynchronous else None
        gpu.mark_phases(loop)
        loop.add([0], Sampling(max_new_tokens=50))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            loop.step()
        begins = {event.name: event.time_range.start for event in seen.events()}
        names = [name.removeprefix(gpu.PHASE) for name in sorted(begins, key=begins.__getitem__)]
        assert names == ["decide", "draft", *passes, "accept", "grade", "learn"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "out")])
    with pytest.raises(UserError, match="no CUDA device"):
        gpu.main()
    assert not list(tmp_path.iterdir())


def test_a_wider_target_writes_the_same_text() -> None:
    args = Namespace(cpu=True)
    plain, heavy = (gpu_bench.Bench(args).target("float32", times, 12) for times in (1, 3))
    assert heavy.config.intermediate_size == 3 * plain.config.intermediate_size
    assert heavy.num_parameters() > 2 * plain.num_parameters()
    ids = torch.tensor([[1, 5, 9, 700, 12, 40]])
    assert torch.allclose(heavy(ids).logits, plain(ids).logits, atol=1e-4)


def test_a_part_runs_on_a_cpu_and_leaves_its_rows_in_the_file(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "studies.speed.gpu", "--cpu", "--only", "passes", "--out", str(tmp_path)]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert ran.returncode == 0, rows
    kinds = Counter(row["kind"] for row in rows if "ms" in row)
    growing = {f"eager, new lengths, {which} attention": 1 for which in ("any", "no cuDNN")}
    assert kinds == {"graph": 4, "eager": 2, **growing}


def test_samples_of_one_law_and_of_two() -> None:
    rng = Random(0)
    draws = [Counter(rng.choices(range(6), [1, 2, 3, 4, 5, w], k=900)) for w in (6, 6, 1)]
    statistic, freedom, p = two_samples(draws[0], draws[1])
    assert freedom == 5 and statistic < 15 and p > 0.01
    assert two_samples(draws[0], draws[2])[2] < 1e-3


CHILD = """
import os, sys, time
print('{"n": 1}', flush=True)
print("a warning")
print("{'some': 'library'}")
if sys.argv[1] == "hangs": print('{"n": 2, "cu', end="", flush=True); time.sleep(600)
if sys.argv[1] == "fails": os.write(2, bytes([0xe2, 10])); raise RuntimeError("out of memory")
print('{"n": 2}', flush=True)
"""


@pytest.mark.parametrize(
    ("how", "count", "reason"),
    [("ends", 2, ""), ("fails", 1, "out of memory"), ("hangs", 1, "took longer than 3 s")],
)
def test_a_part_that_fails_or_hangs_leaves_its_rows(
    monkeypatch: pytest.MonkeyPatch, how: str, count: int, reason: str
) -> None:
    """The time is over when the first row of the one that hangs is there."""
    timers: list[Any] = []

    class AtOnce:
        def __init__(self, seconds: float, function: Any) -> None:
            timers.append(function)

        def start(self) -> None: ...
        def cancel(self) -> None: ...

    monkeypatch.setattr(parts, "Timer", AtOnce)
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        if how == "hangs":
            timers[0]()

    why = run_part([sys.executable, "-c", CHILD, how], 3.0, note)
    assert rows == [{"n": n + 1} for n in range(count)]
    assert reason in why and bool(why) == bool(reason)


def test_a_step_that_raises_leaves_the_others_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    def steps() -> Any:
        yield lambda: {"n": 1}
        yield lambda: {"n": 1 // 0}
        yield lambda: {"n": 3}
        raise KeyError("the rest")

    assert print_rows("text", steps()) == 2
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("n") for row in rows] == [1, None, 3, None]
    assert "ZeroDivisionError" in rows[1]["error"] and "the rest" in rows[3]["error"]
