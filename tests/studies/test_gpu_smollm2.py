"""The training of a head on a machine that gets its data in parts, with a tiny target."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models.smollm2 import gguf_file
from studies.models import gpu_smollm2 as study
from tests.train.world import write_prompts


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 99)
    parts = study.split([(tmp_path / "a", "deep/a")], tmp_path / "parts", 10_000)
    assert len(parts) > 2 and all(path.stat().st_size <= 10_000 for path in parts)
    study.join(tmp_path / "parts", tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "a").read_bytes() == (tmp_path / "a").read_bytes()
    parts[1].unlink()
    with pytest.raises(UserError, match="no part-1"):
        study.join(tmp_path / "parts", tmp_path / "again")


def test_a_head_is_trained_two_steps_from_parts_and_delivered_in_parts(world: Path, tmp_path: Path) -> None:
    """The texts with it are the target's; the same command finds the training finished."""
    prompts = write_prompts(tmp_path / "prompts.jsonl", 16)
    study.split([(prompts, "prompts.jsonl")], tmp_path / "sent", 1000)
    changes = {"target": str(world / "target"), "minutes": 0.0, "steps": 2, "held_out": 4, "drafted": 12}
    changes |= {"max_new_tokens": 8, "together": 8, "context": 0, "batch": 4, "depth": 2}
    for _ in range(2):
        study.train(tmp_path / "sent", tmp_path / "out", 1.0, changes)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["steps"] == 2
    study.join(tmp_path / "out", tmp_path / "head")
    target = str(world / "target")
    drafts = Decoder.from_pretrained(target, drafters=[f"eagle:{tmp_path / 'head'}"], policy="static-3")
    plain = Decoder.from_pretrained(target, policy="none")
    text = drafts.generate([4, 5, 6], max_new_tokens=16)
    assert text.token_ids == plain.generate([4, 5, 6], max_new_tokens=16).token_ids
    assert text.stats.drafted > 0


def test_a_training_that_ends_early_leaves_its_checkpoint(
    tmp_path: Path,
) -> None:
    head = tmp_path / "head" / "training" / "step-000002"
    head.mkdir(parents=True)
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        (head / name).write_text(name)
    study.deliver(tmp_path / "head", tmp_path / "out")
    study.join(tmp_path / "out", tmp_path / "back")
    left = sorted(path.name for path in (tmp_path / "back").rglob("*") if path.is_file())
    assert left == ["state.json", "weights.safetensors"]


def test_a_folder_counts_as_the_package_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    monkeypatch.setitem(sys.modules, study.PACKAGE, None)
    study._register(tmp_path)
    assert gguf_file() == tmp_path / "model.gguf"
