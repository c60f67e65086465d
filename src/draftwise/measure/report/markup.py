"""Text as HTML."""

from __future__ import annotations

import re
from html import escape

JOINTS = re.compile(r"(?<=[?&=:,/_])(?=\w)")  # where a long name may be broken


def prose(text: str) -> str:
    """Plain text whose `backticks` are code."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(f"<code>{_code(p)}</code>" if i % 2 else breakable(p) for i, p in enumerate(parts))


def _code(text: str) -> str:
    """Code in which no option is broken after its hyphens."""
    return re.sub(r"(?<!\S)(--[\w-]+)", r"<span>\1</span>", breakable(text))


def breakable(text: str) -> str:
    """Escaped text in which names may be broken between their parts, and only there."""
    return "<wbr>".join(map(escape, JOINTS.split(text)))


def printable(text: str) -> str:
    """Escaped text with a replacement character for each control character."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text))
