"""`draftwise tune`: the best options of a policy, on prompts reserved for tuning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from typer import Option

from . import show
from .bench import RunOptions, measuring, trust
from .complete import policy_names
from .options import AsJson
from .tables import table


def tune(
    policy: Annotated[
        str,
        Option(
            help="Comma-separated policies to tune: static, svip, disco?model=FOLDER, ...",
            autocompletion=policy_names,
        ),
    ],
    run: RunOptions,
    grid: Annotated[
        list[str] | None,
        Option(help="option=A,B: values to try; several give their product. Default: the policy's own grid."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Keep the measurements in this folder; the same command resumes an interrupted run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search a policy's options for speed on the validation split, which `bench --split test` never uses.

    Examples:
    draftwise tune --policy static --limit 20
    draftwise tune --policy svip --grid threshold=0.3,0.6 --grid length=10,40 --out tuned
    """
    from draftwise.measure.bench.run import bench
    from draftwise.measure.bench.tune import best, candidates, parse_grid
    from draftwise.measure.named import policy_names

    asked = policy_names(policy)
    given = parse_grid(grid or [])
    tried = {name: candidates(name, given) for name in asked}
    everyone = tuple(dict.fromkeys(text for texts in tried.values() for text in texts))
    settings = run.settings(policies=everyone, split="validation")
    with TemporaryDirectory() as scratch, measuring() as tell:
        found = bench(settings, out or Path(scratch), tell=tell)
    winners = {name: best(texts, found["results"]) for name, texts in tried.items()}
    if as_json:
        show.dump(_as_dict(winners, found))
    else:
        _print(winners, found)
        joined = _joined([row["method"] for row in winners.values()])
        print(
            "measure on the test split with:",
            shlex.join(["draftwise", "bench", *run.given(), *joined, *_place(out)]),
        )


def _joined(policies: Sequence[str]) -> list[str]:
    """The options that measure these policies; spaces separate them where one contains a comma."""
    return ["--split", "test", "--policies", (" " if any("," in p for p in policies) else ",").join(policies)]


def _place(out: Path | None) -> list[str]:
    """A folder that does not exist yet."""
    name = f"{out}-test" if out else "tuned"
    names = chain([name], (f"{name}-{n}" for n in count(2)))
    return ["--out", next(name for name in names if not Path(name).exists())]


def _as_dict(winners: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    tried = [row for row in found["results"] if row["category"] == "all"]
    same = {key: found[key] for key in ("clean", "busy", "machine", "settings")}
    return {"best": {name: row["method"] for name, row in winners.items()}, "tried": tried, **same}


def _print(winners: dict[str, Any], found: dict[str, Any]) -> None:
    chosen = {row["method"] for row in winners.values()}
    rows = []
    for row in (row for row in found["results"] if row["category"] == "all"):
        mark = "best" if row["method"] in chosen else ""
        numbers = (f"{row['tokens_per_s']:.1f}", f"{row['speedup']:.2f}", show.interval(row))
        rows.append([row["method"], str(row["prompts"]), *numbers, f"{row['mean_accepted']:.2f}", mark])
    table(("method", "prompts", "tokens/s", "speedup", "95 %", "accepted", ""), rows)
    trust(found)
    for name, row in winners.items():
        print(f"best {name}: {row['method']}")
