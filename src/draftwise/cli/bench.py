"""`draftwise bench`: policies and other engines on the same prompts, in one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from draftwise.errors import UserError

from . import show
from .options import (
    DEFAULT_TARGET,
    AsJson,
    Compile,
    Device,
    Drafters,
    Dtype,
    Policies,
    Raw,
    Target,
    TrustRemoteCode,
    drafters_of,
)
from .progress import progress
from .tables import table

if TYPE_CHECKING:
    from draftwise.measure.bench.run import Settings
    from draftwise.measure.bench.runner import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Workload, models and how they decode."""

    workload: Annotated[
        str,
        Option(
            help="spec-bench, mixed, phased, drift, hostile, humaneval:PATH, mbpp:PATH, gsm8k:PATH, "
            "or a JSONL file of prompts."
        ),
    ] = "spec-bench"
    target: Target = DEFAULT_TARGET
    drafters: Drafters = None
    limit: Annotated[int, Option(help="Number of prompts at most; 0: all.")] = 0
    per_category: Annotated[int, Option(help="Prompts of each category; 0: all.")] = 0
    max_new_tokens: Annotated[int, Option(help="Longest text in tokens.")] = 128
    temperature: Annotated[float, Option(help="Sampling temperature; 0 is greedy decoding.")] = 0.0
    batch: Annotated[str, Option(help="Batch size, or several, comma-separated.")] = "1"
    seed: Annotated[
        int, Option(help="Random seed of sampling, of workloads and of the order of methods.")
    ] = 0
    raw: Raw = False
    dtype: Dtype = "auto"
    device: Device = "auto"
    compile: Compile = "kept"
    trust_remote_code: TrustRemoteCode = False

    def given(self) -> list[str]:
        """The command line of these options, without those at their defaults."""
        told: list[str] = []
        for option in fields(self):
            if (value := getattr(self, option.name)) != option.default:
                name = f"--{option.name.replace('_', '-')}"
                told += [name] if value is True else [name, str(value)]
        return told

    def settings(self, **more: Any) -> Settings:
        """The settings of a run."""
        from draftwise.measure.bench.run import Settings

        drafters = drafters_of(self.target, self.drafters)
        try:
            batch = tuple(int(size) for size in self.batch.split(","))
        except ValueError:
            raise UserError(
                f"--batch {self.batch}: give comma-separated whole numbers, such as 1,8"
            ) from None
        same = ("workload", "target", "limit", "per_category", "max_new_tokens", "temperature", "seed", "raw")
        load = ("dtype", "device", "compile", "trust_remote_code")
        given = {name: getattr(self, name) for name in (*same, *load)}
        return Settings(**given, drafters=tuple(drafters), batch=batch, **more)


def bench(
    run: RunOptions,
    out: Annotated[Path, Option(help="The folder for the results; an interrupted run there is resumed.")],
    policies: Policies = "auto",
    peers: Annotated[
        str, Option(help="Comma-separated other engines: transformers, llamacpp, vllm, ENGINE:MODE or all.")
    ] = "",
    split: Annotated[str, Option(help="all, test (not used by `draftwise tune`) or validation.")] = "all",
    as_json: AsJson = False,
) -> None:
    """Measure policies and other engines on the same prompts; the same command resumes an interrupted run.

    Examples:
    draftwise bench --limit 20 --out results
    draftwise bench --policies auto,static-4,none --per-category 5 --out results
    draftwise bench --drafters ngram,suffix --peers transformers --batch 1,4 --out results
    """
    from draftwise.measure.bench import peers as peer
    from draftwise.measure.bench.run import bench as measure
    from draftwise.measure.named import policy_names

    settings = run.settings(policies=policy_names(policies), peers=tuple(peer.names(peers)), split=split)
    try:
        with measuring() as tell:
            found = measure(settings, out, tell=tell)
    except KeyboardInterrupt:
        print(
            f"interrupted; the same command resumes the run in {out}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    _report(out)
    if as_json:
        show.dump(found)
    else:
        summary(found, out)


@contextmanager
def measuring() -> Iterator[Callable[[Progress], None]]:
    """Progress of a run, with its own estimate of the time left."""
    with progress("loading models and warming up") as tell:
        yield lambda at: tell(f"{at.method}, {at.category}", at.done, at.total, at.seconds_left)


def _report(out: Path) -> None:
    """Write report and pictures beside the results."""
    if find_spec("draftwise.measure.report") is not None:
        from draftwise.measure.report import write_report

        write_report(out)


def summary(found: dict[str, Any], out: Path) -> None:
    """Print the results over all categories, the settings of peers, and whether the machine was quiet."""
    from draftwise.measure.results import describe_peer

    rows = [r for r in found["results"] if r["category"] == "all"]
    several = len({r["batch"] for r in rows}) > 1
    columns = ["method", *(["batch"] if several else []), "prompts", "tokens/s", "speedup", "95 %"]
    columns += ["mean of ratios", "accepted", "identical"]
    table(columns, [_cells(row, several) for row in rows])
    for peer in found.get("peers", ()):
        print(f"{peer['method']}: {describe_peer(peer)}")
    trust(found)
    reports = [path for path in (out / "report.html", out / "report.md") if path.exists()]
    print("written:", ", ".join(map(str, [*reports, out / "results.json"])))


def trust(found: dict[str, Any]) -> None:
    """Print what was not measured, doubts about peers, and whether the machine was quiet."""
    for peer in found.get("peers", ()):
        for doubt in peer["doubts"]:
            print(f"doubt: {peer['method']}: {doubt}")
    for absent in found["absent"]:
        print(f"absent: {absent['method']}: {absent['reason']}")
    if found["left_out"]:
        print(f"left out: {len(found['left_out'])} prompts, such as {found['left_out'][0]}")
    show.trust(found)


def _cells(row: dict[str, Any], several: bool) -> list[str]:
    same = "" if row["identical"] is None else f"{row['identical']}/{row['prompts']}"
    return [
        row["method"],
        *([str(row["batch"])] if several else []),
        str(row["prompts"]),
        f"{row['tokens_per_s']:.1f}",
        f"{row['speedup']:.2f}",
        show.interval(row),
        f"{row['mean_of_ratios']:.2f}",
        f"{row['mean_accepted']:.2f}",
        same,
    ]
