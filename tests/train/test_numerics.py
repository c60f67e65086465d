"""Precision and threads: chosen once, by what the machine can do, and kept by a training that continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftwise.errors import UserError
from draftwise.train import drafter, medusa, results, steps
from draftwise.train.settings import DrafterRun, MedusaRun
from draftwise.train.steps import in_half, settled
from tests.train.world import Options, silent


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PyTorch's number of threads, the latest last; none are started."""
    counts = [1]
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    return counts


def test_auto_is_what_the_machine_does_well(
    options: Options, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU is fast in bfloat16 with AMX alone; with a GPU it is the GPU that counts."""
    assert in_half(DrafterRun(**options())) == (auto == "bfloat16")
    assert in_half(DrafterRun(**options(precision="bfloat16")))
    assert not in_half(DrafterRun(**options(precision="float32")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda now=supported: now)
        assert in_half(DrafterRun(**options(device="auto"))) is supported
        assert in_half(DrafterRun(**options(device="cpu"))) == (auto == "bfloat16")


def test_the_products_are_in_the_precision_chosen(
    world: Path, tmp_path: Path, options: Options, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every step, and of the states that the target leaves behind; weights stay in float32."""
    made: list[torch.nn.Module] = []
    seen: set[torch.dtype] = set()
    take = steps.take

    def watched(task: Any, *rest: Any) -> Any:
        made.append(task.model)
        task.model.medusa_head[-1][-1].register_forward_hook(lambda m, x, out: seen.add(out.dtype))
        return take(task, *rest)

    monkeypatch.setattr(results, "take", watched)
    medusa.train(
        MedusaRun(**options(heads=1, steps=2, batch=48, limit=10, answers="")), tmp_path / "made", silent
    )
    assert seen == {getattr(torch, auto)}
    assert {p.dtype for p in made[0].parameters()} == {torch.float32}
    (file,) = (tmp_path / "made" / "training").glob("*.states.safetensors")
    assert load_file(file)["states"].dtype == getattr(torch, auto)
    assert f"precision: {auto}" in (tmp_path / "made" / "README.md").read_text()


@pytest.mark.parametrize("began", ["float32", "bfloat16"])
def test_a_training_goes_on_as_it_began(
    world: Path,
    tmp_path: Path,
    options: Options,
    threads: list[int],
    monkeypatch: pytest.MonkeyPatch,
    began: str,
) -> None:
    """Started again with other threads, on a machine of another kind, it ends with the very weights."""
    seen: set[int] = set()

    def machine(precision: str, count: int) -> None:
        capable = {"amx_bf16": precision == "bfloat16"}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capable, raising=False)
        torch.set_num_threads(count)

    def watched(what: str, done: int, total: int, left: float | None = None) -> None:
        seen.add(torch.get_num_threads())

    def stopped(what: str, done: int, total: int, left: float | None = None) -> None:
        if what.startswith("Training") and done == 3:
            raise KeyboardInterrupt

    few: dict[str, Any] = {"limit": 10, "held_out": 2, "answers": "", "temperatures": (0.0,)}
    run = DrafterRun(**options(start=str(world / "drafter"), steps=5, checkpoint_every=2, **few))
    machine(began, 12)
    drafter.train(run, tmp_path / "whole", watched)
    with pytest.raises(KeyboardInterrupt):
        drafter.train(run, tmp_path / "parts", stopped)
    machine({"float32": "bfloat16", "bfloat16": "float32"}[began], 3)
    drafter.train(run, tmp_path / "parts", watched)
    assert seen == {12}
    assert torch.get_num_threads() == 3  # the caller's own, as it was
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(t, b[name]) for name, t in a.items())
    kept = json.loads((tmp_path / "parts" / "training" / "numerics.json").read_text())
    assert kept == {"precision": began, "threads": 12}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"precision": "int4", "threads": 1}', '{"precision": "float32"}']
)
def test_a_damaged_note_is_refused(options: Options, tmp_path: Path, text: str) -> None:
    file = tmp_path / "numerics.json"
    file.write_text(text)
    with pytest.raises(UserError, match="give a new folder as --out"), settled(DrafterRun(**options()), file):
        pass
