"""Results of probes of a machine or a model, saved in small JSON files in the user's cache.

A damaged or inaccessible file counts as empty, and a verdict that cannot be written is lost: the only cost is
the time to find it again.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 512  # verdicts kept per file, the latest


def place(kind: str) -> Path:
    """The file of one kind of verdicts, in the system's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "draftwise" / f"{kind}.json"


def load(kind: str, key: str) -> Any:
    """The verdict saved under this key, as JSON; None if there is none."""
    return _read(kind).get(key)


def keep(kind: str, key: str, verdict: Any) -> None:
    """Save a verdict if the file can be written; other processes read either the old file or the new one."""
    known = _read(kind)
    known.pop(key, None)
    text = json.dumps(dict([*known.items(), (key, verdict)][-MOST:]), indent=1)
    try:
        path = place(kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        file, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(part, path)
    except OSError:  # a full disk, for example
        with suppress(OSError):  # or a folder that became read-only, where the partial file stays
            Path(part).unlink()


def _read(kind: str) -> dict[str, Any]:
    try:
        found = json.loads(place(kind).read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
