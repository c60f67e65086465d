"""The report of a made-up folder: everything is said and drawn, losers too, and what is missing is named."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftwise.errors import UserError
from draftwise.measure.machine import judge
from draftwise.measure.report import tables, write_report
from draftwise.measure.report.page import breakable, prose
from draftwise.measure.report.pictures import PICTURES
from draftwise.measure.report.records import read
from draftwise.measure.report.story import GLOSSARY
from draftwise.measure.report.tables import pairs

from . import folder as made

VOID = {"wbr", "meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """What a page holds, and whether its tags are nested as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.classes: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("src", "href", "xlink:href") if name in given]
        self.classes.append(given.get("class", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes another"


@pytest.fixture
def bare(whole: Path, tmp_path: Path) -> Callable[..., Path]:
    """A folder with only some of the files, and changes to `results.json`."""

    def bare(*files: str, **changes: Any) -> Path:
        for name in files:
            shutil.copy(whole / name, tmp_path)
        found = json.loads((whole / "results.json").read_text()) | changes
        (tmp_path / "results.json").write_text(json.dumps(found))
        return tmp_path

    return bare


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No matplotlib, so that nothing is drawn, which takes seconds."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_every_picture_is_drawn(whole: Path) -> None:
    drawn = {path.stem for path in (whole / "pictures").iterdir()}
    assert drawn == {picture.name for picture in PICTURES}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (whole / "pictures").iterdir())
    page = Page((whole / "report.html").read_text())
    assert {picture.name for picture in PICTURES} <= set(page.ids)


def test_the_page_is_whole_and_asks_nothing_of_the_network(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert page.links
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]*)\)", text))
    assert not re.search(r"@import|<script src|fetch\(", text)


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_losers_absent_peers_and_an_unclean_run_are_said(whole: Path, name: str) -> None:
    text = (whole / name).read_text().replace("<wbr>", "")
    assert "0.87 slower" in text
    assert "vllm is not installed" in text
    assert "Not a clean run: load 2.70 on 8 cores at the start" in text
    assert "0.40 on average" in text
    for method in made.METHODS:
        assert method in text


@pytest.mark.usefixtures("undrawn")
def test_the_banner_and_the_table_have_one_figure(bare: Callable[..., Path]) -> None:
    """Samples weigh by their seconds, and short ones have too few ticks of the clock for a peak."""
    short, long = {"others": 3.0, "over": 0.5}, {"others": 1.5, "over": 8}
    load: list[dict[str, float]] = [{"start": 0.1}, short, long]
    why = judge([0.1], load[1:], 8)
    here = bare(clean=False, busy=why, load=load)
    write_report(here)
    text = (here / "report.md").read_text()
    assert "others used 1.59 of 8 cores on average" in text
    assert "1.59 on average, 1.50 at most" in text


@pytest.mark.usefixtures("undrawn")
def test_a_clean_run_and_one_without_losers_say_so(bare: Callable[..., Path]) -> None:
    here = bare(clean=True, absent=[])
    write_report(here)
    text = (here / "report.md").read_text()
    assert "Clean run" in text
    assert "Absent" not in text


def test_what_is_missing_is_named_with_the_command_that_gives_it(bare: Callable[..., Path]) -> None:
    here = bare()
    (here / "pictures").mkdir()
    (here / "pictures/entropy.png").write_text("of an earlier report")
    write_report(here)
    drawn = {path.stem for path in (here / "pictures").iterdir()}
    assert drawn == {"speedup", "intervals", "categories", "phases", "batches"}
    text = (here / "report.html").read_text()
    bare_text = re.sub(r"<wbr>|</?span>", "", text)
    for command in ("draftwise oracle TRACE", "draftwise report DIR --beside OTHER", "tapout-seq-ucb1"):
        assert f"<code>{command}" in bare_text
    for picture in PICTURES:
        assert escape(picture.title) in text


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_there_are_tables_and_a_hint(bare: Callable[..., Path]) -> None:
    here = bare("pieces.jsonl")
    write_report(here)
    text = (here / "report.html").read_text()
    assert not (here / "pictures").exists()
    assert "pip install &quot;draftwise[report]&quot;" in text
    assert "metasd-ucb" in text


def test_names_cannot_break_out_of_the_page_or_a_picture(bare: Callable[..., Path]) -> None:
    nasty = "<script>alert(1)</script> $x_$ |"
    row = {"method": nasty, "category": "all", "speedup": 1.1, "interval": [1.0, 1.2], "pulls": {"a:5": 9}}
    here = bare(results=[row], settings={"workload": nasty}, absent=[{"method": nasty, "reason": nasty}])
    (here / "pieces.jsonl").write_text(
        json.dumps({"method": nasty, "prompt": 1, "pieces": [["<b>\x1b[31m", nasty], [nasty, "target"]]})
    )
    write_report(here)
    page = (here / "report.html").read_text()
    assert Page(page).classes.count("d0") == 3  # the legend, the key and the piece
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert "\x1b" not in page
    assert "\\|" in (here / "report.md").read_text()


