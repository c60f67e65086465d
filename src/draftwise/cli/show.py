"""How text and tables look, coloured on a terminal and plain elsewhere; standard input and standard error."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO

from draftwise.core.round import event
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.inputs import whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from draftwise.generation.output import Output
    from draftwise.generation.text import Piece

LOG = logging.getLogger("draftwise")
PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "red")

unended: list[Callable[[], None]] = []
"""Ends the line of text that a terminal shows so far; empty where none is open."""


def console(*, stderr: bool = False) -> Console:
    """A console that prints text without markup."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True, slots=True)
class Result:
    """What a verb has found: `value` for --json, `text` prints it for people; the exit status of both."""

    value: Any
    text: Callable[[], object]
    status: int = 0


def dump(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def styles(drafters: Iterable[str]) -> dict[str, str]:
    """A colour for each drafter, composed ones included; the target's own text has none."""
    names = [name for name in drafters if name != "none"]
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def coloured(pieces: Iterable[Piece], colours: dict[str, str]) -> Text:
    """Pieces in the colours of their drafters; escape codes in the text are made visible."""
    from rich.text import Text

    harmless = ((p.text.replace("\x1b", "\N{SYMBOL FOR ESCAPE}"), p.source) for p in pieces)
    return Text.assemble(*((text, colours.get(source, "")) for text, source in harmless))


def legend(colours: dict[str, str]) -> Text:
    """A square in the colour of each drafter, and the target's; a name that does not fit begins a line."""
    from rich.text import Text

    text, used, columns = Text(), 0, width(sys.stdout)
    for label, colour in [*((f"■ {name}", colour) for name, colour in colours.items()), ("□ target", "")]:
        fits = columns is None or used + len(GAP) + len(label) <= columns
        between = "" if not used else GAP if fits else "\n"
        used = used + len(between) + len(label) if fits else len(label)
        text.append(between).append(label, colour)
    return text


def as_dict(output: Output) -> dict[str, Any]:
    """The output of `--json` for one text."""
    row: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "pieces": [{"text": piece.text, "source": piece.source} for piece in output.pieces],
        "stats": output.stats.as_dict(),
        "rounds": [event(round) for round in output.rounds],
    }
    if output.logprobs:
        row["logprobs"] = output.logprobs
    return row


def report(output: Output, *, wanted: bool) -> None:
    """After a text: faults as warnings, and the closing line on a terminal or if wanted."""
    for fault, times in Counter(output.stats.faults).items():
        LOG.warning("%s%s", fault, f" ({times} times)" if times > 1 else "")
    on_terminal = sys.stdout.isatty()
    if wanted or (not quiet() and (on_terminal or sys.stderr.isatty())):
        print(output.summary(), file=sys.stdout if on_terminal else sys.stderr)


def interval(row: Mapping[str, Any]) -> str:
    """The 95 % interval of the speedup, or that there are too few prompts for one."""
    if row["interval"] is None:
        return "too few prompts"
    low, high = row["interval"]
    return f"{low:.2f} to {high:.2f}"


SPEEDS = ("method", "prompts", "tokens/s", "speedup", "95 %", "accepted")


def speeds(row: Mapping[str, Any]) -> list[str]:
    return [
        row["method"],
        str(row["prompts"]),
        f"{row['tokens_per_s']:.1f}",
        f"{row['speedup']:.2f}",
        interval(row),
        f"{row['mean_accepted']:.2f}",
    ]


def trust(results: Mapping[str, Any], when: str = "") -> None:
    """Print why the machine was not quiet, or why this is not known."""
    why = "; ".join(results["busy"])
    if results["clean"] is False:
        print(f"NOT CLEAN, the machine was busy{f' {when}' if when else ''}: {why}")
    elif why:
        print(f"NOT KNOWN TO BE CLEAN: {why}")


