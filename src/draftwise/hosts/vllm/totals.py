"""Who drafted what, told by the engine's process to the one in front of it, by a small file."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any

WEEK = 7 * 24 * 3600.0


def path_of(instance: str, replica: int) -> Path:
    """Where an engine's totals are, for all processes of one vLLM on one machine."""
    folder = Path(tempfile.gettempdir()) / f"draftwise-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"vllm-{instance}-{replica}.json"


def totals(llm: Any, *, replica: int = 0) -> dict[str, Any]:
    """Who drafted what in an `LLM` or `AsyncLLM` with Draftwise inside, at most a second ago.

    Empty before its first step.
    """
    config = getattr(llm, "llm_engine", llm).vllm_config
    return read(path_of(config.instance_id, replica))


def read(path: Path) -> dict[str, Any]:
    """The totals in a file; empty if there is none."""
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return told


def sweep(folder: Path) -> None:
    """Remove the totals of engines that were killed, a week after their last word."""
    for path in folder.glob("vllm-*.json"):
        with suppress(FileNotFoundError):
            if time() - path.stat().st_mtime > WEEK:
                path.unlink()
