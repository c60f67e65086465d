"""HTML of a text for notebooks: each drafter's tokens in a colour of their own, for dark and light themes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .text import TARGET, Piece

# Translucent, so that the theme's text colour stays readable; distinguishable by the colour-blind.
COLOURS = ("0,114,178", "230,159,0", "0,158,115", "204,121,167", "86,180,233", "213,94,0")


def html(pieces: Sequence[Piece], closing: str) -> str:
    """The text, a legend and the summary line; the text itself is escaped."""
    colours = _colours(piece.source for piece in pieces)
    body = "".join(_piece(piece, colours) for piece in pieces)
    names = [f"<span style='{_style(c)}'>{escape(name)}</span>" for name, c in colours.items()]
    legend = " ".join([*names, TARGET])
    return (
        f"<div style='white-space:pre-wrap;overflow-wrap:anywhere'>{body}</div>"
        f"<div style='opacity:.7;font-size:smaller;margin-top:.5em'>{legend} &middot; {escape(closing)}</div>"
    )


def _piece(piece: Piece, colours: dict[str, str]) -> str:
    text = escape(piece.text)
    if piece.source not in colours:
        return text
    return f"<span style='{_style(colours[piece.source])}' title='{escape(piece.source)}'>{text}</span>"


def _colours(sources: Iterable[str]) -> dict[str, str]:
    drafters = sorted({source for source in sources if source != TARGET})
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(drafters)}


def _style(colour: str) -> str:
    return f"background:rgba({colour},.3);border-radius:2px"
