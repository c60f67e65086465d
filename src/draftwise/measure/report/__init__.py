"""The report that people look at: tables and pictures of what was measured, replayed or simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...writing import write_text
from . import tables
from .page import page
from .records import Results, read, readable
from .story import OPTIMUM, Story, tell_story
from .tables import Table

__all__ = ["write_report"]


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> None:
    """Write `report.md`, `report.html` and `pictures/*.png` into a folder of results.

    Runs in the folders `beside` are compared with it in one more picture.

    Raises:
        UserError: the folder has no results, or a file in it is damaged.
        OSError: a file of the report cannot be written.
    """
    results = read(folder, beside)
    with readable(folder):  # simulations and optima are read where they are shown
        simulation = results.simulation or {"policies": (), "arms": ()}
        tables.policies(simulation)
        tables.simulated_arms(simulation)
        tables.optimum(results.optimum)
    story = tell_story(results, folder / "pictures")
    write_text(folder / "report.md", markdown(results, story))
    write_text(folder / "report.html", page(results, story))


# -- Markdown --------------------------------------------------------------------------------------------


def markdown(results: Results, story: Story) -> str:
    """Return the whole report; pictures are links into `pictures/`."""
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
        yield f"## Peers\n\n{table(tables.texts(('peer', 'settings'), results.peers))}"
    if results.absent:
        yield f"## Absent\n\n{table(tables.texts(('method', 'reason'), results.absent))}"
    for section, drawings in story.sections():
        yield f"## {section}"
        for picture in (one.picture for one in drawings):
            yield f"### {picture.title}\n\n{picture.caption}"
            yield f"![{picture.title}](pictures/{picture.name}.png)"
    if results.categories:
        yield "## By category"
        for category in results.categories:
            yield f"### {category}\n\n{table(tables.methods(results.of(category)))}"
    yield "## Setting"
    for settings in (results.own_settings, results.machine, story.load):
        if settings:
            yield table(tables.pairs(settings))
    yield "## Glossary\n\n" + "\n".join(f"- **{term}**: {text}" for term, text in story.terms.items())
    if story.missing:
        yield f"## Pictures without data\n\n{table(story.missing)}"


def table(content: Table) -> str:
    """Return a Markdown table."""
    lines = [content.heads, ["---"] * len(content.heads)]
    lines += [[cell.text for cell in row] for row in content.rows]
    return "\n".join("| " + " | ".join(map(_escape, line)) + " |" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
