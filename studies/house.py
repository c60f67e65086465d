"""The architecture in numbers: entries, floors, arrows and circles, read from the imports of a checkout.

    python -m studies.house [--root CHECKOUT] [--root ANOTHER] [--json]

A *room* is a folder or a module at the root of the package; an *arrow* is a pair in which one imports the
other, inside functions too, but not for type checking alone. *Floors* are the rooms on the longest path of
arrows, rooms in a circle counted as one. A *circle* is a set of modules that import each other.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import quantiles

from studies.common.command import command, start

PAGE = "CONTRIBUTING.md"
LONG, SHORT = 500, 15
Graph = dict[str, set[str]]


@dataclass(frozen=True)
class House:
    """The counts of a package; lengths are in lines."""

    entries: int
    modules: int
    floors: int
    arrows_between_rooms: int
    arrows_between_modules: int
    circles_of_rooms: list[list[str]]
    circles_of_modules: list[list[str]]
    long_files: list[str]
    short_files: list[str]
    longest_function: str
    function_median: float
    function_90th_percentile: float


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; the package itself is the empty name."""
    parts = {path: path.relative_to(package).with_suffix("").parts for path in package.rglob("*.py")}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): path for path, p in sorted(parts.items())}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from running(other)
        else:
            yield child
            yield from running(child)


def imported(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of the package that one of them imports."""
    inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    inside = [part for part in inside if part]
    names = set()
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            whole = (alias.name for alias in node.names if alias.name.startswith("draftwise."))
            names |= {name.partition(".")[2] for name in whole}
        elif isinstance(node, ast.ImportFrom):
            own = (node.module or "").split(".")
            if node.level:
                base = [*inside[: len(inside) - node.level + 1], *(part for part in own if part)]
            elif own[0] == "draftwise":
                base = own[1:]
            else:
                continue
            for alias in node.names:  # a name may be a module of its own
                one = ".".join([*base, alias.name])
                names.add(one if one in known else ".".join(base))
    return {one for one in names if one in known and one not in ("", name)}


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node."""
    reach: Graph = {}
    for first in graph:
        seen, left = set[str](), [first]
        while left:
            for other in graph[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        reach[first] = seen
    groups = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph}
    return sorted(sorted(one) for one in groups if len(one) > 1)


def floors(graph: Graph) -> int:
    """Nodes on the longest path, every circle counted as one node."""
    leader = {name: circle[0] for circle in circles(graph) for name in circle}
    folded: Graph = {leader.get(name, name): set() for name in graph}
    for name, others in graph.items():
        mine = leader.get(name, name)
        folded[mine] |= {leader.get(other, other) for other in others} - {mine}
    height: dict[str, int] = {}
    for name in TopologicalSorter(folded).static_order():
        height[name] = 1 + max((height[other] for other in folded[name]), default=0)
    return max(height.values(), default=0)


def functions(package: Path) -> dict[str, int]:
    """Lines of every function by its place."""
    return {
        f"{path.relative_to(package)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def counted(package: Path) -> House:
    """The house of one package."""
    known = modules(package)
    graph = {name: imported(name, path, known) for name, path in known.items() if name}
    between: Graph = {name.split(".")[0]: set() for name in graph}
    for name, others in graph.items():
        mine = name.split(".")[0]
        between[mine] |= {other.split(".")[0] for other in others} - {mine}
    files = [path for path in known.values() if path.name != "__init__.py"]
    lines = {str(path.relative_to(package)): len(path.read_text().splitlines()) for path in files}
    lengths = functions(package)
    longest = max(lengths, key=lambda name: lengths[name])
    deciles = quantiles(lengths.values(), n=10, method="inclusive")
    return House(
        entries=sum(entry.name != "__pycache__" for entry in package.iterdir()),
        modules=len(graph),
        floors=floors(between),
        arrows_between_rooms=sum(map(len, between.values())),
        arrows_between_modules=sum(map(len, graph.values())),
        circles_of_rooms=circles(between),
        circles_of_modules=circles(graph),
        long_files=[f"{name} ({n})" for name, n in lines.items() if n > LONG],
        short_files=[f"{name} ({n})" for name, n in lines.items() if n < SHORT],
        longest_function=f"{lengths[longest]} ({longest})",
        function_median=deciles[4],
        function_90th_percentile=deciles[8],
    )


def shown(value: object) -> str:
    """A number as it is, a list by its length and its first names."""
    if not isinstance(value, list):
        return str(value)
    first = [" + ".join(one) if isinstance(one, list) else str(one) for one in value[:4]]
    return f"{len(value)}" + (f": {'; '.join(first)}" if first else "") + ("; ..." if len(value) > 4 else "")


def main() -> None:
    """Print one column for each checkout."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--root", action="append", type=Path, help="a checkout; may be repeated")
    parser.add_argument("--json", action="store_true", help="as JSON, with all names")
    args = parser.parse_args()
    counts = {str(root): asdict(counted(root / "src/draftwise")) for root in args.root or [Path()]}
    if args.json:
        print(json.dumps(counts, indent=1))
        return
    print("| | " + " | ".join(counts) + " |\n|---" + "|---" * len(counts) + "|")
    for name in next(iter(counts.values())):
        cells = " | ".join(shown(house[name]) for house in counts.values())
        print(f"| {name.replace('_', ' ')} | {cells} |")


if __name__ == "__main__":
    start(main)
