"""Counts by drafter, passed from the engine's process to the front-end process in a small file."""

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
    """The path of an engine's totals, the same for all processes of one vLLM on one machine."""
    folder = Path(tempfile.gettempdir()) / f"draftwise-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"vllm-{instance}-{replica}.json"


def totals(llm: Any, *, replica: int = 0) -> dict[str, Any]:
    """Counts by drafter of an `LLM` or `AsyncLLM` that uses Draftwise, at most a second old.

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
    """Remove the totals of killed engines, a week after their last update."""
    for path in folder.glob("vllm-*.json"):
        with suppress(FileNotFoundError):
            if time() - path.stat().st_mtime > WEEK:
                path.unlink()