class Writer:
    """Writes pieces to stdout as they arrive, in colours on a terminal."""

    def __init__(self, colours: dict[str, str]) -> None:
        self.colours = colours
        self.terminal = console() if sys.stdout.isatty() else None
        self.last = ""

    def write(self, piece: Piece) -> None:
        self.last = piece.text or self.last
        if self.terminal:
            self.terminal.print(coloured([piece], self.colours), end="", soft_wrap=True)
            unended[:] = [self.end]
        else:
            print(piece.text, end="")
        sys.stdout.flush()

    def end(self) -> None:
        """Finish the line, unless it is."""
        unended.clear()
        if not self.last.endswith("\n"):
            print(flush=True)
        self.last = "\n"


GAP = "  "
NARROWEST = 24  # columns that prose needs beside the other cells; with less it moves below them


def width(stream: TextIO) -> int | None:
    """The columns of the terminal, or of COLUMNS; None where output goes to a file or a pipe."""
    if os.environ.get("COLUMNS", "").isdigit() or stream.isatty():
        return max(shutil.get_terminal_size().columns, 1)
    return None


def line(text: str, *, indent: str = "") -> None:
    """Print one paragraph, wrapped between words; further lines are indented."""
    print("\n".join(_wrapped(text, width(sys.stdout), indent)))


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
    total = sum(fixed) + len(GAP) * (len(widths) - 1)
    if limit is not None and total > (limit - NARROWEST if prose else limit):
        return [part for row in rows for part in _block(columns, row, prose, limit)]
    lines = []
    for i, row in enumerate(both):
        parts = [GAP.join(cell.ljust(size) for cell, size in zip(row, [*fixed, 0], strict=False))]
        if prose and limit is not None:
            parts = _wrapped(parts[0], limit, " " * total)
        lines += [(part.rstrip(), i == 0 and columns is not None) for part in parts]
    return lines


def _block(
    columns: Sequence[str] | None, row: Sequence[str], prose: bool, limit: int
) -> list[tuple[str, bool]]:
    """One row on lines of its own: the first cell, then the others under their headings."""
    inner = " " * (len(row[0]) - len(row[0].lstrip()) + 4)
    lines = [(row[0].rstrip(), True)]
    for i, cell in enumerate(row[1:], start=1):
        if cell:
            last = prose and i == len(row) - 1
            text = cell if last or columns is None else f"{columns[i]}: {cell}"
            lines += [(part, False) for part in _wrapped(inner + text, limit, inner)]
    return lines


def _wrapped(text: str, limit: int | None, indent: str) -> list[str]:
    """The text on lines of at most `limit` columns; a longer word keeps its line."""
    if limit is None or len(text) <= limit:
        return [text]
    lead = len(text) - len(text.lstrip())
    lines: list[str] = wrap(
        text[lead:],
        limit,
        initial_indent=text[:lead],
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return lines


# -- standard input and standard error --------------------------------------------------------------------


def standard_input(read: Callable[[], str]) -> str:
    """The text that `read` takes from standard input."""
    try:
        return whole(read(), "standard input")
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8 text: convert it first") from error


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`."""
    text = standard_input(sys.stdin.read).removesuffix("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty: give some text, or - for standard input")
    return text


class OneLine(logging.Handler):
    """Prints `level: message` to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        if unended and sys.stderr.isatty():
            unended.pop()()
        print(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)


@contextmanager
def to_stderr() -> Iterator[None]:
    """Show the library's warnings and log records while a command runs, then everything as it was."""
    handler, level = OneLine(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.WARNING)
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, DraftwiseWarning):
            LOG.warning("%s", message)
        else:
            default(message, category, *place)  # type: ignore[arg-type]

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        unended.clear()
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        if warnings.showwarning is show:
            warnings.showwarning = default


def set_level(*, quiet: bool, verbose: bool) -> None:
    """Follow --quiet and --verbose; without either, what was set before stays."""
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other: give one of them")
    if quiet or verbose:
        LOG.setLevel(logging.ERROR if quiet else logging.INFO)


def quiet() -> bool:
    return not LOG.isEnabledFor(logging.WARNING)


def verbose() -> bool:
    return LOG.isEnabledFor(logging.INFO)
