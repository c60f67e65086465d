"""What people install: two complete distributions with true metadata, and the files that release them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import draftwise

ROOT = Path(__file__).parents[1]
MOST = 2_000_000  # bytes of the wheel that all users download


def metadata(project: Path = ROOT) -> ProjectMetadata[Any]:
    return ProjectMetadata(str(project), PluginManager())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of draftwise, built by its own build system."""
    folder = tmp_path_factory.mktemp("dist")
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(made)


def headers(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def test_the_wheel_is_small_and_holds_the_package_alone(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    described = f"draftwise-{draftwise.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"draftwise", described}
    source = ROOT / "src/draftwise"
    tracked = {file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {name for name in names if name.startswith("draftwise/")} == {
        f"draftwise/{file.relative_to(source).as_posix()}" for file in tracked
    }
    assert {"draftwise/py.typed", "draftwise/data/spec_bench.jsonl"} <= names
    assert "draftwise/serve/page/index.html" in names
    assert not [name for name in names if name.endswith((".safetensors", "tokenizer.json"))]
    licenses = {Path(name).name for name in names if "/licenses/" in name}
    assert licenses == {"LICENSE", "NOTICE", "spec_bench.LICENSE", "uPlot.LICENSE"}


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    """Unpacked in an empty folder, without the bundled models."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import draftwise; from draftwise.models import smollm2, zoo; from draftwise.cli import main; "
        "zoo.PACKAGE = smollm2.PACKAGE = 'absent'; print(draftwise.__file__); "
        "main(['models']); main(['policies', 'auto'])"
    )
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert Path(lines[0]) == tmp_path / "draftwise/__init__.py"
    assert lines[1].startswith("The bundled models are not installed: pip install ./zoo in a clone of the")
    assert len(lines) > 5, "auto and its options"


def test_source_archives_hold_what_builds_a_wheel_and_no_more() -> None:
    for project, package in ((ROOT, "draftwise"), (ROOT / "zoo", "draftwise_zoo")):
        files = {file.distribution_path for file in SdistBuilder(str(project)).recurse_included_files()}
        assert {"/".join(file.split("/")[:2]) for file in files if "/" in file} == {f"src/{package}"}
    assert {"README.md", "hatch_build.py"} <= {
        file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()
    }


def test_both_distributions_have_the_one_version() -> None:
    versions = [metadata(project).version for project in (ROOT, ROOT / "zoo")]
    assert {*versions, version("draftwise")} == {draftwise.__version__}
    assert metadata().core.optional_dependencies["zoo"] == [f"draftwise-zoo=={draftwise.__version__}"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == draftwise.__version__


def test_the_zoo_ships_models_with_their_licences() -> None:
    builder = WheelBuilder(str(ROOT / "zoo"))
    files = {file.distribution_path for file in builder.recurse_included_files()}
    assert {file.split("/")[0] for file in files} == {"draftwise_zoo"}
    assert "draftwise_zoo/target/model.safetensors" in files
    kept = metadata(ROOT / "zoo").core.license_files
    assert "src/draftwise_zoo/NOTICE" in kept and len([file for file in kept if "/licenses/" in file]) > 20


def test_links_are_those_of_the_repository_that_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert metadata().core.urls == {}
    assert metadata().core.readme == (ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.setenv("GITHUB_REPOSITORY", "Some/where")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    core = metadata().core
    assert core.urls == {
        "Homepage": "https://example.org/Some/where",
        "Documentation": "https://some.github.io/where/",
        "Source": "https://example.org/Some/where",
        "Changelog": "https://example.org/Some/where/blob/main/CHANGELOG.md",
        "Issues": "https://example.org/Some/where/issues",
    }
    targets = re.findall(r"\]\(([^)]+)\)", core.readme)
    assert targets and all(target.startswith(("https://", "#")) for target in targets)
    assert "](https://example.org/Some/where/raw/main/docs/pictures/" in core.readme


def test_stated_python_versions_are_the_tested_ones(wheel: Path) -> None:
    stated = [line.rpartition(" ")[2] for line in headers(wheel).get_all("Classifier", []) if ":: 3." in line]
    tested = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]
    assert stated == tested["matrix"]["python"]
    assert headers(wheel)["Requires-Python"] == f">={stated[0]}"


FORMS = [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")]
SCHEMAS = {
    "github-workflows": [str(file.relative_to(ROOT)) for file in (ROOT / ".github/workflows").glob("*.yml")],
    "github-issue-forms": FORMS,
    "github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": ["CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_github_follow_their_schemas(schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, *SCHEMAS[schema]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_bug_reports_ask_for_the_machine() -> None:
    for form in FORMS:
        assert "draftwise doctor --json" in (ROOT / form).read_text()


def test_a_release_publishes_both_distributions_without_a_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["strategy"]["matrix"]["distribution"] == ["draftwise-zoo", "draftwise"], "in this order"
    assert publish["steps"][-1]["with"]["attestations"] is True
    assert "secrets." not in text
