"""The documentation tells the truth: its Python runs, its commands, options and links exist."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import draftwise
from draftwise import plugins, testing
from draftwise.cli.app import app
from draftwise.measure.trace.costs import Costs
from draftwise.measure.trace.files import Header, RecordedDrafts
from draftwise.registry import describe
from draftwise.state.file import PARTS
from scripts import doctests, landing, reference
from tests.hosts.arguments import FIELDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [page for page in PAGES if page.parent.name == "how-to" and page.stem != "index"]
HUB = re.compile(r"(Qwen|meta-llama|openai)/|zoo:smollm2")  # SmolLM2 is in a package that tests do without


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
    known = options(command) | {"--strict"}
    # Commands whose options are not ours; those of studies: tests/studies/test_studies.py.
    others = (
        r"`python [^`]*`|^.*\bvllm(?: serve|\.entrypoints)\b.*$|^guidellm (?:.*\\\n)*.*$"
        r"|\bpip install [^\n`|]*"
    )
    text = re.sub(others, "", text, flags=re.M)
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
        assert option in known, f"{named(page)}: {option}"


def options(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(sub) for sub in getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), f"{named(page)}: {link}"


def test_every_public_name_has_its_place_in_the_reference() -> None:
    told = {page: (ROOT / f"docs/reference/{page}.md").read_text() for page in ("api", "contract")}
    assert sorted(re.findall(r"^::: draftwise\.(\w+)$", told["api"], flags=re.M)) == draftwise.__all__
    for module in (plugins, testing):
        found = re.findall(rf"^::: {module.__name__}\.(\w+)$", told["contract"], flags=re.M)
        assert set(module.__all__) <= {*found, *draftwise.__all__}


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_how_to_pages_start_with_what_can_be_pasted(page: Path) -> None:
    assert re.match(r"# .+\n\n```(sh|python)\n", page.read_text())


def test_every_file_format_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/files.md").read_text()
    sources = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    formats = re.findall(r'^FORMAT, VERSION = "([\w-]+)", "?(\d+)"?$', sources, flags=re.M)
    told = re.findall(r"^\| \[`([\w-]+)`\]\(#[\w-]+\) \| (\d+) \|", page, flags=re.M)
    assert sorted(formats) == sorted(told)
    names = {field.name for kind in (Header, RecordedDrafts, Costs) for field in fields(kind)} | PARTS
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_every_file_of_the_cache_is_listed() -> None:
    sources = "\n".join(file.read_text() for file in (ROOT / "src/draftwise/models").rglob("*.py"))
    kinds = re.findall(r'^(?:KIND|PACKING) = "(\w+)"', sources, flags=re.M)
    page = (ROOT / "docs/how-to/install.md").read_text()
    assert len(kinds) > 4 and [kind for kind in kinds if f"`{kind}.json`" not in page] == []


def test_every_page_is_in_the_navigation() -> None:
    said = (ROOT / "zensical.toml").read_text()
    docs = [page.relative_to(ROOT / "docs") for page in PAGES if ROOT / "docs" in page.parents]
    assert [page for page in docs if f'"{page}"' not in said] == []


def test_the_generated_reference_names_everything(tmp_path: Path) -> None:
    reference.main(tmp_path)
    text = {file.stem: file.read_text() for file in tmp_path.iterdir()}
    for group in ("policies", "drafters"):
        for one in describe(group):
            assert re.search(rf"^##+ `{one.name}`", text[group], flags=re.M), one.name
            rows = [f"| `{name}` | {option.help} | {option.type} |" for name, option in one.options.items()]
            assert [row for row in rows if row not in text[group]] == []
    command: Any = typer.main.get_command(app)
    assert all(option in text["command-line"] for option in options(command))
    assert not re.search(r"^\* \[?`\w+`.*\.\.\.$", text["command-line"], flags=re.M)  # cut short
    assert all(f"| `{name}` |" in text["arguments"] for name in FIELDS)
    assert {f'--8<-- "{name}.md"' for name in text} <= {
        line for page in PAGES for line in page.read_text().splitlines()
    }


def test_doctests_are_shown_as_code() -> None:
    text = "Says it.\n\n>>> a[0]\n1\n\nMore [0] text.\n"
    assert doctests.fenced(text) == "Says it.\n\n```pycon\n>>> a[0]\n1\n```\n\nMore [0] text.\n"


def test_the_readme_fits_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 95
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("![") for line in lines) == 1


def test_pages_and_change_log_can_be_read() -> None:
    """No page over 3,000 words, the one on the papers 4,000, all 45,000, and a change log of one screen."""
    pages = [*PAGES, ROOT / "CHANGELOG.md"]
    words = {named(page): len(page.read_text().split()) for page in pages}
    most = {"docs/explanation/findings.md": 4000}
    assert {name: n for name, n in words.items() if n > most.get(name, 3000)} == {}
    assert sum(words.values()) <= 45_000
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


def test_the_picture_shows_the_tables_figures() -> None:
    shown = (ROOT / "docs/pictures/draftwise.svg").read_text()
    page = landing.TABLE.read_text()
    assert landing.picture(page) == shown
    methods = [name for name, *_ in landing.speeds(page)]
    assert sorted(methods) == sorted(landing.SHOWN.values()), "each has one bar"


# -- Measured tables say how they were measured ------------------------------------------------------------

INTERVAL = re.compile(r"\d \(\d[\d.]* to \d[\d.]*\)")
EDITIONS = ("first edition", "second edition", "both editions", "no model", "SmolLM2-135M-Instruct")


def tables(text: str) -> list[tuple[str, list[str]]]:
    """Every table of a page: what stands above it in its section and in the page's lead, and its cells."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lead, *sections = re.split(r"(?m)^(?=## )", text)
    found = []
    for above, section in [("", lead), *((lead, section) for section in sections)]:
        for table in re.finditer(r"(?:^\|.*\n?)+", section, flags=re.M):
            rows = [row.strip("|").split("|")[1:] for row in table[0].splitlines()[2:]]
            cells = [cell.strip() for row in rows for cell in row if cell.strip()]
            found.append((above + section[: table.start()], cells))
    return found