def test_a_text_is_coloured_by_its_drafters(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    assert '<span class="d1" title="zoo:code">add(a, b):\n</span>' in text
    assert '<span class="d2" title="ngram">    return </span>a &lt; b &amp; c' in text
    assert "<li>target 37 %</li>" in text


def test_a_prompt_stands_beside_its_answers(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    pair = text[text.index('<div class="pair">') :]
    assert pair.index("Add &lt;a&gt; and b.") < pair.index("add(a, b)")
    assert "<h3>coding, prompt 0</h3>" in text


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_date_command_machine_versions_and_terms_are_on_the_page(whole: Path, name: str) -> None:
    text = re.sub(r"<wbr>|</?span>", "", (whole / name).read_text())
    for said in ("2026-03-01 12:00+00:00", "draftwise bench --workload mixed", "a laptop", "torch 2.13.0"):
        assert said in text
    for term in ("round", "arm", "accepted", "acceptance rate", "block efficiency"):
        assert f"<dt>{term}</dt>" in text or f"**{term}**" in text


def test_the_terms_of_the_tables_are_in_the_glossary(whole: Path) -> None:
    explained = {"speed-up", "95 % interval", "mean of ratios", "block efficiency", "acceptance rate"}
    explained |= {"TTFT", "TPOT"}
    assert explained <= set(tables.methods(read(whole).of()).heads) & set(GLOSSARY)


def test_names_break_between_their_parts_alone() -> None:
    name = "static-5?drafter=zoo:code&stop=svip"
    assert breakable(name).split("<wbr>") == ["static-5?", "drafter=", "zoo:", "code&amp;", "stop=", "svip"]
    assert prose("`a --per-category 1`") == "<code>a <span>--per-category</span> 1</code>"


def test_other_batch_sizes_have_tables_of_their_own(whole: Path) -> None:
    text = (whole / "report.md").read_text()
    assert [f"## Batch size {b}" in text for b in (1, 2, 4, 8)] == [False, True, True, True]


@pytest.mark.usefixtures("undrawn")
def test_a_single_category_has_no_second_table_of_the_same_numbers(bare: Callable[..., Path]) -> None:
    for names in (["coding", "qa"], ["coding"]):
        rows = json.loads((bare() / "results.json").read_text())["results"]
        folder = bare(results=[row for row in rows if row["category"] in ("all", *names)])
        write_report(folder)
        assert ("### coding" in (folder / "report.md").read_text()) is (len(names) > 1)


def test_runs_beside_are_told_apart_by_what_differs(whole: Path) -> None:
    results = read(whole, [whole.parent / "phased"])
    assert list(results.beside) == ["workload mixed", "workload phased"]
    assert list(read(whole, [whole]).beside) == [str(whole)]
    with pytest.raises(UserError, match=r"no results\.json"):
        read(whole, [whole / "pictures"])


def test_a_torn_last_line_is_left_out_and_another_is_refused(bare: Callable[..., Path]) -> None:
    here = bare("rounds.jsonl")
    count = len(read(here).rounds["metasd-ucb"])
    text = (here / "rounds.jsonl").read_text()
    (here / "rounds.jsonl").write_text(text + '{"method": "metasd-u')
    assert len(read(here).rounds["metasd-ucb"]) == count
    (here / "rounds.jsonl").write_text('{"torn\n' + text)
    with pytest.raises(UserError, match=r"rounds\.jsonl, line 1: not JSON"):
        read(here)


def test_rounds_of_larger_batches_are_not_mixed_in(bare: Callable[..., Path]) -> None:
    here = bare("rounds.jsonl")
    before = len(read(here).rounds["none"])
    line = json.loads((here / "rounds.jsonl").read_text().splitlines()[0])
    with (here / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line | {"batch": 8}) + "\n" + json.dumps(line | {"batch": 1}) + "\n")
    assert len(read(here).rounds["none"]) == before + 1


def test_settings_are_flat_words() -> None:
    found = {"a": {"b": [1, 2.5], "c": True}, "d": None, "e": [[0.1, 0.2], [0.3]], "f": ""}
    cells = {name.text: value.text for name, value in pairs(found).rows}
    nothing = "\N{EN DASH}"
    assert cells == {"a b": "1, 2.5", "a c": "yes", "d": nothing, "e": "0.1 0.2 / 0.3", "f": nothing}
    assert prose("`a<b` & c") == "<code>a&lt;b</code> &amp; c"


@pytest.mark.usefixtures("undrawn")
def test_the_optimum_stands_beside_fixed_arms(bare: Callable[..., Path]) -> None:
    here = bare()
    fixed = {"drafter": "ngram", "length": 5, "seconds": 4.0}
    row = {"category": "all", "new_tokens": 99, "optimum": 2.0, "none": 8.0, "best_fixed": fixed}
    (here / "oracle.json").write_text(json.dumps({"lengths": {}, "results": [row | {"exactly": {"a": 2.5}}]}))
    write_report(here)
    cells = "| all | 99 | 2.00 s | ngram:5 | 4.00 s (50 %) | 2.50 s (80 %) | 8.00 s (25 %) |"
    assert cells in (here / "report.md").read_text()
    assert "<h3>The optimum</h3>" in (here / "report.html").read_text()
