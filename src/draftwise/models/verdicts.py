"""What was found out once about a machine or a model, in small JSON files of the user's cache.

A file that is damaged or out of reach holds nothing, and a verdict that cannot be written is lost: it costs
time alone to find out again.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 512  # verdicts kept in a file, the latest


def place(kind: str) -> Path:
    """The file of one kind of verdicts, in the folder that the system keeps for caches."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "draftwise" / f"{kind}.json"


def load(kind: str, key: str) -> Any:
    """The verdict kept under this key, as JSON has it; None if there is none."""
    return _read(kind).get(key)


def keep(kind: str, key: str, verdict: Any) -> None:
    """Keep a verdict, where the file can be written; other processes read the old file or the new one."""
    known = _read(kind)
    known.pop(key, None)
    text = json.dumps(dict([*known.items(), (key, verdict)][-MOST:]), indent=1)
    try:
        path = place(kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        file, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    except (OSError, RuntimeError):  # the latter: no home
        return
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(part, path)
    except OSError:  # a full disk, say
        with suppress(OSError):  # or a folder that is read-only by now, where the part stays
            Path(part).unlink()


def _read(kind: str) -> dict[str, Any]:
    try:
        found = json.loads(place(kind).read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
