"""Code that was compiled on this machine, as files in the user's cache, each with a description beside it.

A file is used only if it is the one that was made, it belongs to the user, and no other user may write to it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def intact(path: Path) -> bool:
    """Whether a file is there as it was made; it then counts as just used.

    Raises:
        PermissionError: other users may write to it.
    """
    try:
        status, about = path.stat(), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        same = bool(about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} may be written by others: delete it")
    if same:
        with suppress(OSError):
            os.utime(path)  # the oldest are deleted first
    return same


def publish(part: Path, path: Path, about: dict[str, Any]) -> None:
    """Move a file that is complete to its place, with its description; others see both or neither."""
    part.chmod(0o600)
    description = part.with_suffix(".json")
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    description.write_text(json.dumps({"sha256": digest} | about), encoding="utf-8")
    os.replace(description, path.with_suffix(".json"))
    os.replace(part, path)


def prune(root: Path, pattern: str, most: int) -> None:
    """Delete the files that were not used for longest, until the others have at most so many bytes."""
    with suppress(OSError):
        for path in sorted(root.glob(pattern), key=lambda p: -p.stat().st_mtime):
            most -= path.stat().st_size
            if most < 0:
                path.unlink()
                path.with_suffix(".json").unlink(missing_ok=True)
