"""The documentation tells the truth: its Python runs, its commands, options and links exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import draftwise
from draftwise.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
HUB = re.compile(r"(Qwen|meta-llama)/")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is one module. What names a model of the hub is only compiled: tests are offline."""
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page, "python"):
        code = compile(block, str(page), "exec", dont_inherit=True)
        if not HUB.search(block):
            exec(code, module.__dict__)


def test_pages_have_code_that_runs() -> None:
    offline = [b for page in PAGES for b in blocks(page, "python") if not HUB.search(b)]
    assert len(offline) >= 8


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_exist(page: Path) -> None:
    command: Any = typer.main.get_command(app)
    text = page.read_text()
    for verb in re.findall(r"(?:^|`)draftwise ([a-z]+)", text, flags=re.M):
        assert verb in command.commands, f"{named(page)}: draftwise {verb}"
    known = {option for verb in command.commands.values() for option in options(verb)} | {"--strict"}
    for script, rest in re.findall(r"`python (scripts/\w+\.py)([^`]*)`", text):
        source = (ROOT / script).read_text()
        for option in re.findall(r"--[a-z][a-z-]+", rest):
            assert f'"{option}"' in source, f"{named(page)}: {script} {option}"
    others = r"`python [^`]*`|^.*\bvllm(?: serve|\.entrypoints)\b.*$"  # whose options are not ours
    text = re.sub(others, "", text, flags=re.M)
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
        assert option in known, f"{named(page)}: {option}"


def options(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in parameter.opts}
    return own.union(*(options(sub) for sub in getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), f"{named(page)}: {link}"


def test_every_public_name_has_its_place_in_the_reference() -> None:
    told = re.findall(r"^::: draftwise\.(\w+)$", (ROOT / "docs/reference/api.md").read_text(), flags=re.M)
    assert sorted(told) == draftwise.__all__
