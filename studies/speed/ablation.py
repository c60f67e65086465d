"""The gain of each part of `auto`: replays of traces with one part left out at a time.

    python -m studies.speed.ablation TRACE [TRACE ...] [--costs COSTS] [--parts costs,stop] [--json FILE]

For each trace: the time without the part divided by the time with it, and the middle 95 % of that ratio over
resampled prompts (the same prompts on both sides). Above 1 the part saves time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.files import is_cascade
from draftwise.measure.trace.stage import Stage
from studies.common.command import command, listed, start
from studies.speed.without import PARTS, without

PAGE = "docs/explanation/auto-measured.md"

DRAWS = 2000
Seconds = NDArray[np.float64]
Row = dict[str, Any]


def variants(drafters: Sequence[str], parts: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """The part that is missing, and the drafters, by label; the whole of `auto` comes first."""
    alone = {
        f"all but {name}": ("", [name]) for name in drafters if "others" in parts and not is_cascade(name)
    }
    return {
        "auto": ("", list(drafters)),
        **{part: (part, list(drafters)) for part in parts},
        **(alone if len(drafters) > 1 else {}),
    }


def seconds(
    trace: Trace, costs: Costs, made: Mapping[str, tuple[str, list[str]]]
) -> tuple[list[str], dict[str, Seconds]]:
    """Categories of the prompts, and the seconds of every variant on each."""
    loops = {label: Replay(trace, without(part, drafters), costs) for label, (part, drafters) in made.items()}
    found: dict[str, list[float]] = {label: [] for label in made}
    categories = []
    for recording in trace:
        stage = Stage(recording)
        categories.append(recording.category)
        for label, loop in loops.items():
            found[label].append(sum(round.seconds.total for round in loop.play(stage)))
    return categories, {label: np.array(values) for label, values in found.items()}


def ratio(lacking: Seconds, whole: Seconds, *, seed: int = 0) -> tuple[float, float, float]:
    """Time without over time with, and the middle 95 % over resampled prompts."""
    picks = np.random.default_rng(seed).integers(0, len(whole), (DRAWS, len(whole)))
    low, high = np.quantile(lacking[picks].sum(1) / whole[picks].sum(1), [0.025, 0.975])
    return float(lacking.sum() / whole.sum()), float(low), float(high)


def rows(categories: Sequence[str], found: Mapping[str, Seconds]) -> list[Row]:
    """One row for each variant: the ratio, its interval, and the least and greatest of any category."""
    whole, names = found["auto"], np.array(categories)
    made = []
    for label, lacking in found.items():
        by = {str(c): float(lacking[names == c].sum() / whole[names == c].sum()) for c in np.unique(names)}
        value, low, high = ratio(lacking, whole)
        made.append({"part": label, "ratio": value, "low": low, "high": high, "categories": by})
    return made


def main() -> None:
    """Print one table for each trace."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", help="a file, a profile or c=NUMBER; by default those of each trace")
    parser.add_argument("--parts", type=listed, default=",".join(PARTS))
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    asked = parser.parse_args()
    kept = {}
    for folder in asked.traces:
        trace, costs = Trace(folder), read_costs(asked.costs or str(folder / "costs.json"))
        found = kept[folder.name] = rows(*seconds(trace, costs, variants(trace.team("auto"), asked.parts)))
        print(f"\n{folder.name}, {len(trace)} prompts\n")
        print("| without | time | 95 % | least and most in a category |\n|---|---|---|---|")
        for row in found:
            by = row["categories"].values()
            print(
                f"| {row['part']} | {row['ratio']:.3f} | {row['low']:.3f} to {row['high']:.3f} "
                f"| {min(by):.3f} to {max(by):.3f} |",
                flush=True,
            )
    if asked.json:
        asked.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")


if __name__ == "__main__":
    start(main)
