"""Verdicts of a sweep in a file: an interrupted run continues where it stopped, on the same code."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("src/draftwise/core", "src/draftwise/drafters", "src/draftwise/models", "src/draftwise/targets",
            "src/draftwise/hosts/transformers", "tests/architectures")  # fmt: skip
FREE = {"table.py", "test_inputs.py", "test_sweep.py"}  # they decide no verdict


class Kept:
    """What is known of the cases of one sweep. Verdicts of other code than the present one are dropped.

    Without a path nothing is saved. `without` are names of folders and files that the sweep does not use.
    """

    def __init__(self, path: Path | None, without: Collection[str] = ()) -> None:
        self.path, self.code = path, digest(without)
        found = json.loads(path.read_text()) if path and path.exists() else {}
        self.verdicts: dict[str, Any] = found.get("verdicts", {}) if found.get("code") == self.code else {}

    def get(self, name: str) -> Any:
        """The fields of the verdict on a case; None if there is none."""
        return self.verdicts.get(name)

    def add(self, verdict: Any) -> None:
        """Save a verdict, a dataclass with a name."""
        self.verdicts[verdict.name] = asdict(verdict)
        if self.path is not None:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"code": self.code, "verdicts": self.verdicts}, indent=1))
            os.replace(part, self.path)


def digest(without: Collection[str] = ()) -> str:
    """A number of the code on which verdicts depend."""
    found = hashlib.sha256()
    for folder in DECIDING:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            if FREE.isdisjoint(name.parts) and not set(without) & {*name.parts, name.stem}:
                found.update(str(name).encode() + path.read_bytes())
    return found.hexdigest()


@contextmanager
def afresh() -> Iterator[None]:
    """No verdict of an earlier probe counts within the block: the code as it is probes every model."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
