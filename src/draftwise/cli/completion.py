"""Completion in bash, which splits words at colons: of `zoo:target`, three words, it replaces the last."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

MODE, WORDS, CURRENT = "_DRAFTWISE_COMPLETE", "COMP_WORDS", "COMP_CWORD"


@contextmanager
def joined_words(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Join what bash has split, and print of each completion the part that it replaces."""
    split = environ.get(WORDS, "").split("\n")
    if environ.get(MODE) != "complete_bash" or ":" not in split:
        yield
        return
    words, current = join(split, int(environ[CURRENT]))
    environ.update({WORDS: "\n".join(words), CURRENT: str(current)})
    unchanged = "".join(words[current].rpartition(":")[:2])
    shown = StringIO()
    try:
        with redirect_stdout(shown):
            yield
    finally:
        for line in shown.getvalue().splitlines():
            print(line.removeprefix(unchanged), file=sys.stdout)


def join(split: Sequence[str], current: int) -> tuple[list[str], int]:
    """Return the words up to the current one with their colons, and which of them that is."""
    words: list[str] = []
    for part in split[: current + 1]:
        if words and (part == ":" or words[-1].endswith(":")):
            words[-1] += part
        else:
            words.append(part)
    return words, len(words) - 1
