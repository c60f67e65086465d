"""Microbenchmarks of single parts on this machine: the minimum of several passes.

    python -m studies.microbench [PART ...] [--passes 5] [--trace TRACE] [--json FILE]

The benchmarks use pytest-benchmark, in `bench_PART.py`, one process each. The parts take turns, pass by pass,
so that load on the machine affects all of them alike. Unless stated otherwise, a time is CPU seconds of the
benchmark's own thread, the minimum over all rounds; the range is that of the minima of the passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.common.command import command, start

PAGE = "docs/explanation/lookups.md"
HERE = Path(__file__).parent
PARTS = sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))
OPTIONS = ["--benchmark-only", "--benchmark-timer=time.thread_time", "--benchmark-max-time=0.2"]
QUIET = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-o", "python_files=bench_*.py"]
ENVIRONMENT = {  # freed blocks go back at once, so that the count is of what is in use
    "memory": {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
}


def measured(part: str, trace: str) -> list[dict[str, Any]]:
    """One pass of one part, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "benchmarks.json"
        words = [sys.executable, "-m", "pytest", str(HERE / f"bench_{part}.py"), *QUIET, *OPTIONS]
        words += [f"--benchmark-json={out}", *([f"--replayed-trace={trace}"] if trace else [])]
        environment = os.environ | ENVIRONMENT.get(part, {})
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{part}: its benchmarks failed:\n{ran.stdout[-3000:]}{ran.stderr[-2000:]}")
        benchmarks: list[dict[str, Any]] = json.loads(out.read_text())["benchmarks"]
        return benchmarks


def row(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """A benchmark's least time with the range over the passes, and what else it says, the least of each."""
    least = [1e6 * run["stats"]["min"] for run in runs]
    extras = {key: min(run["extra_info"][key] for run in runs) for key in runs[0]["extra_info"]}
    figures = ", ".join(f"{key} {value:.2f}" for key, value in extras.items())
    return f"| {name} | {min(least):,.2f} | {min(least):,.2f} to {max(least):,.2f} | {figures} |"


def main() -> None:
    """Print one table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--trace", default="", help="for replay: a trace in place of a simulated one")
    parser.add_argument("--json", type=Path, help="also write all numbers here")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"{min(unknown)}: choose from {', '.join(PARTS)}")
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(args.passes):
        for part in args.parts or PARTS:
            print(f"pass {number + 1} of {args.passes}: {part}", file=sys.stderr, flush=True)
            for run in measured(part, args.trace):
                by_name[f"{part}: {run['name'].removeprefix('test_')}"].append(run)
    print("| benchmark | us | over the passes | also |\n|---|---|---|---|")
    for name, runs in by_name.items():
        print(row(name, runs))
    print(f"\nload {os.getloadavg()[0]:.2f}")
    if args.json:
        args.json.write_text(json.dumps(by_name, indent=1), encoding="utf-8")


if __name__ == "__main__":
    start(main)
