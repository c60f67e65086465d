"""What the registry knows of a group, as a table or JSON."""

from __future__ import annotations

from dataclasses import asdict

from . import show


def show_group(group: str, *, as_json: bool) -> None:
    """Print every registered thing of a group with its options and their defaults."""
    from draftwise.registry import describe

    entries = describe(group)
    if as_json:
        show.dump([asdict(entry) for entry in entries])
        return
    rows = [[e.name, " ".join(f"{k}={v}" for k, v in e.options.items()), e.help] for e in entries]
    show.table([group, "options", "what it does"], rows)
