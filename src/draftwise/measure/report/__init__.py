"""The report that people look at: tables and pictures of what was measured, replayed or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...writing import write_text
from .page import page
from .records import Results, read, readable
from .story import Block, Drawing, Fold, Heading, Story, closing_blocks, result_blocks, tell_story
from .tables import Table

__all__ = ["write_report"]


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> None:
    """Write `report.md`, `report.html` and `pictures/*.png` into a folder of results.

    Runs in the folders `beside` are compared with it in one more picture.

    Raises:
        UserError: the folder has no results, or a file in it is damaged.
        OSError: a file of the report cannot be written.
    """
    results = read(folder, beside)
    with readable(folder):  # simulations and optima are read where they are shown
        list(result_blocks(results))
    story = tell_story(results, folder / "pictures")
    write_text(folder / "report.md", markdown(results, story))
    write_text(folder / "report.html", page(results, story))


def markdown(results: Results, story: Story) -> str:
    """Return the whole report; pictures are links into `pictures/`."""
    parts = [f"# {story.title}", story.subtitle, _pairs(story.origin)]
    parts += [text if good else f"**{text}**" for good, text in story.notes]
    parts += map(_block, [*result_blocks(results), *story.picture_blocks(), *closing_blocks(results, story)])
    return "\n\n".join(filter(None, parts)) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {block.title}"
        case Fold():
            return f"### {block.title}\n\n{_block(block.content)}"
        case Drawing(picture):
            link = f"![{picture.title}](pictures/{picture.name}.png)"
            return f"### {picture.title}\n\n{picture.caption}\n\n{link}"
        case Table():
            lines = [block.heads, ["---"] * len(block.heads)]
            lines += [
                [cell.text.replace("|", "\\|").replace("\n", " ") for cell in row] for row in block.rows
            ]
            return "\n".join("| " + " | ".join(line) + " |" for line in lines)
        case str():
            return block
    return _pairs(block)


def _pairs(pairs: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {text}" for name, text in pairs.items())
