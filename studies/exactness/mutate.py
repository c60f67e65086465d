"""Mutation testing: put small faults into a module, one at a time; its tests must detect each.

    python -m studies.exactness.mutate core.accept core.loop --sample 50 --out mutants.jsonl
    python -m studies.exactness.mutate targets.hf --tests tests/targets/test_hf.py tests/targets/test_trees.py
    python -m studies.exactness.mutate core.accept core.loop --again --out mutants.jsonl     # survivors only
    python -m studies.exactness.mutate --table --out mutants.jsonl

The faults are cosmic-ray's (in a clone: pip install '.[mutation]'): another operator, comparison or number, a
loop that ends at once, a removed decorator. No file changes: each mutant runs in a fork that imports the
changed source, so that torch is imported only once. Each place in the source has at most one mutant, sampled
by the seed; faults in annotations change nothing and are left out. An interrupted run continues. Without
`--tests`, the tests of a module are those of its name, then all of its folder, if it is in one.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from studies.common.command import command, start
from studies.common.tables import heading, row

PAGE = "docs/explanation/lossless.md"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: its position, its change, and the whole changed source."""

    module: str
    operator: str
    line: int
    change: str
    source: str

    @property
    def key(self) -> str:
        """The same fault in the same source has the same key."""
        return sha256(f"{self.module} {self.source}".encode()).hexdigest()[:16]


def path_of(module: str) -> Path:
    """The file of a module of the package."""
    return ROOT.joinpath("src", "draftwise", *module.split(".")).with_suffix(".py")


def mutants(module: str, sample: int, seed: int) -> list[Mutant]:
    """A sample of the faults that the module can have, one a place, in the order of its lines."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = path_of(module).read_text()
    nodes = list(ast_nodes(get_ast(source)))
    places: dict[tuple[str, Any], list[tuple[str, int]]] = {}
    for name in sorted(operator_names()):
        kind = get_operator(name)
        if kind.arguments():
            continue
        operator = kind()
        spots = (spot for node in nodes for spot in operator.mutation_positions(node))
        for occurrence, (begin, _) in enumerate(spots):
            places.setdefault((name.split("_")[0], begin), []).append((name, occurrence))
    rng, candidates = Random(f"{module.rpartition('.')[2]} {seed}"), list[Mutant]()
    order = sorted(places)
    rng.shuffle(order)
    for family, begin in order:
        name, occurrence = rng.choice(places[family, begin])
        changed = mutate_code(source, get_operator(name)(), occurrence)
        if changed and bare(changed) != bare(source):
            operator = name.removeprefix("core/")
            candidates.append(Mutant(module, operator, begin[0], difference(source, changed), changed))
        if len(candidates) == sample:
            break
    return sorted(candidates, key=lambda one: (one.line, one.operator))


def bare(source: str) -> str:
    """The program without what never runs: annotations. A fault in the syntax is a program of its own."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
    return ast.dump(tree)


def difference(before: str, after: str) -> str:
    """The lines that changed, before and after."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


class Changed(MetaPathFinder, Loader):
    """Imports one module from another source."""

    def __init__(self, module: str, source: str) -> None:
        self.name, self.source, self.path = f"draftwise.{module}", source, str(path_of(module))

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self, origin=self.path) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.path
        exec(compile(self.source, self.path, "exec"), module.__dict__)


def lives(mutant: Mutant | None, tests: Sequence[str], seconds: int, told: Path) -> tuple[bool, float]:
    """Return whether all tests pass with the mutant (None: with the source as it is), and the seconds.

    More than `seconds` of them, as in a loop without an end, and it is killed.
    """
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        out = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        import pytest

        for name in [name for name in sys.modules if name.startswith(("draftwise", "studies"))]:
            del sys.modules[name]  # imported by this study; the tests import them once more, changed
        if mutant is not None:
            sys.meta_path.insert(0, Changed(mutant.module, mutant.source))
        code = pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"])
        if mutant is None:
            ours = ("draftwise", "tests", "conftest", "_pytest", "pytest", "__")
            known = [name for name in sys.modules if not name.startswith(ours)]
            told.with_suffix(".modules").write_text("\n".join(known))
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return status == 0, used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime


def tests_of(module: str) -> list[str]:
    """Tests that should detect a fault of a module, the quick ones first."""
    *folders, name = module.split(".")
    if not folders:
        return [str(path) for path in sorted((ROOT / "tests").glob(f"test_{name}*.py"))]
    folder = ROOT / "tests" / folders[0]
    return [str(path) for path in (*sorted(folder.rglob(f"test_{name}*.py")), folder)]


def judged(
    module: str, wanted: Sequence[Mutant], tests: Sequence[str], scratch: Path
) -> Iterator[dict[str, Any]]:
    """The outcome of each mutant of a module."""
    told = scratch / "told"
    passed, seconds = lives(None, tests, 1200, told)
    if not passed:
        sys.exit(f"{module}: its tests fail as they are:\n{told.read_text()[-2000:]}")
    for name in told.with_suffix(".modules").read_text().split():
        try:
            importlib.import_module(name)  # once, for all forks
        except Exception:  # some import only as a part of another
            continue
    for mutant in wanted:
        survived, took = lives(mutant, tests, int(10 + 3 * seconds), told)
        outcome = asdict(mutant) | {"key": mutant.key, "survived": survived, "seconds": round(took, 1)}
        outcome.pop("source")
        yield outcome


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The recorded outcomes, the latest of each mutant."""
    lines = out.read_text().splitlines() if out.exists() else []
    return list({one["key"]: one for one in map(json.loads, lines)}.values())


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Killed by module, and the survivors."""
    lines = [heading("module", "mutants", "killed", "")]
    for module in dict.fromkeys(one["module"] for one in rows):
        mine = [one for one in rows if one["module"] == module]
        killed = sum(not one["survived"] for one in mine)
        lines.append(row(f"`{module}`", len(mine), killed, f"{100 * killed / len(mine):.0f} %"))
    for one in rows:
        if one["survived"]:
            lines.append(f"\n{one['module']}:{one['line']} {one['operator']}\n{one['change']}")
    return "\n".join(lines)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as core.accept; default: those tested before"
    )
    parser.add_argument("--tests", nargs="+", help="files of tests, or tests, for these modules")
    parser.add_argument("--sample", type=int, default=50, help="mutants of each module (50)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="one line a mutant")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--table", action="store_true", help="print what is known, and test nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.modules if not path_of(name).exists()]:
        parser.error(f"{unknown[0]} is no module of the package")
    os.chdir(ROOT)
    modules = given.modules or list(dict.fromkeys(one["module"] for one in rows_of(given.out)))
    for module in [] if given.table else modules:
        known = {one["key"]: one["survived"] for one in rows_of(given.out)}
        wanted = mutants(module, given.sample, given.seed)
        if given.again:
            wanted = [one for one in wanted if known.get(one.key)]
        else:
            wanted = [one for one in wanted if one.key not in known]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch, given.out.open("a") as file:
            for one in judged(module, wanted, given.tests or tests_of(module), Path(scratch)):
                file.write(json.dumps(one) + "\n")
                file.flush()
                mark, now = "SURVIVED" if one["survived"] else "killed", time.strftime("%H:%M:%S")
                print(f"{now} {module}:{one['line']} {one['operator']} {mark}", flush=True)
    print(table([one for one in rows_of(given.out) if one["module"] in modules]))


if __name__ == "__main__":
    start(main)
