"""Tables in Markdown from folders of `draftwise replay` or `draftwise bench`.

python -m studies.speed.table total all/                 # every method over all prompts
python -m studies.speed.table categories all/            # speed-up and interval in each category
python -m studies.speed.table optimum all/               # share of the optimum in each category
python -m studies.speed.table beside t0/ t07/ t10/       # the same methods in several runs
python -m studies.speed.table lengths lengths/           # a method by its maximum length
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from studies.common.command import command, start

PAGE = "docs/archive/table.md"

Row = dict[str, Any]
LENGTH = re.compile(r"(?<=static-)\d+|(?<=length=)\d+|(?<=longest=)\d+")


def rows(folder: Path) -> list[Row]:
    """The rows of a run at its smallest batch size, the fastest method first."""
    found: list[Row] = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
    least = min(row["batch"] for row in found)
    mine = [row for row in found if row["batch"] == least]
    speed = {row["method"]: row["speedup"] for row in mine if row["category"] == "all"}
    return sorted(mine, key=lambda row: -speed[row["method"]])


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    for line in (head, ["---"] * len(head), *body):
        yield f"| {' | '.join(line)} |"


def spread(row: Row) -> str:
    """Speed-up and its 95 % interval, if there are prompts enough for one."""
    if row["interval"] is None:
        return f"{row['speedup']:.2f}"
    low, high = row["interval"]
    return f"{row['speedup']:.2f} ({low:.2f} to {high:.2f})"


def share(row: Row) -> str:
    """The optimum's share of the time, or nothing where it is not known."""
    found = row.get("fraction_of_optimum")
    return "" if found is None else f"{100 * found:.0f} %"


def total(folders: Sequence[Path]) -> Iterator[str]:
    """Every method over all prompts."""
    for folder in folders:
        mine = [row for row in rows(folder) if row["category"] == "all"]
        body = [
            [
                f"`{row['method']}`",
                f"{row['tokens_per_s']:.1f}",
                spread(row),
                f"{row['mean_accepted']:.2f}",
                share(row),
            ]
            for row in mine
        ]
        yield from markdown(["policy", "tokens/s", "against none (95 %)", "accepted", "of the optimum"], body)


def by_category(folders: Sequence[Path], cell: Callable[[Row], str]) -> Iterator[str]:
    """A column a category."""
    for folder in folders:
        found = rows(folder)
        names = list(dict.fromkeys(row["method"] for row in found))
        categories = list(dict.fromkeys(row["category"] for row in found))
        place = {(row["method"], row["category"]): row for row in found}
        body = [[f"`{name}`", *(cell(place[name, c]) for c in categories)] for name in names]
        yield from markdown(["policy", *categories], body)


def beside(folders: Sequence[Path]) -> Iterator[str]:
    """A column a run: speed-up with its interval, and accepted tokens a round; a dash for none there."""
    runs = [{row["method"]: row for row in rows(f) if row["category"] == "all"} for f in folders]
    names = list(dict.fromkeys(name for run in runs for name in run))

    def cell(run: dict[str, Row], name: str) -> str:
        return f"{spread(run[name])}, {run[name]['mean_accepted']:.2f}" if name in run else "-"

    body = [[f"`{name}`", *(cell(run, name) for run in runs)] for name in names]
    yield from markdown(["policy", *(f.name for f in folders)], body)


def lengths(folders: Sequence[Path]) -> Iterator[str]:
    """A row a method, a column a maximum length: speed-up and accepted tokens a round."""
    for folder in folders:
        mine = [row for row in rows(folder) if row["category"] == "all"]
        found: dict[str, dict[int, Row]] = {}
        for row in mine:
            if number := LENGTH.search(row["method"]):
                name = LENGTH.sub("K", row["method"], count=1)
                found.setdefault(name, {})[int(number[0])] = row
        columns = sorted({n for by_length in found.values() for n in by_length})
        body = [
            [f"`{name}`", *(_short(by_length.get(n)) for n in columns)] for name, by_length in found.items()
        ]
        yield from markdown(["policy", *(f"K={n}" for n in columns)], body)


def _short(row: Row | None) -> str:
    return f"{row['speedup']:.2f}, {row['mean_accepted']:.2f}" if row else "-"


TABLES: dict[str, Callable[[Sequence[Path]], Iterator[str]]] = {
    "total": total,
    "categories": lambda folders: by_category(folders, spread),
    "optimum": lambda folders: by_category(folders, share),
    "beside": beside,
    "lengths": lengths,
}


def main() -> None:
    """Print one table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    print("\n".join(TABLES[options.table](options.folders)))


if __name__ == "__main__":
    start(main)
