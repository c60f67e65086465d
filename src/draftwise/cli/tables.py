"""Lines and tables that fit the width of the terminal; names and numbers are never cut."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import TextIO

GAP = "  "
NARROWEST = 24  # columns that prose needs beside the other cells; with less it moves below them


def width(stream: TextIO | None = None) -> int | None:
    """The columns of the terminal, or of COLUMNS; None where output goes to a file or a pipe."""
    stream = stream or sys.stdout
    if os.environ.get("COLUMNS", "").isdigit() or stream.isatty():
        return max(shutil.get_terminal_size().columns, 1)
    return None


def line(text: str, *, indent: str = "", stream: TextIO | None = None) -> None:
    """Print one paragraph, wrapped between words; further lines are indented."""
    for part in _wrapped(text, width(stream), indent):
        print(part, file=stream or sys.stdout)


def table(
    columns: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    *,
    prose: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Print aligned columns; where they do not fit, each row as a block of lines.

    With `prose` the last column is text, which wraps. Without `columns` there is no header.
    """
    stream = stream or sys.stdout
    for text, heading in _lines(columns, [[str(cell) for cell in row] for row in rows], prose, width(stream)):
        bold = heading and stream.isatty() and "NO_COLOR" not in os.environ
        print(f"\x1b[1m{text}\x1b[0m" if bold else text, file=stream)


def _lines(
    columns: Sequence[str] | None, rows: Sequence[Sequence[str]], prose: bool, limit: int | None
) -> list[tuple[str, bool]]:
    """The lines of a table, and whether each is a heading."""
    both = [*([columns] if columns else []), *rows]
    if not both:
        return []
    widths = [max(map(len, cells)) for cells in zip(*both, strict=True)]
    fixed = widths[:-1] if prose else widths
    taken = sum(fixed) + len(GAP) * (len(widths) - 1)
    if limit is not None and taken > (limit - NARROWEST if prose else limit):
        return [part for row in rows for part in _block(columns, row, prose, limit)]
    found = []
    for i, row in enumerate(both):
        parts = [GAP.join(cell.ljust(size) for cell, size in zip(row, [*fixed, 0], strict=False))]
        if prose and limit is not None:
            parts = _wrapped(parts[0], limit, " " * taken)
        found += [(part.rstrip(), i == 0 and columns is not None) for part in parts]
    return found


def _block(
    columns: Sequence[str] | None, row: Sequence[str], prose: bool, limit: int
) -> list[tuple[str, bool]]:
    """One row on lines of its own: the first cell, then the others under their headings."""
    inner = " " * (len(row[0]) - len(row[0].lstrip()) + 4)
    found = [(row[0].rstrip(), True)]
    for i, cell in enumerate(row[1:], start=1):
        if cell:
            last = prose and i == len(row) - 1
            text = cell if last or columns is None else f"{columns[i]}: {cell}"
            found += [(part, False) for part in _wrapped(inner + text, limit, inner)]
    return found


def _wrapped(text: str, limit: int | None, indent: str) -> list[str]:
    """The text on lines of at most `limit` columns; a longer word keeps its line."""
    if limit is None or len(text) <= limit:
        return [text]
    lead = len(text) - len(text.lstrip())
    found: list[str] = wrap(
        text[lead:],
        limit,
        initial_indent=text[:lead],
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return found
