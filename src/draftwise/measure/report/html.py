"""The report as one HTML file that loads nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from . import tables
from .glossary import terms
from .markup import breakable, prose
from .records import Results
from .story import OPTIMUM, Drawn, Story
from .tables import Cell, Table
from .texts import colours, texts

SKELETON = Path(__file__).with_name("page.html")
SORTED_FROM = 3  # rows; fewer need no sorting


def page(results: Results, story: Story) -> str:
    """The whole page."""
    body = [
        _head(results, story),
        *_numbers(results),
        *_pictures(story),
        *_texts(results),
        *_glossary(results),
        *_rest(results, story),
    ]
    skeleton = Template(SKELETON.read_text(encoding="utf-8"))
    return skeleton.substitute(title=escape(story.title), colours=colours(), body="\n".join(body))


def _head(results: Results, story: Story) -> str:
    notes = "".join(
        f'<p class="note{"" if good else " bad"}">{prose(text)}</p>' for good, text in story.notes
    )
    facts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)} <small>{breakable(whose)}</small></dd></div>"
        for what, value, whose in story.facts
    )
    origin = "".join(f"<dt>{name}</dt><dd>{prose(text)}</dd>" for name, text in story.origin.items())
    sections = [*dict.fromkeys(d.picture.section for d in story.drawn if d.svg)]
    links = ["Results", *sections, *(["Texts"] if results.samples else []), "Glossary", "Setting"]
    nav = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in links)
    return (
        f'<header><h1>{escape(story.title)}</h1><p class="soft">{prose(story.subtitle)}</p>{notes}'
        f'<dl class="pairs">{origin}</dl>'
        f'<dl class="facts">{facts}</dl><nav aria-label="Sections">{nav}</nav></header>'
    )


def _numbers(results: Results) -> Iterable[str]:
    yield _heading("Results")
    if results.simulation:
        yield table(tables.policies(results.simulation))
        yield "<h3>Each arm alone</h3>" + table(tables.simulated_arms(results.simulation))
    if not results.rows:
        return
    yield table(tables.methods(results.of()))
    for category in results.categories:
        inner = table(tables.methods(results.of(category)))
        yield f"<details><summary>{escape(category)}</summary>{inner}</details>"
    if results.optimum:
        yield "<h3>The optimum</h3>" + f"<p>{prose(OPTIMUM)}</p>" + table(tables.optimum(results.optimum))
    for size in results.larger:
        yield f"<h3>Batch size {size}</h3>" + table(tables.methods(results.of(batch=size)))
    if results.peers:
        rows = [(Cell(method), Cell(settings)) for method, settings in results.peers]
        yield "<h3>Peers</h3><p>Other engines, with the settings that each ran with.</p>"
        yield table(Table(("peer", "settings"), rows), words=True)
    if results.absent:
        rows = [(Cell(method), Cell(reason)) for method, reason in results.absent]
        yield "<h3>Absent</h3><p>Not measured, and therefore in no table or picture.</p>"
        yield table(Table(("method", "reason"), rows), words=True)


def _pictures(story: Story) -> Iterable[str]:
    section = ""
    for drawn in story.drawn:
        if not drawn.svg:
            continue
        if drawn.picture.section != section:
            section = drawn.picture.section
            yield _heading(section)
        yield figure(drawn)


def figure(drawn: Drawn) -> str:
    """One picture with its heading and caption."""
    picture = drawn.picture
    title = f'<title id="{picture.name}-title">{escape(picture.title)}</title>'
    svg = re.sub(r"(<svg [^>]*>)", lambda found: found[1] + title, drawn.svg, count=1)
    return (
        f'<figure id="{picture.name}"><h3>{escape(picture.title)}</h3>'
        f"<figcaption>{prose(picture.caption)}</figcaption>{_wide(svg, picture.title)}</figure>"
    )


def _wide(inner: str, name: str) -> str:
    """A box that scrolls sideways, also by keyboard; the page's script shows the hint where it does."""
    return (
        f'<div class="scroll"><p class="hint" aria-hidden="true">Scroll sideways \N{RIGHTWARDS ARROW}</p>'
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">{inner}</div></div>'
    )


def _texts(results: Results) -> Iterable[str]:
    if results.samples:
        yield _heading("Texts")
        yield from texts(results)


def _glossary(results: Results) -> Iterable[str]:
    yield _heading("Glossary")
    found = terms(not results.rows).items()
    said = "".join(f"<dt>{escape(term)}</dt><dd>{prose(text)}</dd>" for term, text in found)
    yield f'<dl class="pairs">{said}</dl>'


def _rest(results: Results, story: Story) -> Iterable[str]:
    yield _heading("Setting")
    for title, found in (
        ("Settings", results.own_settings),
        ("Machine", results.machine),
        ("Load", story.load),
    ):
        if found:
            yield f"<h3>{title}</h3>" + _settings(found)
    missing = [(Cell(d.picture.title), Cell(d.missing), Cell(d.remedy)) for d in story.drawn if not d.svg]
    if missing:
        heads = ("picture", "missing data", "provided by")
        yield "<h3>Pictures without data</h3>" + table(Table(heads, missing), words=True)


def _settings(found: Mapping[str, Any]) -> str:
    """A table of the single values, and one folded table per group of values."""
    nested = {name: inner for name, inner in found.items() if isinstance(inner, Mapping)}
    plain = {name: value for name, value in found.items() if name not in nested}
    folded = (
        f"<details><summary>{escape(name)}</summary>{table(tables.pairs(inner), words=True)}</details>"
        for name, inner in nested.items()
    )
    return table(tables.pairs(plain), words=True) + "".join(folded)


def table(content: Table, *, words: bool = False) -> str:
    """A table in a box that scrolls; one with several rows can be sorted."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in content.heads)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in content.rows)
    kinds = "words" if words else "sorts" if len(content.rows) >= SORTED_FROM else ""
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return _wide(f'<table class="{kinds}">{inner}</table>', f"Table by {content.heads[0]}")


def _cell(cell: Cell) -> str:
    key = "" if cell.key is None else f' data-key="{cell.key:.9g}"'
    slower = ' class="slower"' if cell.slower else ""
    return f"<td{key}{slower}>{prose(cell.text)}</td>"


def _heading(title: str) -> str:
    return f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())
