"""Prompts beside their answers, which are coloured by drafter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .colours import COLOURS
from .markup import breakable, printable
from .records import Results, Sample

BORDERS = ("solid", "dashed", "dotted", "double")
MOST = 7  # answers to one prompt
ABOUT = (
    "Each drafted and accepted piece of an answer is coloured and underlined by its drafter. Text without "
    "colour was written by the target."
)


def texts(results: Results) -> Iterable[str]:
    """The legend, then each prompt with the answers of the methods, the fastest adaptive policy first."""
    yield f"<p>{ABOUT}</p>{_legend(results.drafters)}"
    order = [row.method for kind in ("adaptive", "fixed", "plain") for row in results.kinds(kind)]
    ranked = sorted(results.samples, key=lambda s: order.index(s.method) if s.method in order else len(order))
    for prompt in dict.fromkeys(sample.prompt for sample in results.samples):
        mine = [sample for sample in ranked if sample.prompt == prompt]
        first, *others = [answer(sample, results.drafters) for sample in mine][:MOST]
        rest = "".join(others)
        more = f"<details><summary>Answers of other methods</summary>{rest}</details>" if others else ""
        title = escape(", ".join(part for part in (mine[0].category, f"prompt {prompt}") if part))
        yield f"<h3>{title}</h3>" + _beside(mine[0].prompt_text, first + more)


def _beside(prompt: str, answers: str) -> str:
    """A prompt and its answers side by side; the answers alone where the prompt was not kept."""
    if not prompt:
        return answers
    asked = f'<h4>Prompt</h4><div class="text asked" tabindex="0">{printable(prompt)}</div>'
    return f'<div class="pair"><div>{asked}</div><div>{answers}</div></div>'


def _legend(drafters: Sequence[str]) -> str:
    keys = "".join(f"<li>{_piece(name, name, drafters)}</li>" for name in drafters)
    return f'<ul class="key">{keys}<li>target</li></ul>'


def answer(sample: Sample, drafters: Sequence[str]) -> str:
    """An answer with its method, and the share of its characters that each drafter proposed."""
    sources = dict.fromkeys([*(source for _, source in sample.pieces if source != "target"), "target"])
    total = max(sum(len(piece) for piece, _ in sample.pieces), 1)
    keys = []
    for source in sources:
        share = sum(len(piece) for piece, whose in sample.pieces if whose == source) / total
        keys.append(f"<li>{_piece(source, source, drafters)} {100 * share:.0f} %</li>")
    spans = "".join(_piece(piece, source, drafters) for piece, source in sample.pieces)
    title = breakable(sample.method)
    return f'<h4>{title}</h4><ul class="key">{"".join(keys)}</ul><div class="text">{spans}</div>'


def _piece(text: str, source: str, drafters: Sequence[str]) -> str:
    if source not in drafters:
        return printable(text)
    number = drafters.index(source) % len(COLOURS)
    return f'<span class="d{number}" title="{escape(source)}">{printable(text)}</span>'


def colours() -> str:
    """The style of each drafter's pieces: a tint and an underline, which differs without colour too."""
    rules = (
        f".d{i} {{ background: {hue}33; border-bottom: 2px {BORDERS[i % len(BORDERS)]} {hue} !important; }}"
        for i, hue in enumerate(COLOURS)
    )
    return "\n".join(rules)
