"""Mutation testing: put small faults into a module, one at a time; its tests must detect each.

    python -m studies.exactness.mutate core.accept core.loop --sample 50 --out mutants.jsonl
    python -m studies.exactness.mutate core.accept core.loop --again --out mutants.jsonl     # survivors only
    python -m studies.exactness.mutate --table --out mutants.jsonl

The faults are cosmic-ray's (in a clone: pip install '.[mutation]'): another operator, comparison or number, a
loop that ends at once, a removed decorator. No file changes: each mutant runs in a fork that imports the
changed source, so that torch is imported only once. Each place in the source has at most one mutant, sampled
by the seed; faults in annotations change nothing and are left out. An interrupted run continues.
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

PAGE = "docs/explanation/lossless.md"

ROOT = Path(__file__).resolve().parents[2]
GREEDY = "test_greedy_text_is_the_models_own"
# What reads a model, the quick tests first: a fault is mostly found by one of them.
READING = f"""
    models/test_runner.py targets/test_passes.py
    models/test_cache.py targets/test_hf.py::test_rows_are_freed
    targets/test_hf.py::test_a_window_sized_request_fills_the_window_and_no_more
    targets/test_hf.py::test_samples_of_one_prompt_read_it_once
    targets/test_hf.py::test_a_parked_text_keeps_its_row_when_others_come_and_go
    targets/test_hf.py::test_prompts_that_begin_alike_share_what_was_read
    targets/test_trees.py::test_a_node_has_the_logits_of_its_path[qwen3-window-sdpa]
    targets/test_trees.py::test_the_cache_holds_what_reading_the_text_leaves_there
    targets/test_trees.py::test_more_nodes_than_positions_are_left
    targets/test_trees.py::test_what_cannot_read_a_tree_is_refused_by_name
    targets/test_hf.py::{GREEDY}[llama-sdpa] targets/test_hf.py::{GREEDY}[gpt2-sdpa]
    targets/test_trees.py::{GREEDY}[llama-sdpa] models/test_windows.py::test_chunks_are_masks
    models/test_windows.py::test_layers_that_count_by_the_caches_length_read_texts_apart
    models/test_positions.py::test_text_goes_on_past_the_trained_window_with_one_warning
    models/test_hidden_states.py::test_samples_of_one_prompt_share_what_was_read_of_it
    models/test_positions.py::{GREEDY}[phi3-longrope] models/test_positions.py::{GREEDY}[llama-longrope]
    models/test_positions.py::{GREEDY}[llama-dynamic]
    architectures/test_sweep.py::test_models_that_count_for_themselves_are_read_one_by_one[bart]
"""
CATALOGUE = "policies/test_catalogue.py policies/test_policies.py"
# By module: files of tests, or tests.
TESTS: dict[str, str] = {
    "core.accept": "core/test_accept.py test_overlap.py core/test_loop.py",
    "core.batch": "core/test_loop.py core/test_faults.py test_lengths.py",
    "core.contract": "core/test_drafter_pool.py core/test_loop.py",
    "core.loop": "core/test_loop.py core/test_faults.py core/test_drafter_pool.py test_lengths.py",
    "core.drafter_pool": "core/test_drafter_pool.py core/test_faults.py core/test_loop.py",
    "core.request_round": "core/test_request_round.py core/test_loop.py "
    "core/test_faults.py hosts/test_follow.py",
    "hosts.sglang": "hosts/test_sglang.py",
    "hosts.vllm.report": "hosts/test_vllm_options.py hosts/test_vllm_parts.py",
    "generation.text": "generation/test_text.py core/test_sampling.py generation/test_prompts.py",
    "models.runner.cache": READING,
    "models.distributions": "exactness/test_by_hand.py models/test_distributions.py core/test_sampling.py",
    "models.runner.executors.exact": "models/test_exact.py",
    "models.runner.runner": READING,
    "targets.hf": READING,
    "policies.catalogue.auto": "policies/test_catalogue.py policies/auto",
    "policies.catalogue.banditspec": "policies/test_catalogue.py",
    "policies.catalogue.compose": CATALOGUE,
    "policies.catalogue.general": CATALOGUE,
    "policies.catalogue.hedgespec": CATALOGUE,
    "policies.catalogue.learned": "policies/test_learned.py policies/test_catalogue.py",
    "policies.catalogue.metasd": CATALOGUE,
    "policies.catalogue.rules": f"{CATALOGUE} core/test_stops.py",
    "policies.catalogue.tapout": CATALOGUE,
    "state.file": "state",
    "state.learned": "state",
    "state.saver": "state hosts/test_vllm_options.py",
}


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


def judged(module: str, wanted: Sequence[Mutant], scratch: Path) -> Iterator[dict[str, Any]]:
    """The outcome of each mutant of a module."""
    tests = [f"tests/{name}" for name in TESTS[module].split()]
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
        row = asdict(mutant) | {"key": mutant.key, "survived": survived, "seconds": round(took, 1)}
        row.pop("source")
        yield row


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The recorded outcomes, the latest of each mutant."""
    lines = out.read_text().splitlines() if out.exists() else []
    return list({row["key"]: row for row in map(json.loads, lines)}.values())


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Killed by module, and the survivors."""
    lines = ["| module | mutants | killed | |", "|---|---|---|---|"]
    for module in [name for name in TESTS if any(row["module"] == name for row in rows)]:
        mine = [row for row in rows if row["module"] == module]
        killed = sum(not row["survived"] for row in mine)
        lines.append(f"| `{module}` | {len(mine)} | {killed} | {100 * killed / len(mine):.0f} % |")
    for row in rows:
        if row["survived"]:
            lines.append(f"\n{row['module']}:{row['line']} {row['operator']}\n{row['change']}")
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = command(__doc__, PAGE)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; default: all")
    parser.add_argument("--sample", type=int, default=50, help="mutants of each module (50)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="one line a mutant")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--table", action="store_true", help="print what is known, and test nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.modules if name not in TESTS]:
        parser.error(f"no tests are named for {unknown[0]}: choose from {', '.join(TESTS)}")
    os.chdir(ROOT)
    for module in [] if given.table else given.modules or TESTS:
        known = {row["key"]: row["survived"] for row in rows_of(given.out)}
        wanted = mutants(module, given.sample, given.seed)
        if given.again:
            wanted = [one for one in wanted if known.get(one.key)]
        else:
            wanted = [one for one in wanted if one.key not in known]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch, given.out.open("a") as file:
            for row in judged(module, wanted, Path(scratch)):
                file.write(json.dumps(row) + "\n")
                file.flush()
                mark = "SURVIVED" if row["survived"] else "killed"
                print(
                    f"{time.strftime('%H:%M:%S')} {module}:{row['line']} {row['operator']} {mark}", flush=True
                )
    print(table([row for row in rows_of(given.out) if row["module"] in (given.modules or TESTS)]))


if __name__ == "__main__":
    start(main)
