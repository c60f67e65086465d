"""What a trace can hold: asked of options before anything is loaded, and of the header of a file."""

from __future__ import annotations

from math import inf
from typing import Any

from ...errors import UserError

LONGEST = 4096  # tokens of a draft; every length has its own column at each position of a text
TEXTS = ("target", "workload", "digest")
RANGES = {  # of whole numbers in a header
    "prompts": (1, 999_999),  # as many as the names of files can number
    "length": (1, LONGEST),
    "max_new_tokens": (1, 2**31),
    "vocab_size": (0, 2**31),
}


def recordable(length: int, *, overlap: bool, greedy: bool) -> None:
    """Check what a trace is to hold, which needs no models.

    Raises:
        UserError: a draft length out of its range, or overlaps of texts that are drawn.
    """
    if not 1 <= length <= LONGEST:
        raise UserError(f"--length {length}: give 1 to {LONGEST}")
    if overlap and not greedy:
        raise UserError("--overlap: where drafts are drawn they are not known, record at --temperature 0")


def check(header: Any) -> None:
    """Refuse a `Header` with values that no recording has; true and false are no numbers here.

    Raises:
        UserError: there is one; the message is the end of a line.
    """
    if not all(isinstance(grades, bool) for grades in header.drafters.values()):
        raise UserError("its drafters are not described")
    if wrong := [key for key in TEXTS if not isinstance(getattr(header, key), str)]:
        raise UserError(f"its {wrong[0]} is no text")
    for key, (least, most) in RANGES.items():
        value = getattr(header, key)
        if type(value) is not int or not least <= value <= most:
            raise UserError(f"its {key} {value!r:.40} is not from {least} to {most}")
    if type(header.temperature) not in (int, float) or not 0.0 <= header.temperature < inf:
        raise UserError(f"its temperature {header.temperature!r:.40} is no number from 0")
    whole = isinstance(header.eos, list) and all(type(token) is int for token in (*header.eos, header.seed))
    if not whole or not isinstance(header.overlap, bool):
        raise UserError("its seed, eos or overlap is damaged")
