"""Names that fit: long ones in several lines, broken where their parts meet, or shortened in the middle."""

from __future__ import annotations

import re
from collections.abc import Sequence

WIDE, LINES = 30, 3  # letters a line and lines of a name beside a picture
PARTS = re.compile(r"(?<=[?&,/ ])")  # where a name may be broken


def brief(name: str, most: int) -> str:
    """The name with at most `most` letters: what is too much is left out in the middle."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{name[-tail:]}"


def wrapped(name: str, width: int = WIDE) -> str:
    """The name in at most `LINES` lines of at most `width` letters, broken between its parts."""
    lines = [""]
    for part in PARTS.split(brief(name, width * LINES)):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    first, rest = lines[: LINES - 1], "".join(lines[LINES - 1 :])
    return "\n".join(brief(line.rstrip(), width) for line in [*first, rest] if line)


def rows(names: Sequence[str]) -> tuple[list[str], int]:
    """Names of rows, wrapped, and how many lines the longest has."""
    found = [wrapped(name) for name in names]
    return found, max((name.count("\n") + 1 for name in found), default=1)
