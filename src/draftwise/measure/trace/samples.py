"""A few texts as words, so that a replay can show which drafter proposed what without a tokenizer.

texts.json      by the index of a prompt: the prompt's text, and the text that each token of the answer added
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.round import Round
from ...errors import UserError
from ...generation.text import TARGET, Detokenizer, decode
from ...inputs import parse_json
from .files import Trace, write_json

SAMPLES = 4  # texts, each of another category
FILE = "texts.json"


@dataclass(frozen=True, slots=True)
class Words:
    """One text: its prompt, and the text that each token of the answer added."""

    prompt: str
    words: Sequence[str]


def write_samples(trace: Trace, tokenizer: Any) -> None:
    """Write the words of the first text of some categories, unless they are there."""
    if (trace.folder / FILE).is_file():
        return
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for i, recording in enumerate(trace):
        if recording.category not in seen:
            seen.add(recording.category)
            asked = decode(tokenizer, recording.prompt.tolist()).strip()
            answer = words(recording.text[: recording.committed].tolist(), tokenizer)
            found[str(i)] = asdict(Words(asked, answer))
        if len(seen) == SAMPLES:
            break
    write_json(trace.folder / FILE, found)


def words(tokens: Sequence[int], tokenizer: Any) -> list[str]:
    """The text that each token added; a character of several tokens belongs to the last one."""
    writer = Detokenizer(tokenizer)
    found = ["".join(piece.text for piece in writer.push([token], "")) for token in tokens]
    found[-1] += "".join(piece.text for piece in writer.flush())
    return found


def read_samples(folder: Path) -> dict[str, Words]:
    """The texts of the trace in a folder by the prompt's index; empty if none were written.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return {
            key: Words(str(text["prompt"]), [str(word) for word in text["words"]])
            for key, text in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(
            f"{str(path)!r} is damaged: remove it and run the same `draftwise trace` again"
        ) from None


def pieces(text: Sequence[str], rounds: Sequence[Round]) -> list[tuple[str, str]]:
    """A text as pieces of (text, drafter that proposed it, or "target")."""
    found, at = [], 0
    for round in rounds:
        for source, tokens in (
            (round.arm.drafter, round.sources),
            (TARGET, len(round.tokens) - round.sources),
        ):
            if piece := "".join(text[at : at + tokens]):
                found.append((piece, source))
            at += tokens
    return found
