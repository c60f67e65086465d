"""Texts side by side on a terminal, live."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from . import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from draftwise.generation.text import Piece

REDRAW_SECONDS = 0.1


class Screen:
    """One column for each side under the prompt; `add` redraws, so that no thread disturbs the timing."""

    def __init__(self, title: str, prompt: str, sides: Sequence[str], colours: dict[str, str]) -> None:
        from rich.live import Live

        self.title, self.prompt, self.colours = title, " ".join(prompt.split()), colours
        self.pieces: dict[str, list[Piece]] = {side: [] for side in sides}
        self.notes = dict.fromkeys(sides, "")
        self.live = Live(console=show.console(), auto_refresh=False, vertical_overflow="crop")
        self.drawn = 0.0

    def __enter__(self) -> Screen:
        self.live.start()
        self._draw()
        return self

    def __exit__(self, *_: Any) -> None:
        self._draw()
        self.live.stop()

    def add(self, side: str, piece: Piece) -> None:
        """Append a piece to a column."""
        self.pieces[side].append(piece)
        if perf_counter() - self.drawn > REDRAW_SECONDS:
            self._draw()

    def note(self, side: str, text: str) -> None:
        """Set the line below a column."""
        self.notes[side] = text

    def _draw(self) -> None:
        self.live.update(self._picture(), refresh=True)
        self.drawn = perf_counter()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        columns = Table.grid(expand=True)
        for _ in self.pieces:
            columns.add_column(ratio=1)
        columns.add_row(
            *(
                Panel(show.coloured(pieces, self.colours), title=side, subtitle=self.notes[side])
                for side, pieces in self.pieces.items()
            )
        )
        heading = Text(f"{self.title}: {self.prompt}", style="bold", no_wrap=True, overflow="ellipsis")
        return Group(heading, columns, show.legend(self.colours))
