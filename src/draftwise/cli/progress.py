"""Progress on standard error: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Protocol

from typer import Exit

from . import show

SOON = 0.5  # seconds until the first plain line, so that a short command or a refused one has none
LONG = 2.0  # seconds of a stage of loading until it has a line
EVERY = 10.0  # seconds between two plain lines
REDRAW = 0.1  # seconds between two pictures of a bar
NARROW = 60  # columns below which numbers stand alone, without a bar

hidden: ContextVar[bool] = ContextVar("hidden", default=False)
"""Whether the command prints JSON: then nothing else is shown."""


class Tell(Protocol):
    """Takes how far one phase is; `left` are the seconds left where the phase knows better than its pace."""

    def __call__(self, what: str, done: int, total: int, left: float | None = None) -> None: ...


class TimeLeft:
    """Estimates the seconds left of each phase by its pace since its first report.

    A phase that counts fewer than before has begun again.
    """

    def __init__(self) -> None:
        self.starts: dict[str, tuple[float, int]] = {}
        self.counts: dict[str, int] = {}

    def left(self, what: str, done: int, total: int) -> float | None:
        """Seconds left; None before anything is done."""
        phase = what.partition(",")[0]  # what stands after a comma is news of the same phase
        if done < self.counts.get(phase, 0):
            del self.starts[phase]
        self.counts[phase] = done
        since, first = self.starts.setdefault(phase, (monotonic(), done))
        return (monotonic() - since) / (done - first) * (total - done) if done > first else None


def progress(begin: str) -> AbstractContextManager[Tell]:
    """Show `begin ...` at once, and then whatever phases are told of."""
    if hidden.get() or show.quiet():
        return nullcontext(show_nothing)
    return _bars(begin) if sys.stderr.isatty() else _lines(begin)


def waiting(what: str) -> AbstractContextManager[object]:
    """A spinner while one step takes long; nothing where standard error is not a terminal."""
    if hidden.get() or show.quiet():
        return nullcontext()
    return show.console(stderr=True).status(f"{what} ...")


@contextmanager
def stages(begin: str) -> Iterator[None]:
    """Show `begin` with each stage of loading: in a spinner on a terminal, else a line for each long one."""
    from draftwise.models.stages import listener

    if hidden.get() or show.quiet():
        yield
        return
    with _spinner(begin) if sys.stderr.isatty() else _long_ones(begin) as show_stage:
        token = listener.set(show_stage)
        try:
            yield
        finally:
            listener.reset(token)


@contextmanager
def resumable(what: str, out: Path) -> Iterator[None]:
    """Say after Ctrl-C that the same command resumes what it has begun in a folder."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes the {what} in {out}", file=sys.stderr)
        raise Exit(130) from None


@contextmanager
def _spinner(begin: str) -> Iterator[Callable[[str], None]]:
    with show.console(stderr=True).status(f"{begin} ...") as status:
        yield lambda stage: status.update(f"{begin}: {stage} ...")


@contextmanager
def _long_ones(begin: str) -> Iterator[Callable[[str], None]]:
    """One line for each stage that takes more than `LONG` seconds."""
    timer, current = Timer(0.0, int), ""

    def show_stage(stage: str) -> None:
        nonlocal timer, current
        if stage == current:
            return
        timer.cancel()
        current = stage
        timer = Timer(LONG, lambda: print(f"{begin}: {stage} ...", file=sys.stderr))
        timer.daemon = True
        timer.start()

    show_stage("importing PyTorch")
    try:
        yield show_stage
    finally:
        timer.cancel()


def clock(seconds: float | None) -> str:
    if seconds is None:
        return "time left: not known yet"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"


def show_nothing(*_: object, **__: object) -> None:
    """Take a report of progress, or a piece of text, and show nothing."""


@contextmanager
def _lines(begin: str) -> Iterator[Tell]:
    """One line soon after the start and one every few seconds."""
    first = Timer(SOON, lambda: print(f"{begin} ...", file=sys.stderr))
    first.daemon = True
    first.start() if SOON else first.function()
    pace, last = TimeLeft(), monotonic()

    def tell(what: str, done: int, total: int, left: float | None = None) -> None:
        nonlocal last
        first.cancel()
        own = pace.left(what, done, total)
        if monotonic() - last >= EVERY:
            last = monotonic()
            print(f"{what} {done}/{total}; {clock(own if left is None else left)}", file=sys.stderr)

    try:
        yield tell
    finally:
        first.cancel()


@contextmanager
def _bars(begin: str) -> Iterator[Tell]:
    """One bar, which shows the phase under way; the numbers are never cut."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = show.console(stderr=True)
    what_column = TextColumn(
        "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )
    counts = TextColumn("{task.fields[counts]}", table_column=Column(no_wrap=True))
    parts = [SpinnerColumn(), what_column, BarColumn(bar_width=20), counts]
    if console.width < NARROW:
        parts.remove(parts[2])
    pace, redrawn_at, phase = TimeLeft(), 0.0, ""
    with Progress(*parts, console=console, transient=True, expand=True) as bars:
        bar = bars.add_task(f"{begin} ...", total=None, counts="")

        def tell(what: str, done: int, total: int, left: float | None = None) -> None:
            nonlocal redrawn_at, phase
            own = pace.left(what, done, total)
            if monotonic() - redrawn_at < REDRAW and done < total and what.partition(",")[0] == phase:
                return
            redrawn_at, phase = monotonic(), what.partition(",")[0]
            numbers = f"{done}/{total} {clock(own if left is None else left)}"
            bars.update(bar, description=what, completed=done, total=total, counts=numbers, refresh=True)

        yield tell
