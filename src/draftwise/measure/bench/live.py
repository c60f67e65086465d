"""Whether peers do what they are measured for: their settings, and what they draft for a text to copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...data import Prompt
from .contender import Item, Peer
from .ours import Models
from .runner import Runner

COPY = "Repeat this exactly: " + "one two three four five six seven. " * 6


def copying(models: Models, raw: bool) -> Item:
    """A prompt that asks for a copy and holds many of its own n-grams."""
    return Item(-1, "copy", "copy", tuple(models.encode(Prompt("copy", "copy", (COPY,)), raw=raw)))


def peers_of(runner: Runner) -> list[dict[str, Any]]:
    """One record for each peer that was measured: settings, seconds of preparation, and its drafts."""
    notes = runner.journal.notes()
    found = []
    for peer in runner.contenders:
        if isinstance(peer, Peer) and peer.name not in runner.failed:
            note = notes.get(peer.name, {})
            record = {"method": peer.name, "settings": dict(peer.settings), **note}
            found.append(record | {"doubts": list(doubts(record))})
    return found


def doubts(record: Mapping[str, Any]) -> Iterator[str]:
    """What speaks against a peer having run at its best, one line each."""
    copied = record.get("copied")
    if record.get("drafts") and copied:
        for what in ("drafted", "accepted"):
            if not copied[what]:
                yield f"it {what} no token of a text to copy"
                break
    if late := record["settings"].get("compiled while measured"):
        yield f"{late} more passes were compiled while it was measured: its times include that"
