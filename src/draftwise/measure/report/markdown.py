"""The report as Markdown, with links to its pictures."""

from __future__ import annotations

from collections.abc import Iterable

from . import tables
from .glossary import terms
from .records import Results
from .story import OPTIMUM, Story
from .tables import Cell, Table


def markdown(results: Results, story: Story) -> str:
    """The whole report; pictures are links into `pictures/`."""
    return "\n\n".join(_parts(results, story)) + "\n"


def _parts(results: Results, story: Story) -> Iterable[str]:
    yield f"# {story.title}"
    yield story.subtitle
    if story.origin:
        yield "\n".join(f"- {name}: {text}" for name, text in story.origin.items())
    for good, text in story.notes:
        yield text if good else f"**{text}**"
    if results.simulation:
        yield table(tables.policies(results.simulation))
        yield "## Each arm alone"
        yield table(tables.simulated_arms(results.simulation))
    if results.rows:
        yield table(tables.methods(results.of()))
    if results.optimum:
        yield f"## The optimum\n\n{OPTIMUM}\n\n{table(tables.optimum(results.optimum))}"
    for size in results.larger:
        yield f"## Batch size {size}\n\n{table(tables.methods(results.of(batch=size)))}"
    if results.peers:
        yield "## Peers"
        yield table(Table(("peer", "settings"), [(Cell(m), Cell(s)) for m, s in results.peers]))
    if results.absent:
        yield "## Absent"
        yield table(Table(("method", "reason"), [(Cell(m), Cell(r)) for m, r in results.absent]))
    section = ""
    for drawn in story.drawn:
        if drawn.svg:
            if drawn.picture.section != section:
                section = drawn.picture.section
                yield f"## {section}"
            yield f"### {drawn.picture.title}\n\n{drawn.picture.caption}"
            yield f"![{drawn.picture.title}](pictures/{drawn.picture.name}.png)"
    if results.categories:
        yield "## By category"
        for category in results.categories:
            yield f"### {category}\n\n{table(tables.methods(results.of(category)))}"
    yield "## Setting"
    for found in (results.own_settings, results.machine, story.load):
        if found:
            yield table(tables.pairs(found))
    said = terms(not results.rows)
    yield "## Glossary\n\n" + "\n".join(f"- **{term}**: {text}" for term, text in said.items())
    missing = [(Cell(d.picture.title), Cell(d.missing), Cell(d.remedy)) for d in story.drawn if not d.svg]
    if missing:
        yield "## Pictures without data"
        yield table(Table(("picture", "missing data", "provided by"), missing))


def table(content: Table) -> str:
    """A Markdown table."""
    lines = [content.heads, ["---"] * len(content.heads)]
    lines += [[cell.text for cell in row] for row in content.rows]
    return "\n".join("| " + " | ".join(map(_safe, line)) + " |" for line in lines)


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
