"""`draftwise replay`: policies on a recorded trace, without the models."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import show
from .options import AsJson, Policies, distinct
from .progress import progress
from .tables import table

if TYPE_CHECKING:
    from draftwise.measure.trace import Costs, Trace

DRAFTERS = "Comma-separated drafters of the trace. Default: all of them."
WHEN = "when the costs were measured"
COSTS = "A file of seconds, a published profile, or c=NUMBER (cost of a draft token in target passes)."


def replay(
    trace: Annotated[Path, typer.Argument(help="A folder that `draftwise trace` wrote.", metavar="TRACE")],
    out: Annotated[Path, typer.Option(help="The folder for the results.")],
    policies: Policies = "auto",
    drafters: Annotated[str, typer.Option(help=DRAFTERS)] = "",
    costs: Annotated[str, typer.Option(help=f"{COSTS} Default: the costs measured with the trace.")] = "",
    seed: Annotated[int, typer.Option(help="Random seed of the policies.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run policies on a trace; under greedy decoding the rounds equal those of live decoding.

    Examples:
    draftwise replay my-trace --out replayed
    draftwise replay my-trace --policies auto,ucb1,static-4 --costs c=0.05 --out replayed
    """
    from draftwise.measure.named import policy_names
    from draftwise.measure.trace import Trace
    from draftwise.measure.trace.results import replayed

    names = policy_names(policies)
    recorded = Trace(trace, distinct(drafters, "--drafters"))
    with progress("replaying") as tell:
        count = partial(tell, "prompts")
        found = replayed(recorded, names, costs_of(recorded, costs), out, seed=seed, progress=count)
    report(out)
    if as_json:
        show.dump(found)
        return
    table(COLUMNS, [cells(row) for row in found["results"] if row["category"] == "all"])
    show.trust(found, WHEN)
    print("written:", out / "results.json")


COLUMNS = ("method", "prompts", "tokens/s", "speedup", "95 %", "accepted", "of the optimum")


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    optimum = row.get("fraction_of_optimum")
    return [
        row["method"],
        str(row["prompts"]),
        f"{row['tokens_per_s']:.1f}",
        f"{row['speedup']:.2f}",
        show.interval(row),
        f"{row['mean_accepted']:.2f}",
        "" if optimum is None else f"{100 * optimum:.1f} %",
    ]


def costs_of(trace: Trace, asked: str) -> Costs:
    """The given costs, or those measured with the trace."""
    from draftwise.measure.trace import read_costs

    return read_costs(asked or str(trace.folder / "costs.json"))


def report(out: Path) -> None:
    """Write report and pictures beside the results."""
    if find_spec("matplotlib") is not None:
        from draftwise.measure.report import write_report

        write_report(out)
