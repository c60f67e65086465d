"""`draftwise oracle`: the shortest time that any policy could have needed on a trace."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import show
from .options import AsJson, distinct
from .progress import progress
from .replay import COSTS, DRAFTERS, WHEN, costs_of
from .tables import line, table


def oracle(
    trace: Annotated[Path, typer.Argument(help="A folder that `draftwise trace` wrote.", metavar="TRACE")],
    drafters: Annotated[str, typer.Option(help=DRAFTERS)] = "",
    costs: Annotated[str, typer.Option(help=f"{COSTS} Default: the costs measured with the trace.")] = "",
    out: Annotated[Path | None, typer.Option(help="Also write oracle.json to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the shortest time over all choices of drafter and length, and the times of fixed arms.

    "composite" is the shortest time if one draft may have parts of several drafters.

    Examples:
    draftwise oracle my-trace
    draftwise oracle my-trace --costs c=0.1 --drafters ngram,suffix
    """
    from draftwise.measure.trace import Trace
    from draftwise.measure.trace.results import foreseen
    from draftwise.measure.writing import make_folder, write_json

    recorded = Trace(trace, distinct(drafters, "--drafters"))
    if out is not None:
        make_folder(out)
    with progress("computing the optimum") as tell:
        found = foreseen(recorded, costs_of(recorded, costs), progress=partial(tell, "prompts"))
    if out is not None:
        write_json(out / "oracle.json", found)
    if as_json:
        show.dump(found)
        return
    table(COLUMNS, [_cells(row) for row in found["results"]])
    line("Seconds; in parentheses, the optimum as a percentage of them.")
    show.trust(found, WHEN)


COLUMNS = ("category", "tokens", "optimum", "composite", "best fixed in hindsight", "DISCO's oracle", "none")


def _cells(row: dict[str, Any]) -> list[str]:
    fixed, least = row["best_fixed"], row["optimum"]
    arm = f"{fixed['drafter']}:{fixed['length']}" if fixed["length"] else "none"
    who, just = min(row["exactly"].items(), key=lambda pair: pair[1]) if row["exactly"] else ("", None)

    def share(seconds: float) -> str:
        return f"{seconds:.2f} ({100 * least / seconds:.0f} %)"

    return [
        row["category"],
        str(row["new_tokens"]),
        f"{least:.2f}",
        f"{row['optimum_composite']:.2f}",
        f"{arm} {share(fixed['seconds'])}",
        "" if just is None else f"{who} {share(just)}",
        share(row["none"]),
    ]
