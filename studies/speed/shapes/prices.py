"""What policies make, by replay, of recorded acceptance at the prices of other models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from draftwise.measure.trace import Costs, Trace
from draftwise.measure.trace.results import replayed
from studies.speed.shapes.cases import LOOKUPS

DRAFTER = "zoo:general"
LENGTHS = (1, 2, 4, 8)
OPTIMUM = "optimum"
Row = dict[str, Any]


def recorded(folder: Path) -> Trace:
    """A trace with the one model whose price is measured, and its lookups.

    Raises:
        UserError: the trace has no such model.
    """
    names = list(Trace(folder).drafters)
    if DRAFTER not in names:
        raise UserError(
            f"trace {str(folder)!r} lacks {DRAFTER}: record it with --drafters {DRAFTER},ngram,suffix"
        )
    return Trace(folder, [name for name in names if name == DRAFTER or name in LOOKUPS])


def methods(drafters: Sequence[str]) -> list[str]:
    """Plain decoding, static lengths of the model, the lookups at their best lengths, and `auto`."""
    found = ["none", *(f"static-{n}?drafter={DRAFTER}" for n in LENGTHS)]
    lookups = {"ngram": "static-8?drafter=ngram", "suffix": "static-16?drafter=suffix"}
    return [*found, *(name for drafter, name in lookups.items() if drafter in drafters), "auto"]


def replay(out: Path, trace: Trace, tables: Mapping[str, Costs], *, again: bool = False) -> None:
    """Replay every method at the prices of every case into `replay/CASE`; those that are there are kept."""
    names = methods(list(trace.drafters))
    for case, costs in tables.items():
        folder = out / "replay" / case
        if again or not (folder / "results.json").is_file():
            replayed(trace, names, costs, folder)
            (folder / "rounds.jsonl").unlink()  # hundreds of megabytes in all, and no table reads it
            print(f"  replayed at the prices of {case}", flush=True)


def speedups(out: Path, case: str) -> dict[str, Row]:
    """The row over all prompts of each method, and of the optimum, in the order of the replay."""
    text = (out / "replay" / case / "results.json").read_text(encoding="utf-8")
    rows = {row["method"]: row for row in json.loads(text)["results"] if row["category"] == "all"}
    best = 1.0 / rows["none"]["fraction_of_optimum"]
    return rows | {OPTIMUM: {"method": OPTIMUM, "speedup": best, "interval": None}}