def is_measured(cells: list[str]) -> bool:
    """Most of its cells are numbers, or one has an interval."""
    numbers = [re.match(r"\W*\d+([.,]\d+)?\b", cell) for cell in cells]
    return 2 * sum(map(bool, numbers)) >= len(cells) > 0 or any(map(INTERVAL.search, cells))


def test_what_counts_as_measured() -> None:
    text = "# A\n\n| x | y |\n|---|---|\n| a | 1.5 |\n\n## B\n\n| x | y |\n|---|---|\n| a | what it is |\n"
    assert [is_measured(cells) for _, cells in tables(text)] == [True, False]
    assert is_measured(["confirmed: 1.04 (1.03 to 1.05)", "`ucb1`", "`static`"])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_measured_tables_say_how(page: Path) -> None:
    """`**Measured:** command; machine; edition; spread.` stands in the table's section or the page's lead."""
    for above, cells in tables(page.read_text()):
        if is_measured(cells) and "**Not measured:** " not in above:
            said = re.findall(r"^\*\*Measured:\*\* (.*(?:\n.+)*)", above, flags=re.M)
            assert said, f"{named(page)}: a table of numbers has no line **Measured:** above it: {cells[:4]}"
            command, machine, edition, spread = said[-1].replace("\n", " ").rstrip(".").split("; ")
            assert re.match(r"`(draftwise|python) ", command), f"{named(page)}: {command}"
            assert re.search(r"\b(cores?|GPU|any machine)\b", machine), f"{named(page)}: {machine}"
            assert edition.startswith(EDITIONS), f"{named(page)}: {edition}"
            assert spread
