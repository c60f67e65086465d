"""Imports point one way, and torch stays in the files that run models."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import draftwise
from draftwise import plugins, testing
from draftwise.core import roles

ROOT = Path(draftwise.__file__).parent

# A folder, or a module of the root, imports from the floors below its own alone.
FLOORS = [
    {"errors"},
    {"inputs", "registry", "core", "writing"},
    {"specs"},
    {"data", "models"},
    {"state"},
    {"policies"},
    {"drafters", "targets"},
    {"plugins", "testing"},
    {"build"},
    {"generation"},
    {"measure", "train", "hosts", "serve"},
    {"cli"},
    {"__main__"},
]
TORCH = (
    "models",
    "drafters.neural",
    "targets",
    "train",
    "hosts.transformers",
    "hosts.vllm.drafters",
    "measure.bench.transformers",
    "measure.bench.compiled",
)
"""Where torch may be imported as a module is; anywhere else it is imported by the function that needs it."""
RANK = {name: i for i, layer in enumerate(FLOORS) for name in layer}


def modules() -> dict[str, Path]:
    files = {p: p.relative_to(ROOT).with_suffix("").parts for p in ROOT.rglob("*.py")}
    return {
        ".".join(parts[:-1] if parts[-1] == "__init__" else parts): p
        for p, parts in files.items()
        if parts != ("__init__",)
    }


@cache
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
            if kind == "own" and other != mine and RANK[other] >= RANK[mine]:
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


def test_the_loop_knows_the_core_only() -> None:
    own = {n for kind, n in imports(ROOT / "core" / "loop.py", "core.loop") if kind == "own"}
    assert all(name.startswith("core.") for name in own)


def test_every_folder_has_a_floor() -> None:
    assert {m.split(".")[0] for m in modules()} == set(RANK)


def test_torch_stays_where_models_run() -> None:
    heavy = {
        m
        for m, p in modules().items()
        if {"torch", "transformers"} & {n for k, n in imports(p, m) if k == "other"}
    }
    assert {m for m in heavy if not m.startswith(TORCH)} == set()


def test_the_core_and_the_policies_are_numbers_only() -> None:
    stored = {  # what their files need
        "policies.classifiers.files": ["safetensors"],
        "state.file": ["filelock"],
    }
    for module, path in modules().items():
        if module.startswith(("core", "policies", "state", "testing", "measure.simulate")):
            allowed = {*sys.stdlib_module_names, "numpy", *stored.get(module, ())}
            assert {n for k, n in imports(path, module) if k == "other"} <= allowed, module


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {
        module: {name for kind, name in imports(path, module) if kind == "own"} & known.keys()
        for module, path in known.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("module", ["core.loop", "policies.catalogue", "plugins", "testing"])
def test_importing_it_loads_neither_torch_nor_pytest(module: str) -> None:
    code = f"import sys, draftwise.{module}; sys.exit(bool({{'torch', 'pytest'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_these() -> None:
    assert sorted(draftwise.__all__) == draftwise.__all__ and 18 <= len(draftwise.__all__) <= 27
    for module in (draftwise, plugins, testing):
        for name in module.__all__:
            assert getattr(module, name).__doc__ or not callable(getattr(module, name))
    for name in draftwise.__all__:
        assert callable(getattr(draftwise, name)), "a module of the same name would hide it"
    with pytest.raises(AttributeError, match="nothing"):
        _ = draftwise.nothing


def test_plug_ins_have_every_role_in_one_place() -> None:
    kinds = {name for name, kind in vars(roles).items() if getattr(kind, "_is_protocol", False)}
    assert len(kinds) > 20 and kinds - {"Protocol"} <= set(plugins.__all__)
    for name in set(plugins.__all__) & set(draftwise.__all__):
        assert getattr(plugins, name) is getattr(draftwise, name)
    assert sorted(plugins.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)) == plugins.__all__
