"""`draftwise bench`: every policy and every peer on the same prompts, in one run."""

from __future__ import annotations

import sys
import time
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
from .options import AsJson, drafters_of, with_options
from .tables import table

if TYPE_CHECKING:
    from draftwise.measure.bench.run import Settings
    from draftwise.measure.bench.runner import Progress

EVERY = 10.0  # seconds between two lines of progress where nobody looks at a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is decoded, by whose text and drafts, and how."""

    workload: Annotated[
        str,
        Option(
            help="spec-bench, mixed, phased, drift, hostile, humaneval:PATH, mbpp:PATH, gsm8k:PATH, "
            "or a JSONL file of prompts."
        ),
    ] = "spec-bench"
    target: Annotated[str, Option(help="Whose text: zoo:NAME, a folder or a Hugging Face id.")] = "zoo:target"
    drafters: Annotated[
        str | None,
        Option(
            help="Who drafts, with commas between. Default: ngram,suffix; zoo:general too for zoo:target."
        ),
    ] = None
    limit: Annotated[int, Option(help="At most so many prompts; 0 = all.")] = 0
    per_category: Annotated[int, Option(help="The first so many prompts of each category; 0 = all.")] = 0
    max_new_tokens: Annotated[int, Option(help="Write at most so many tokens.")] = 128
    temperature: Annotated[float, Option(help="0 takes the likeliest token; 1 draws as the model is.")] = 0.0
    batch: Annotated[str, Option(help="Prompts decoded together; several sizes with commas.")] = "1"
    seed: Annotated[int, Option(help="For the order of methods, for drawing, and for drawn workloads.")] = 0
    raw: Annotated[bool, Option("--raw", help="No chat template around the prompts.")] = False
    dtype: Annotated[str, Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto"
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run the code in the model's folder.")
    ] = False

    def given(self) -> list[str]:
        """The command line of these options, without those that are as they are by default."""
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
            raise UserError(f"--batch {self.batch}: write whole numbers with commas, such as 1,8") from None
        same = ("workload", "target", "limit", "per_category", "max_new_tokens", "temperature", "seed", "raw")
        given = {name: getattr(self, name) for name in (*same, "dtype", "device", "trust_remote_code")}
        return Settings(**given, drafters=tuple(drafters), batch=batch, **more)


@with_options
def bench(
    run: RunOptions,
    out: Annotated[Path, Option(help="The folder for the results; a run that is there goes on.")],
    policies: Annotated[
        str, Option(help="Who decides, with commas between: names of `draftwise policies`.")
    ] = "auto",
    peers: Annotated[
        str, Option(help="Others, with commas between: transformers, llamacpp, vllm, ENGINE:MODE or all.")
    ] = "",
    split: Annotated[str, Option(help="all, test (never used by `draftwise tune`) or validation.")] = "all",
    as_json: AsJson = False,
) -> None:
    """Measure policies and peers on the same prompts in one run; interrupted, the same command goes on."""
    from draftwise.measure.bench import peers as peer
    from draftwise.measure.bench.run import bench as measure
    from draftwise.measure.bench.run import policy_names

    settings = run.settings(policies=policy_names(policies), peers=tuple(peer.names(peers)), split=split)
    try:
        with progress() as tell:
            found = measure(settings, out, tell=tell)
    except KeyboardInterrupt:
        print(f"interrupted; what is finished is in {out}, and the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    _report(out)
    if as_json:
        show.dump(found)
    else:
        summary(found, out)


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left where stderr is a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        last = [time.monotonic()]

        def line(at: Progress) -> None:
            if time.monotonic() - last[0] >= EVERY:
                last[0] = time.monotonic()
                print(f"{at.done}/{at.total} {at.method}, {at.category}; {left(at)}", file=sys.stderr)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.fields[doing]}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TextColumn("{task.fields[left]}"), console=show.console(stderr=True)) as bar:
        task = bar.add_task("", total=None, doing="Loading and warming up", left="")

        def draw(at: Progress) -> None:
            doing = f"{at.category}: {at.method}"
            bar.update(task, completed=at.done, total=at.total, doing=doing[:48], left=left(at))

        yield draw


def left(at: Progress) -> str:
    """The estimate in words."""
    if at.seconds_left is None:
        return "time left: not known yet"
    minutes, seconds = divmod(round(at.seconds_left), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"


def _report(out: Path) -> None:
    """Report and pictures beside the results."""
    if find_spec("draftwise.measure.report") is not None:
        from draftwise.measure.report import write_report

        write_report(out)


def summary(found: dict[str, Any], out: Path) -> None:
    """What a person wants to know first: the table over all categories, and how far to trust it."""
    rows = [r for r in found["results"] if r["category"] == "all"]
    several = len({r["batch"] for r in rows}) > 1
    columns = ["method", *(["batch"] if several else []), "prompts", "tokens/s", "speedup", "95 %"]
    columns += ["mean of ratios", "accepted", "identical"]
    table(columns, [_cells(row, several) for row in rows])
    trust(found)
    reports = [path for path in (out / "report.html", out / "report.md") if path.exists()]
    print("written:", ", ".join(map(str, [*reports, out / "results.json"])))


def trust(found: dict[str, Any]) -> None:
    """What was not measured, and whether the machine was quiet."""
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
