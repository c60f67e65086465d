"""`draftwise bench`, `tune` and `report`: policies and other engines on the same prompts, in one run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from draftwise.errors import UserError, pluralize

from . import show
from .options import Policies, WorkloadOptions, complete, drafters_of, policy_names
from .progress import progress, resumable, waiting
from .show import Result, table

if TYPE_CHECKING:
    from draftwise.measure.bench.run import Progress, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(WorkloadOptions):
    """Workload, models and how they decode."""

    batch: Annotated[str, "Batch size, or several, comma-separated."] = "1"

    def as_arguments(self) -> list[str]:
        """The command line of these options, without those at their defaults."""
        arguments: list[str] = []
        for option in fields(self):
            if (value := getattr(self, option.name)) != option.default:
                name = f"--{option.name.replace('_', '-')}"
                arguments += [name] if value is True else [name, str(value)]
        return arguments

    def settings(self, **more: Any) -> Settings:
        from draftwise.measure.bench.run import Settings

        drafters = drafters_of(self.target, self.drafters)
        try:
            batch = tuple(int(size) for size in self.batch.split(","))
        except ValueError:
            raise UserError(
                f"--batch {self.batch}: give comma-separated whole numbers, such as 1,8"
            ) from None
        return Settings(**asdict(self) | {"drafters": tuple(drafters), "batch": batch}, **more)


def bench(
    run: RunOptions,
    out: Annotated[Path, "The folder for the results; an interrupted run there is resumed."],
    policies: Policies = "auto",
    peers: Annotated[
        str, "Comma-separated other engines: transformers, llamacpp, vllm, ENGINE:MODE or all."
    ] = "",
    split: Annotated[str, "all, test (not used by `draftwise tune`) or validation."] = "all",
) -> Result:
    """Measure policies and other engines on the same prompts; the same command resumes an interrupted run.

    Examples:
    draftwise bench --per-category 2 --out results
    draftwise bench --policies auto,static-4,none --per-category 5 --out results
    draftwise bench --drafters ngram,suffix --peers transformers --batch 1,4 --out results
    """
    ours = policy_names(policies)
    with resumable("run", out), measuring() as tell:  # importing PyTorch takes seconds, too
        from draftwise.measure.bench import peers as peer
        from draftwise.measure.bench.run import bench as measure

        settings = run.settings(policies=ours, peers=tuple(peer.names(peers)), split=split)
        results = measure(settings, out, tell=tell)
    draw(out)
    return Result(results, partial(summary, results, out))


@contextmanager
def measuring() -> Iterator[Callable[[Progress], None]]:
    """Progress of a run, with its own estimate of the time left."""
    with progress("loading models and warming up") as tell:
        yield lambda at: tell(f"{at.method}, {at.category}", at.done, at.total, at.seconds_left)


def summary(results: dict[str, Any], out: Path) -> None:
    """Print the results over all categories, the settings of peers, and whether the machine was quiet."""
    from draftwise.measure.results import describe_peer

    rows = [r for r in results["results"] if r["category"] == "all"]
    several = len({r["batch"] for r in rows}) > 1
    columns = ["method", *(["batch"] if several else []), "prompts", "tokens/s", "speedup", "95 %"]
    columns += ["TTFT", "TPOT", "accepted", "identical"]
    table(columns, [_cells(row, several) for row in rows])
    for peer in results.get("peers", ()):
        print(f"{peer['method']}: {describe_peer(peer)}")
    trust(results)
    list_files(out)


def list_files(out: Path) -> None:
    """Print what to open in a folder of results, the report first."""
    reports = [path for path in (out / "report.html", out / "report.md") if path.exists()]
    print("written:", ", ".join(map(str, [*reports, out / "results.json"])))


def trust(results: dict[str, Any]) -> None:
    """Print what was not measured, doubts about peers, and whether the machine was quiet."""
    for peer in results.get("peers", ()):
        for doubt in peer["doubts"]:
            print(f"doubt: {peer['method']}: {doubt}")
    for absent in results["absent"]:
        print(f"absent: {absent['method']}: {absent['reason']}")
    if results["left_out"]:
        left_out = pluralize(len(results["left_out"]), "prompt")
        print(f"left out: {left_out}, such as {results['left_out'][0]}")
    show.trust(results)


def _cells(row: dict[str, Any], several: bool) -> list[str]:
    same = "" if row["identical"] is None else f"{row['identical']}/{row['prompts']}"
    method, *speeds, accepted = show.speeds(row)
    batch = [str(row["batch"])] if several else []
    ttft = "" if row["ttft_s"] is None else f"{row['ttft_s']:.2f} s"
    tpot = "" if row["tpot_s"] is None else f"{1000 * row['tpot_s']:.1f} ms"
    return [method, *batch, *speeds, ttft, tpot, accepted, same]


def tune(
    policy: Annotated[
        str,
        Option(
            help="Comma-separated policies to tune: static, svip, disco?model=FOLDER, ...",
            autocompletion=complete("policies", several=True),
        ),
    ],
    run: RunOptions,
    grid: Annotated[
        list[str] | None,
        "option=A,B: values to try; several give their product. Default: the policy's own grid.",
    ] = None,
    out: Annotated[
        Path | None, "Keep the measurements in this folder; the same command resumes an interrupted run."
    ] = None,
) -> Result:
    """Search a policy's options for speed on the validation split, which `bench --split test` never uses.

    Examples:
    draftwise tune --policy static --per-category 2
    draftwise tune --policy svip --grid threshold=0.3,0.6 --grid length=10,40 --out tuned
    """
    from draftwise.measure.bench.tune import best, candidates, parse_grid

    own_grid = parse_grid(grid or [])
    variants = {name: candidates(name, own_grid) for name in policy_names(policy)}
    own_folder = resumable("run", out) if out else nullcontext()
    with TemporaryDirectory() as scratch, own_folder, measuring() as tell:
        from draftwise.measure.bench.run import bench

        everyone = tuple(dict.fromkeys(text for texts in variants.values() for text in texts))
        settings = run.settings(policies=everyone, split="validation")
        results = bench(settings, out or Path(scratch), tell=tell)
    winners = {name: best(texts, results["results"]) for name, texts in variants.items()}
    chosen = {name: row["method"] for name, row in winners.items()}
    rows = [row for row in results["results"] if row["category"] == "all"]
    value = {"best": chosen, "tried": rows}
    value |= {key: results[key] for key in ("clean", "busy", "machine", "settings")}
    again = _test_command(run, [*chosen.values()], out)
    return Result(value, partial(_print, winners, rows, results, again))


def _test_command(run: RunOptions, policies: Sequence[str], out: Path | None) -> str:
    """The command that measures policies on the test split, into a folder that does not exist yet."""
    comma = " " if any("," in one for one in policies) else ","  # blanks separate those that contain one
    name = f"{out}-test" if out else "tuned"
    folders = chain([name], (f"{name}-{n}" for n in count(2)))
    folder = next(one for one in folders if not Path(one).exists())
    options = ["--split", "test", "--policies", comma.join(policies), "--out", folder]
    return shlex.join(["draftwise", "bench", *run.as_arguments(), *options])


def _print(winners: dict[str, Any], rows: list[Any], results: dict[str, Any], again: str) -> None:
    chosen = {row["method"] for row in winners.values()}
    table((*show.SPEEDS, ""), [[*show.speeds(r), "best" if r["method"] in chosen else ""] for r in rows])
    trust(results)
    for name, row in winners.items():
        print(f"best {name}: {row['method']}")
    for row in winners.values():
        if row["speedup"] < 1.0:
            print(f"slower than plain decoding: {row['method']}, though the best of its grid")
    print("measure on the test split with:", again)


def draw(folder: Path, beside: Sequence[Path] = ()) -> None:
    """Write the report of a folder of results, which takes seconds where there are many pictures."""
    from draftwise.measure.report import write_report

    with waiting("drawing"):
        write_report(folder, beside=beside)


def report(
    folder: Annotated[
        Path, typer.Argument(help="A folder that bench, replay or simulate wrote with --out.", metavar="DIR")
    ],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with the run in this folder; may be given several times.", metavar="DIR"),
    ] = None,
) -> Result:
    """Write report.html, report.md and pictures for a folder of results.

    Examples:
    draftwise report results
    draftwise report results --beside earlier-results
    """
    draw(folder, beside or ())
    page = folder / "report.html"
    return Result({"report": str(page), "markdown": str(folder / "report.md")}, partial(print, page))
