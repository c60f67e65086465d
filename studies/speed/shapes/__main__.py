"""What passes cost on models of real sizes, what they could cost, and what `auto` makes of these prices.

    python -m studies.speed.shapes measure --out OUT
    draftwise trace --per-category 5 --drafters zoo:general,ngram,suffix --out TRACE
    python -m studies.speed.shapes page --out OUT --trace TRACE

`measure` times each case (a shape, the precision of its weights, a mode) in a process of its own, with
nothing else running: target passes by width at a context of some hundred tokens, drafts by length, and the
bytes and products that the machine manages in a second. Cases that are there are kept. `page` writes a table
of costs for each case (`OUT/costs/CASE.json`, for `draftwise replay --costs`), replays the trace at these
prices, and writes tables and picture of the page; it needs no quiet machine.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from time import perf_counter

from draftwise.errors import UserError
from draftwise.measure.machine import load_average
from draftwise.measure.trace import Costs, Trace, read_costs
from studies.common.command import add_pictures, command, listed, start
from studies.common.plot import save
from studies.speed.shapes import cases, page, prices
from studies.speed.shapes.cases import MODES, PRECISIONS, Case, Effort, Found
from studies.speed.shapes.models import SHAPES

PAGE = "docs/explanation/pass-costs.md"

MODULE = "studies.speed.shapes"
SHOWN = [name for name in SHAPES if name != "tiny"]


def chosen(asked: Namespace) -> list[Case]:
    """The cases to measure."""
    if asked.cases:
        return [Case.of(name) for name in asked.cases]
    every = (Case(s, p, m) for s in asked.shapes for p in asked.precisions for m in asked.modes)
    return [Case.of(case.name) for case in every]


def measure(asked: Namespace) -> int:
    """Measure all cases, each in a process of its own, and print what was found of each."""
    load = load_average()
    for case in chosen(asked):
        if cases.place(asked.out, case).is_file() and not asked.again:
            continue
        began = perf_counter()
        more = [
            "--repeats",
            str(asked.repeats),
            "--context",
            str(asked.context),
            "--threads",
            str(asked.threads),
        ]
        more += [] if load is None else ["--load", str(load)]
        ran = subprocess.run(
            [sys.executable, "-m", MODULE, "one", "--out", str(asked.out), "--cases", case.name, *more],
            check=False,
        )
        if ran.returncode:
            return ran.returncode
        (found,) = (one for one in cases.read(asked.out) if one.case == case)
        print(f"{said(found)}; {perf_counter() - began:.0f} s in all", flush=True)
    return 0


def one(asked: Namespace) -> int:
    """Measure the cases in this process."""
    import torch

    if asked.threads:
        torch.set_num_threads(asked.threads)
    for case in chosen(asked):
        cases.measured(case, Effort(repeats=asked.repeats, context=asked.context), asked.out, load=asked.load)
    return 0


def said(found: Found) -> str:
    """One line: passes, what they could cost, and the drafter's token."""
    widths = [n for n in page.SHOWN if n in found.passes]
    times = ", ".join(f"{n}: {1e3 * found.median(n):.1f}" for n in widths)
    least = 1e3 * found.limit(1)
    return (
        f"{found.case.name}: ms by tokens {times}; a pass could take {least:.1f} "
        f"({1e3 * found.median(1) / least:.2f} times as long); a drafted token "
        f"{1e3 * found.drafter.step:.2f}; "
        f"{found.limits['all'] / 1e9:.1f} GB/s, {found.limits['flops'] / 1e9:.0f} GFLOP/s; "
        f"spread {100 * found.spread:.0f} %"
    )


def show(asked: Namespace) -> int:
    """Write cost tables, replay, tables and the picture."""
    if asked.trace is None:
        raise UserError("--trace is missing: name a folder that `draftwise trace` wrote")
    from draftwise.measure.trace.costs import busy

    found = [one for one in cases.read(asked.out) if one.case.shape in asked.shapes]
    trace, like = prices.recorded(asked.trace), read_costs(str(asked.trace / "costs.json"))
    tables = cases.tables(asked.out, found, prices.DRAFTER, trace.header.length + 1, like)
    prices.replay(asked.out, trace, tables, again=asked.again)
    clean = not any(busy(costs) for costs in tables.values())
    write(asked, found, tables, clean)
    return 0


def write(asked: Namespace, found: list[Found], tables: dict[str, Costs], clean: bool) -> None:
    """The tables into the page, and the picture."""
    repeats = min(len(times) for one in found for times in one.passes.values())
    spread = max(one.spread for one in found)
    times = f"medians of {repeats} or more, median absolute deviation at most {100 * spread:.0f} %"
    how = f"python -m {MODULE} measure --out OUT"
    page.written(
        asked.page, "limits", [*page.conditions(found, how, "the best of 10", clean), *page.limits(found)]
    )
    page.written(asked.page, "passes", [*page.conditions(found, how, times, clean), *page.passes(found)])
    how = f"python -m {MODULE} page --out OUT --trace TRACE"
    prompts = f"{len(Trace(asked.trace))} prompts, 95 % over resampled prompts"
    lines = [*page.conditions(found, how, prompts, clean), *page.made_of(asked.out, found)]
    page.written(asked.page, "prices", lines)
    save(page.draw(found), asked.pictures / "pass-costs.svg")
    print(
        f"written: {asked.page}, {asked.pictures / 'pass-costs.svg'}, and {len(tables)} tables in "
        f"{asked.out / 'costs'}"
    )


ACTIONS = {"measure": measure, "one": one, "page": show}


def main() -> int:
    """Measure, or write the page."""
    parser = command(__doc__, PAGE)
    parser.add_argument(
        "action", choices=ACTIONS, help="measure; one: in this process; page: after measuring"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--shapes", type=listed, default=SHOWN, help=f"of {', '.join(SHAPES)}")
    parser.add_argument(
        "--precisions", type=listed, default=list(PRECISIONS), help=f"of {', '.join(PRECISIONS)}"
    )
    parser.add_argument("--modes", type=listed, default=list(MODES), help=f"of {', '.join(MODES)}")
    parser.add_argument(
        "--cases", type=listed, default=[], help="SHAPE.PRECISION.MODE instead of all of them"
    )
    parser.add_argument("--repeats", type=int, default=7, help="of each width, at most")
    parser.add_argument("--context", type=int, default=384, help="tokens before the pass")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as PyTorch takes")
    parser.add_argument("--load", type=float, help="one: the load average before the first case")
    parser.add_argument("--again", action="store_true", help="measure or replay what is there once more")
    parser.add_argument("--trace", type=Path, help="page: a trace of zoo:general and lookups")
    parser.add_argument("--page", type=Path, default=Path(PAGE))
    add_pictures(parser)
    asked = parser.parse_args()
    return ACTIONS[asked.action](asked)


if __name__ == "__main__":
    start(main)
