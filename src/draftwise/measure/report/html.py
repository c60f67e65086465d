"""The report as one HTML file that asks nothing of the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from . import tables
from .records import Results, Sample
from .story import OPTIMUM, Drawn, Story
from .style import COLOURS
from .tables import Cell, Table

SKELETON = Path(__file__).with_name("page.html")
BORDERS = ("solid", "dashed", "dotted", "double")
SORTED_FROM = 3  # rows; fewer need no sorting
MOST_TEXTS = 7  # of one prompt


def page(results: Results, story: Story) -> str:
    """The whole page."""
    body = [
        _head(results, story),
        *_numbers(results),
        *_pictures(story),
        *_texts(results),
        *_rest(results, story),
    ]
    skeleton = Template(SKELETON.read_text(encoding="utf-8"))
    return skeleton.substitute(title=escape(story.title), colours=_colours(), body="\n".join(body))


def _head(results: Results, story: Story) -> str:
    notes = "".join(
        f'<p class="note{"" if good else " bad"}">{prose(text)}</p>' for good, text in story.notes
    )
    facts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)} <small>{escape(whose)}</small></dd></div>"
        for what, value, whose in story.facts
    )
    sections = [*dict.fromkeys(d.picture.section for d in story.drawn if d.svg)]
    links = ["Results", *sections, *(["Texts"] if results.samples else []), "Setting"]
    nav = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in links)
    return (
        f'<header><h1>{escape(story.title)}</h1><p class="soft">{prose(story.subtitle)}</p>{notes}'
        f'<dl class="facts">{facts}</dl><nav aria-label="Sections">{nav}</nav></header>'
    )


def _numbers(results: Results) -> Iterable[str]:
    yield _heading("Results")
    if results.simulation:
        yield table(tables.policies(results.simulation))
        yield "<h3>The arms alone</h3>" + table(tables.simulated_arms(results.simulation))
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
    if results.absent:
        rows = [(Cell(method), Cell(reason)) for method, reason in results.absent]
        yield "<h3>Absent</h3><p>Not measured, and so in no table or picture.</p>"
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
        f'<figcaption>{prose(picture.caption)}</figcaption><div class="wide">{svg}</div></figure>'
    )


def _texts(results: Results) -> Iterable[str]:
    if not results.samples:
        return
    yield _heading("Texts")
    yield "<p>Coloured and underlined by who guessed it; plain text is the target's own.</p>"
    order = [row.method for kind in ("adaptive", "fixed", "plain") for row in results.kinds(kind)]
    ranked = sorted(results.samples, key=lambda s: order.index(s.method) if s.method in order else len(order))
    for prompt in dict.fromkeys(sample.prompt for sample in results.samples):
        first, *others = [text(s, results.drafters) for s in ranked if s.prompt == prompt][:MOST_TEXTS]
        more = f"<details><summary>By other methods</summary>{''.join(others)}</details>" if others else ""
        yield first + more


def text(sample: Sample, drafters: Sequence[str]) -> str:
    """A text whose guessed pieces are coloured by their drafter, with a key of who guessed how much."""
    sources = dict.fromkeys([*(source for _, source in sample.pieces if source != "target"), "target"])
    total = max(sum(len(piece) for piece, _ in sample.pieces), 1)
    keys = []
    for source in sources:
        share = sum(len(piece) for piece, whose in sample.pieces if whose == source) / total
        keys.append(f"<li>{_piece(source, source, drafters)} {100 * share:.0f} %</li>")
    spans = "".join(_piece(piece, source, drafters) for piece, source in sample.pieces)
    title = escape(f"{sample.category} {sample.prompt}, {sample.method}".strip())
    return f'<h3>{title}</h3><ul class="key">{"".join(keys)}</ul><div class="text">{spans}</div>'


def _piece(text: str, source: str, drafters: Sequence[str]) -> str:
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    if source not in drafters:
        return escape(shown)
    number = drafters.index(source) % len(COLOURS)
    return f'<span class="d{number}" title="{escape(source)}">{escape(shown)}</span>'


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
        yield "<h3>Not drawn</h3>" + table(Table(("picture", "missing", "given by"), missing), words=True)


def _settings(found: Mapping[str, Any]) -> str:
    """A table of what is said in a word, and each group of further ones folded away."""
    nested = {name: inner for name, inner in found.items() if isinstance(inner, Mapping)}
    plain = {name: value for name, value in found.items() if name not in nested}
    folded = (
        f"<details><summary>{escape(name)}</summary>{table(tables.pairs(inner), words=True)}</details>"
        for name, inner in nested.items()
    )
    return table(tables.pairs(plain), words=True) + "".join(folded)


def table(content: Table, *, words: bool = False) -> str:
    """A table that can be scrolled on its own, and sorted where there is something to sort."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in content.heads)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in content.rows)
    kinds = "words" if words else "sorts" if len(content.rows) >= SORTED_FROM else ""
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="wide"><table class="{kinds}">{inner}</table></div>'


def _cell(cell: Cell) -> str:
    key = "" if cell.key is None else f' data-key="{cell.key:.9g}"'
    slower = ' class="slower"' if cell.slower else ""
    return f"<td{key}{slower}>{prose(cell.text)}</td>"


def prose(text: str) -> str:
    """Plain text whose `backticks` are code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _heading(title: str) -> str:
    return f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _colours() -> str:
    rules = (
        f".d{i} {{ background: {hue}33; border-bottom: 2px {BORDERS[i % len(BORDERS)]} {hue} !important; }}"
        for i, hue in enumerate(COLOURS)
    )
    return "\n".join(rules)
