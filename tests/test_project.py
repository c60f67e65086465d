"""The project itself: what the package declares and ships, and the scripts that set it up."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points, requires
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from draftwise.models.zoo import list_zoo, zoo_folder
from draftwise.registry import GROUPS, load

ROOT = Path(__file__).parents[1]


def test_the_words_check_reads_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    loader = SourceFileLoader("prose", str(ROOT / "scripts/prose"))
    spec = spec_from_loader("prose", loader)
    assert spec
    prose = module_from_spec(spec)
    loader.exec_module(prose)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("class Wish:\n    def f(self, kin):\n        self._law = wishes = kin\n")
    banned = {"Wish": "GenerationRequest", "kin": "parents", "law": "distribution", "f(": ""}
    assert prose.check_names("a.py", banned) == 3
    assert "a.py:1: the name 'Wish': use 'GenerationRequest'" in capsys.readouterr().out


@pytest.mark.parametrize("group", GROUPS)
def test_every_entry_point_loads(group: str) -> None:
    points = entry_points(group=f"draftwise.{group}")
    assert len(points) >= 2
    for point in points:
        assert callable(load(group, point.name))


def test_the_librarys_own_range_is_wide_and_setup_pins_torch() -> None:
    needs = [need.replace(" ", "") for need in requires("draftwise") or []]
    assert "torch>=2.7" in needs
    assert any(need.startswith("transformers") and ">=5.19" in need and "<6" in need for need in needs)
    assert "torch==2.13.0" in (ROOT / "scripts/setup").read_text()


def test_every_bundled_model_has_a_card_and_its_sources() -> None:
    zoo = zoo_folder()
    assert zoo is not None
    notice = (zoo / "NOTICE").read_text()
    complete = {model.path for model in list_zoo()}
    assert len(complete) >= 8
    for weights in zoo.glob("*/model.safetensors"):
        card = (weights.parent / "README.md").read_text()
        library = "transformers" if str(weights.parent) in complete else "draftwise"
        assert card.startswith(f"---\nlibrary_name: {library}\n")
        for part in ("license:", "## Training", "## Limits", "CC-BY-SA-4.0", "tatoeba.org", "NOTICE"):
            assert part in card, weights.parent.name
    for source in ("tatoeba.org", "manythings.org/anki", "squad", "WikiSQL", "mxeval", "GSM8K", "scitldr"):
        assert source in notice
    assert len(list((zoo / "licenses").iterdir())) > 20


# -- scripts/setup, with an interpreter that only writes down what it is asked ---------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that set-up reads, and a `python3` that makes a virtual environment which notes its calls."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts/setup")
    (tmp_path / "zoo").mkdir()
    for project in (".", "zoo"):
        shutil.copy(ROOT / project / "pyproject.toml", tmp_path / project)
    python = tmp_path / "python3"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'echo "$@" >> calls\n'
        '[ "$1" = -c ] && exit ${TOO_OLD:-0}\n'
        'if [ "$1 $2" = "-m venv" ]; then\n'
        '    mkdir -p "$3/bin"; [ -z "${NO_VENV:-}" ] || exit 1; cp "$0" "$3/bin/python"\n'
        "fi\n"
        'case "$*" in *${BREAK:-never}*) exit 1;; esac\n'
    )
    python.chmod(0o755)
    return tmp_path


def setup(checkout: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Run the script; gives its status and what pip was asked to install."""
    calls = checkout / "calls"
    calls.unlink(missing_ok=True)
    paths = {"PATH": f"{checkout}:{os.environ['PATH']}"}
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "DRAFTWISE_TORCH_INDEX")}
    script, env = checkout / "scripts/setup", kept | paths | environment
    done = subprocess.run([script, *arguments], cwd="/", env=env, capture_output=True, check=False)
    lines = calls.read_text().splitlines() if calls.exists() else []
    return done.returncode, [line.split(" install ")[1] for line in lines if " install " in line]


TORCH, ALL, DEMO = "torch==2.13.0", "-e ./zoo -e .[dev,zoo]", "-e ./zoo -e .[zoo]"


def test_setup_installs_torch_first_then_the_project_then_nothing(checkout: Path) -> None:
    assert [setup(checkout) for _ in range(2)] == [(0, [TORCH, ALL]), (0, [])]
    assert setup(checkout, "demo") == (0, []), "all of it is there"


def test_setup_installs_less_for_the_demo(checkout: Path) -> None:
    assert [setup(checkout, "demo") for _ in range(2)] == [(0, [TORCH, DEMO]), (0, [])]
    assert setup(checkout) == (0, [TORCH, ALL])


def test_setup_follows_a_changed_project_and_a_moved_checkout(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setup(checkout)
    for project in (".", "zoo"):
        with open(checkout / project / "pyproject.toml", "a") as file:
            file.write("# changed\n")
        assert setup(checkout)[1] == [TORCH, ALL]
    moved = shutil.copytree(checkout, tmp_path_factory.mktemp("moved") / "there")
    assert setup(moved)[1] == [TORCH, ALL]


def test_setup_takes_the_index_only_where_asked(checkout: Path) -> None:
    _, asked = setup(checkout, DRAFTWISE_TORCH_INDEX="https://example.org/cpu")
    assert asked == [f"--extra-index-url https://example.org/cpu {TORCH}", ALL]


def test_setup_that_failed_is_done_again_and_leaves_no_half_made_environment(checkout: Path) -> None:
    assert setup(checkout, TOO_OLD="1") == (1, [])
    assert setup(checkout, NO_VENV="1")[0] == 1 and not (checkout / ".venv").exists()
    assert setup(checkout, BREAK="torch==") == (1, [TORCH])
    assert setup(checkout) == (0, [TORCH, ALL])
