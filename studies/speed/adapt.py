"""Does a policy adapt? Every policy against every fixed drafter, by category, replayed on one trace.

    draftwise trace --per-category 2 --max-new-tokens 64 --overlap --out TRACE --drafters \\
        zoo:general,zoo:code,zoo:math,zoo:qa,zoo:sql,zoo:summarization,zoo:translation,ngram,suffix
    python -m studies.speed.adapt TRACE --costs llama-8b-eagle --out FOLDER --pictures docs/pictures

Figures of docs/explanation/adapt.md. Policies have their defaults, and drafts of at most 16 tokens, the
longest in the trace. Accepted tokens are exact: a replay makes the same rounds as live decoding. Times are
computed from the costs, by default those measured with the trace; `auto` learns from them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.measure.report.colours import SPEEDUPS, ratio_ticks, ratios
from draftwise.measure.trace import Trace, read_costs
from draftwise.measure.trace.results import replayed
from studies.common.command import command, start
from studies.common.plot import panels, save

PAGE = "docs/explanation/adapt.md"

LMS = ["general", "code", "math", "qa", "sql", "summarization", "translation"]
DRAFTERS = [*(f"zoo:{name}" for name in LMS), "ngram", "suffix"]
FIXED = [f"static?length=5&drafter={name}" for name in DRAFTERS]
POLICIES = [
    "auto",
    "random",
    "ucb1",
    "metasd-ucb",
    "metasd-ucb?beta=1",
    "metasd-ucb?reward=block-efficiency",
    "metasd-exp3",
    "metasd-sh",
    "metasd-petc",
    "metasd-ducb",
    "metasd-swucb",
    "ucbspec",
    "exp3spec",
    "hedgespec",
    "hedgespec?every=16",
    "hedgespec?per_query=false&memory=0.99",
    "hedgespec?windows=all",
    "hedgespec-hedge",
    "linucb",
    "draft-all",
    "tapout-seq-ucb1?length=16",
    "tapout-seq-ucbtuned?length=16",
    "tapout-seq-ts?length=16",
    "tapout-token-ucb1?length=16",
    "tapout-token-ts?length=16",
    "max-confidence?length=16",
    "svip?length=16",
    "svip-difference?length=16",
    "logit-margin?length=16",
    "adaedl?length=16",
    "hf-heuristic?start=8&longest=16",
    "hf-threshold?length=16",
]
KEYS = {"mean_accepted": "mean accepted tokens", "tokens_per_s": "tokens per second"}
MOST = 4.0  # a ratio further from 1 has the colour of this one, or of its inverse

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""What one method did in one category, by category and method."""


def main() -> int:
    options = parse()
    costs = read_costs(options.costs or str(Path(options.trace) / "costs.json"))
    found = replayed(Trace(Path(options.trace)), [*FIXED, *POLICIES], costs, Path(options.out))
    rows = {(row["category"], row["method"]): row for row in found["results"]}
    print(table(rows))
    if options.pictures:
        draw(rows, Path(options.pictures))
    return 0


def parse() -> Namespace:
    parser = command(__doc__, PAGE)
    parser.add_argument("trace", help="the folder of a trace with all these drafters, and --overlap")
    parser.add_argument("--out", required=True, help="the folder for the replay's results")
    parser.add_argument("--costs", default="", help="a profile or file of costs; default: the trace's own")
    parser.add_argument("--pictures", default="", help="the folder for adapt.svg")
    return parser.parse_args()


def categories(rows: Rows) -> list[str]:
    return list(dict.fromkeys(category for category, _ in rows if category != "all"))


def best(rows: Rows, category: str, key: str) -> float:
    """The best fixed drafter's figure in a category."""
    return max(float(rows[category, method][key]) for method in FIXED)


def table(rows: Rows) -> str:
    """Markdown: every method over all prompts, and in how many categories it beats the best fixed drafter."""
    lines = [
        "| method | mean accepted | speed-up | categories above the best fixed drafter |",
        "|---|---|---|---|",
    ]
    names = categories(rows)
    for method in ["none", *FIXED, *POLICIES]:
        row = rows["all", method]
        above = [sum(rows[c, method][key] > best(rows, c, key) for c in names) for key in KEYS]
        cell = f"{above[0]} of {len(names)} by accepted tokens, {above[1]} by time"
        last = cell if method in POLICIES else ""
        lines.append(f"| `{method}` | {row['mean_accepted']:.2f} | {row['speedup']:.2f} | {last} |")
    return "\n".join(lines)


def draw(rows: Rows, folder: Path) -> None:
    """Two heat maps of policies by categories: the ratio to the best fixed drafter there, on a log scale."""
    names = categories(rows)
    scale = ratios([MOST])
    figure, axes = panels(2, width=5.4, height=7.6)
    for axis, (key, title) in zip(axes, KEYS.items(), strict=True):
        grid = np.array([[rows[c, m][key] / best(rows, c, key) for c in names] for m in POLICIES])
        mesh = axis.pcolormesh(grid, cmap=SPEEDUPS, norm=scale, edgecolors="#ffffff", linewidth=0.5)
        axis.invert_yaxis()
        axis.set_xticks(np.arange(len(names)) + 0.5, names, rotation=60, ha="right", rotation_mode="anchor")
        axis.set_yticks(np.arange(len(POLICIES)) + 0.5, POLICIES if axis is axes[0] else [""] * len(POLICIES))
        axis.set(title=title, xlabel="category")
        axis.grid(False)
    axes[0].set_ylabel("policy")
    bar = figure.colorbar(mesh, ax=axes, orientation="horizontal", shrink=0.8, aspect=60, extend="both")
    bar.solids.set(rasterized=False, edgecolor="face")  # no bitmap, no gaps between the colours
    ticks = ratio_ticks(1 / MOST, MOST)
    bar.set_ticks(ticks, labels=[f"{round(tick, 2):g} \N{MULTIPLICATION SIGN}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("ratio to the best fixed drafter in the category, log scale")
    save(figure, folder / "adapt.svg")


if __name__ == "__main__":
    start(main)
