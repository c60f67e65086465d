"""Records of other engines in `results.json`, in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words(record: Mapping[str, Any]) -> str:
    """One line: the settings of a peer, the seconds that it prepared, and its drafts on a text to copy."""
    said = [f"{name} {_said(value)}" for name, value in record.get("settings", {}).items()]
    if (seconds := record.get("prepared_seconds") or 0.0) >= 1.0:
        said.append(f"compiled in {seconds:.0f} s")
    copied = record.get("copied")
    if copied and record.get("drafts"):
        said.append(f"of a text to copy, {copied['accepted']} of {copied['drafted']} drafted tokens accepted")
    return "; ".join(said)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(inner)}" for name, inner in value.items())
    return str(value)
