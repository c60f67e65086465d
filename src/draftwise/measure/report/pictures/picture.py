"""One picture of the report, and what it says when its data is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..records import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw: TypeAlias = "Callable[[Results], Figure]"
ROUNDS = "`draftwise bench` or `draftwise replay` with `--out`, which write `rounds.jsonl`"
ORACLE = "`draftwise oracle TRACE` with `--out` into this folder"
FIXED = "the same run with fixed arms beside the policy, such as `static-5` for each drafter"


class Missing(Exception):
    """There is nothing to draw: `what` is not in the folder, and `remedy` is how to get it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def need(data: object, what: str, remedy: str) -> None:
    """Say that a picture cannot be drawn without this data."""
    if not data:
        raise Missing(what, remedy)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: the name of its file, its section, title and caption, and the function that draws it."""

    name: str
    section: str
    title: str
    caption: str
    draw: Draw


class Gallery(list[Picture]):
    """The pictures of a section, in the order of the page."""

    def __init__(self, section: str) -> None:
        super().__init__()
        self.section = section

    def add(self, title: str) -> Callable[[Draw], Draw]:
        """Add the decorated function as a picture; its docstring is the caption, its name the file's."""

        def add_picture(draw: Draw) -> Draw:
            caption = " ".join((draw.__doc__ or "").split())
            self.append(Picture(draw.__name__.replace("_", "-"), self.section, title, caption, draw))
            return draw

        return add_picture
