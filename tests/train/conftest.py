"""One world for all tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise.train import results
from tests.train.world import Options, save, write_prompts


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target`, `drafter` and `prompts.jsonl`."""
    folder = tmp_path_factory.mktemp("world")
    save(folder / "target", seed=0)
    save(folder / "drafter", seed=1)
    write_prompts(folder / "prompts.jsonl")
    return folder


@pytest.fixture(params=["float32", "bfloat16"], ids=["plain CPU", "CPU with AMX"])
def auto(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `precision=auto` means on a CPU of either kind: what the one at hand can do is not asked."""
    known = {"amx_bf16": request.param == "bfloat16"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    return str(request.param)


@pytest.fixture(autouse=True)
def _few_timed_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are measured, and what they are is not asked."""
    monkeypatch.setattr(results, "TIMED", 1)
    monkeypatch.setattr(results, "TIMED_TOKENS", 8)


@pytest.fixture
def options(world: Path) -> Options:
    """Options of a small training, with changes."""

    def make(**changes: Any) -> dict[str, Any]:
        small = {
            "data": (str(world / "prompts.jsonl"),),
            "target": str(world / "target"),
            "held_out": 6,
            "temperatures": (0.0, 1.0),
            "max_new_tokens": 12,
            "together": 4,
            "answers": str(world / "answers.jsonl"),
            "steps": 40,
            "batch": 6,
            "rate": 5e-3,
            "checkpoint_every": 15,
            "log_every": 5,
            "measure_every": 10,
            "device": "cpu",
        }
        return small | changes

    return make
