"""The report as one HTML file that loads nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from .records import Results, Sample
from .story import Block, Drawing, Fold, Heading, Story, closing_blocks, result_blocks
from .style import COLOURS
from .tables import Cell, Table

SKELETON = Path(__file__).with_name("page.html")
SORTED_FROM = 3  # rows; fewer need no sorting
OPTION = re.compile(r"(?<!\S)(--[\w-]+)")
JOINTS = re.compile(r"(?<=[?&=:,/_])(?=\w)")  # where a long name may be broken
BORDERS = ("solid", "dashed", "dotted", "double")
MOST = 7  # answers to one prompt
ABOUT = (
    "Each drafted and accepted piece of an answer is coloured and underlined by its drafter. Text without "
    "colour was written by the target."
)


def page(results: Results, story: Story) -> str:
    """Return the whole page."""
    parts = (
        _head(results, story),
        *map(_block, [*result_blocks(results), *story.picture_blocks()]),
        *_texts(results),
        *map(_block, closing_blocks(results, story)),
    )
    skeleton = Template(SKELETON.read_text(encoding="utf-8"))
    # A tint and an underline for each drafter's pieces, which differs without colour too.
    colours = "\n".join(
        f".d{i} {{ background: {hue}33; border-bottom: 2px {BORDERS[i % len(BORDERS)]} {hue} !important; }}"
        for i, hue in enumerate(COLOURS)
    )
    return skeleton.substitute(title=escape(story.title), colours=colours, body="\n".join(parts))


def _head(results: Results, story: Story) -> str:
    notes = "".join(
        f'<p class="note{"" if good else " bad"}">{prose(text)}</p>' for good, text in story.notes
    )
    facts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)} <small>{breakable(whose)}</small></dd></div>"
        for what, value, whose in story.facts
    )
    sections = [block.title for block in story.picture_blocks() if isinstance(block, Heading)]
    links = ["Results", *sections, *(["Texts"] if results.samples else []), "Glossary", "Setting"]
    nav = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in links)
    return (
        f'<header><h1>{escape(story.title)}</h1><p class="soft">{prose(story.subtitle)}</p>{notes}'
        f"{_pairs(story.origin)}"
        f'<dl class="facts">{facts}</dl><nav aria-label="Sections">{nav}</nav></header>'
    )


def _block(block: Block) -> str:
    match block:
        case Heading(title, level):
            anchor = f' id="{_anchor(title)}"' if level == 2 else ""
            return f"<h{level}{anchor}>{escape(title)}</h{level}>"
        case Fold(title, content):
            return _folded(title, table(content))
        case Drawing(picture, svg):
            name = f'<title id="{picture.name}-title">{escape(picture.title)}</title>'
            svg = re.sub(r"(<svg [^>]*>)", lambda match: match[1] + name, svg, count=1)
            return (
                f'<figure id="{picture.name}"><h3>{escape(picture.title)}</h3>'
                f"<figcaption>{prose(picture.caption)}</figcaption>{_wide(svg, picture.title)}</figure>"
            )
        case Table():
            return table(block)
        case str():
            return f"<p>{prose(block)}</p>"
    return _pairs(block)


# -- prompts and answers ----------------------------------------------------------------------------------


def _texts(results: Results) -> Iterable[str]:
    """Yield the legend, then each prompt with the answers of the methods, the fastest adaptive one first."""
    if not results.samples:
        return
    drafters = results.drafters
    keys = "".join(f"<li>{_piece(name, name, drafters)}</li>" for name in drafters)
    yield _block(Heading("Texts"))
    yield f'<p>{ABOUT}</p><ul class="key">{keys}<li>target</li></ul>'
    order = [row.method for kind in ("adaptive", "fixed", "plain") for row in results.kinds(kind)]
    ranked = sorted(results.samples, key=lambda s: order.index(s.method) if s.method in order else len(order))
    for prompt in dict.fromkeys(sample.prompt for sample in results.samples):
        samples = [sample for sample in ranked if sample.prompt == prompt]
        first, *others = [_answer(sample, drafters) for sample in samples][:MOST]
        answers = first + (_folded("Answers of other methods", "".join(others)) if others else "")
        title = escape(", ".join(part for part in (samples[0].category, f"prompt {prompt}") if part))
        yield f"<h3>{title}</h3>" + _beside(samples[0].prompt_text, answers)


def _beside(prompt: str, answers: str) -> str:
    """Return a prompt and its answers side by side; the answers alone where the prompt was not kept."""
    if not prompt:
        return answers
    question = f'<h4>Prompt</h4><div class="text asked" tabindex="0">{printable(prompt)}</div>'
    return f'<div class="pair"><div>{question}</div><div>{answers}</div></div>'


def _answer(sample: Sample, drafters: Sequence[str]) -> str:
    """Return an answer with its method, and the share of its characters that each drafter proposed."""
    sources = dict.fromkeys([*(source for _, source in sample.pieces if source != "target"), "target"])
    total = max(sum(len(piece) for piece, _ in sample.pieces), 1)
    keys = ""
    for source in sources:
        share = sum(len(piece) for piece, whose in sample.pieces if whose == source) / total
        keys += f"<li>{_piece(source, source, drafters)} {100 * share:.0f} %</li>"
    spans = "".join(_piece(piece, source, drafters) for piece, source in sample.pieces)
    title = breakable(sample.method)
    return f'<h4>{title}</h4><ul class="key">{keys}</ul><div class="text">{spans}</div>'


def _piece(text: str, source: str, drafters: Sequence[str]) -> str:
    if source not in drafters:
        return printable(text)
    number = drafters.index(source) % len(COLOURS)
    return f'<span class="d{number}" title="{escape(source)}">{printable(text)}</span>'


# -- markup -----------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Return plain text whose `backticks` are code, in which no option is broken after its hyphens."""
    parts = [breakable(part) for part in re.split(r"`([^`]*)`", text)]
    for i in range(1, len(parts), 2):
        parts[i] = "<code>" + OPTION.sub(r"<span>\1</span>", parts[i]) + "</code>"
    return "".join(parts)


def breakable(text: str) -> str:
    """Return escaped text in which names may be broken between their parts, and only there."""
    return "<wbr>".join(map(escape, JOINTS.split(text)))


def printable(text: str) -> str:
    """Return escaped text with a replacement character for each control character."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text))


def table(content: Table) -> str:
    """Return a table in a box that scrolls; one with several rows can be sorted."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in content.heads)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in content.rows)
    kind = "words" if content.is_words else "sorts" if len(content.rows) >= SORTED_FROM else ""
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return _wide(f'<table class="{kind}">{inner}</table>', f"Table by {content.heads[0]}")


def _cell(cell: Cell) -> str:
    key = "" if cell.key is None else f' data-key="{cell.key:.9g}"'
    slower = ' class="slower"' if cell.slower else ""
    return f"<td{key}{slower}>{prose(cell.text)}</td>"


def _wide(inner: str, name: str) -> str:
    """Return a box that scrolls sideways, also by keyboard; the page's script shows the hint then."""
    return (
        f'<div class="scroll"><p class="hint" aria-hidden="true">Scroll sideways \N{RIGHTWARDS ARROW}</p>'
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">{inner}</div></div>'
    )


def _folded(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _pairs(pairs: Mapping[str, str]) -> str:
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{prose(text)}</dd>" for name, text in pairs.items())
    return f'<dl class="pairs">{inner}</dl>'


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())
