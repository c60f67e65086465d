"""Imports point one way, and torch stays in the files that run models."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import draftwise

ROOT = Path(draftwise.__file__).parent

# Each module may import from its own layer's list and from nothing above it.
LAYERS = [
    {"errors"},
    {"inputs", "settings", "verdicts", "packing"},
    {"types"},
    {"roles"},
    {
        "accept",
        "rewards",
        "router",
        "scorers",
        "stops",
        "adaptive",
        "learners",
        "laws",
        "events",
        "text",
        "data",
        "registry",
        "packed",
        "cache",
        "windows",
        "positions",
        "corpus",
        "team",
        "quiet",
        "hub",
        "lock",
        "guarded",
        "processors",
    },
    {"masks", "traits"},
    {"turns", "prompts", "rows", "sampling", "datastore", "models", "cursors", "feedback"},
    {"simulate", "heads", "features", "probe"},
    {"drafters", "targets", "loop"},
    {"policies", "arms", "tracks"},
    {"grading", "auto"},
    {"catalogue"},
    {"makers", "outputs", "names", "build", "state", "fingerprints"},
    {"statefile"},
    {"decoder", "chat", "merge"},
    {"report"},
    {"train"},
    {"bench"},
    {"trace"},
    {"hosts", "cli"},
    {"__main__"},
]
SAME_LAYER = {
    ("rows", "cache"),
    ("decoder", "chat"),
    ("chat", "decoder"),
    ("datastore", "corpus"),
    ("datastore", "models"),
    ("adaptive", "learners"),
    ("build", "fingerprints"),
    ("build", "names"),
    ("models", "registry"),
}
TORCH = {
    "packed",
    "cache",
    "windows",
    "positions",
    "masks",
    "traits",
    "rows",
    "sampling",
    "models",
    "heads.files",
    "heads.eagle",
    "heads.medusa",
    "features",
    "drafters.chains",
    "drafters.eagle",
    "drafters.early_exit",
    "drafters.lm",
    "drafters.medusa",
    "drafters.trees",
    "drafters.states",
    "targets.hf",
    "probe",
    "probe.checks",
    "probe.readings",
    "probe.ways",
    "train.checkpoints",
    "train.classifier",
    "train.eagle",
    "train.examples",
    "train.heads",
    "train.drafter",
    "train.losses",
    "train.medusa",
    "train.numerics",
    "train.steps",
    "train.teacher",
    "hosts.transformers",
    "hosts.transformers.arguments",
    "hosts.transformers.caches",
    "hosts.transformers.call",
    "hosts.transformers.processors",
    "hosts.transformers.prompt",
    "hosts.transformers.steps",
    "hosts.transformers.target",
    "hosts.transformers.together",
    "bench.transformers",
}
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def modules() -> dict[str, Path]:
    files = {p: p.relative_to(ROOT).with_suffix("").parts for p in ROOT.rglob("*.py")}
    return {
        ".".join(parts[:-1] if parts[-1] == "__init__" else parts): p
        for p, parts in files.items()
        if parts != ("__init__",)
    }


def imports(path: Path, module: str) -> set[tuple[str, str]]:
    """(kind, name) of every import: `own` modules relative to the package, or `torch`-like ones."""
    package = [*module.split(".")] if path.name == "__init__.py" else module.split(".")[:-1]
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                parts = [*base, *(node.module or "").split(".")] if node.module else base
                names = [".".join(parts)] if node.module else [".".join([*base, a.name]) for a in node.names]
                found |= {("own", n) for n in names if n}
            elif node.module and node.module.startswith("draftwise."):
                found.add(("own", node.module.removeprefix("draftwise.")))
            elif node.module:
                found.add(("other", node.module.split(".")[0]))
        elif isinstance(node, ast.Import):
            found |= {("other", a.name.split(".")[0]) for a in node.names}
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for module, path in modules().items():
        mine = module.split(".")[0]
        for kind, name in imports(path, module):
            other = name.split(".")[0]
            if kind == "own" and other != mine and (mine, other) not in SAME_LAYER:
                assert other in RANK, f"{module} imports {name}, which has no layer"
                if RANK[other] >= RANK[mine]:
                    wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


def test_the_loop_knows_only_the_nouns_the_roles_the_team_and_the_acceptance_walk() -> None:
    own = {n for kind, n in imports(ROOT / "loop.py", "loop") if kind == "own"}
    assert own == {"types", "roles", "accept", "team", "turns", "lock", "guarded", "errors"}


def test_every_module_has_a_layer() -> None:
    assert {m.split(".")[0] for m in modules()} == set(RANK)


def test_torch_stays_in_the_marked_files() -> None:
    heavy = {
        m
        for m, p in modules().items()
        if {"torch", "transformers"} & {n for k, n in imports(p, m) if k == "other"}
    }
    assert heavy - TORCH == set()


def test_policies_are_numbers_only() -> None:
    for module, path in modules().items():
        if module.split(".")[0] in {
            "learners",
            "simulate",
            "stops",
            "adaptive",
            "rewards",
            "policies",
            "types",
            "roles",
            "accept",
            "team",
            "loop",
        }:
            other = {n for k, n in imports(path, module) if k == "other"}
            assert not other & {"torch", "transformers", "pandas", "sklearn"}, module
            assert other <= set(sys.stdlib_module_names) | {"numpy"}, module


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, draftwise, draftwise.loop, draftwise.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_these() -> None:
    assert sorted(draftwise.__all__) == draftwise.__all__
    for name in draftwise.__all__:
        assert getattr(draftwise, name).__doc__
        assert callable(getattr(draftwise, name)), "a module of the same name would hide it"
    assert 18 <= len(draftwise.__all__) <= 26
