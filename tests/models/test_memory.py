"""A model that does not fit into memory is named before it is loaded."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from draftwise.errors import DraftwiseWarning
from draftwise.models import hub, memory
from draftwise.models.load import load_model
from draftwise.models.zoo import find

CPU = torch.device("cpu")


def test_weights_are_counted_in_the_precision_that_they_are_loaded_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(find("zoo:general"))
    assert memory.weight_bytes(folder, "float32") == 2 * memory.weight_bytes(folder, torch.bfloat16)  # type: ignore
    assert memory.weight_bytes(folder, "auto") == memory.weight_bytes(folder, "bfloat16"), "as it is stored"
    monkeypatch.setattr(hub, "ask", lambda name: (True, 8_000_000_000))
    assert memory.weight_bytes("some/model", "float32") == 32_000_000_000
    monkeypatch.setattr(hub, "ask", lambda name: (None, None))
    assert memory.weight_bytes("some/model", "float32") is None


def test_one_line_before_loading_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with pytest.warns(
        DraftwiseWarning, match=r"'zoo:general' needs 0\.0 GB in float32, and 0\.0 GB are free"
    ):
        load_model("zoo:general", device="cpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10**12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model("zoo:general", device="cpu")


def test_free_memory_is_within_the_control_groups_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = memory.free_bytes(CPU)
    assert free is not None and free > 0
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_bytes(CPU) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory.free_bytes(CPU) or 0) > 2000
    assert memory.free_bytes(torch.device("meta")) is None
