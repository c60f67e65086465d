from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise import UserError
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.models.fingerprints import drafter_fingerprint, model_fingerprint
from draftwise.models.zoo import find, list_zoo

from .. import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a bundled model whose files may be changed."""
    copied = tmp_path / "model"
    shutil.copytree(find("zoo:code"), copied)
    return copied


def test_bundled_models_differ_and_each_is_always_the_same() -> None:
    prints = [model_fingerprint(model.name) for model in list_zoo()]
    assert len(set(prints)) == len(prints) == 8
    assert prints == [model_fingerprint(model.name) for model in list_zoo()]


def test_a_model_is_the_same_wherever_it_lies(folder: Path) -> None:
    assert model_fingerprint(str(folder)) == model_fingerprint("zoo:code")
    assert drafter_fingerprint(f"lm:{folder}?sample=no") == drafter_fingerprint(str(folder))


def test_training_on_changes_it(folder: Path) -> None:
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    for at in range(len(raw) // 2, len(raw), 7):  # half of the tensors
        raw[at] ^= 1
    weights.write_bytes(raw)
    assert model_fingerprint(str(folder)) != model_fingerprint("zoo:code")


def test_another_configuration_changes_it(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"rope_scale": 2, ', 1))
    assert model_fingerprint(str(folder)) != model_fingerprint("zoo:code")


def test_models_in_memory_are_known_by_their_parameters() -> None:
    first, same, other = (tiny.model("llama", seed=seed) for seed in (0, 0, 1))
    assert model_fingerprint(first) == model_fingerprint(same) == drafter_fingerprint(same)
    assert model_fingerprint(first) != model_fingerprint(other)
    with torch.no_grad():
        next(same.parameters())[0, 0] += 1.0
    assert model_fingerprint(first) != model_fingerprint(same)


def test_parameters_that_are_elsewhere_are_known_by_their_shapes() -> None:
    with torch.device("meta"):
        there: Any = torch.nn.Linear(3, 4)
        wider: Any = torch.nn.Linear(3, 5)
    assert model_fingerprint(there) != model_fingerprint(wider)


def test_a_model_of_the_hub_is_known_by_its_cached_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_fingerprint("someone/some-model") == "no files of someone/some-model"
    place = tmp_path / "hub" / "models--someone--some-model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    shutil.copytree(folder, place / "snapshots" / "abc")
    assert model_fingerprint("someone/some-model") == model_fingerprint("zoo:code")


def test_lookups_are_known_by_name_and_options() -> None:
    assert drafter_fingerprint(" ngram?min=2 ") == "ngram?min=2"
    assert drafter_fingerprint("retrieval:./notes") == "retrieval:./notes"
    assert drafter_fingerprint(NgramDrafter()) == "draftwise.drafters.lookup.ngram.NgramDrafter"


def test_an_unknown_model_is_the_users_error() -> None:
    with pytest.raises(UserError, match="zoo:nothing"):
        model_fingerprint("zoo:nothing")


def test_a_head_that_was_trained_on_is_another_one(tmp_path: Path) -> None:
    from draftwise.models.heads.medusa import new_medusa

    heads, name = new_medusa(tiny.model("llama"), heads=1, tied=True), f"medusa:{tmp_path}?width=2"
    heads.save(tmp_path)
    before = drafter_fingerprint(name)
    assert before == drafter_fingerprint(name) != drafter_fingerprint(f"medusa:{tmp_path}")
    torch.nn.init.normal_(heads.medusa_head[0][0].linear.weight)  # type: ignore[index]
    heads.save(tmp_path)
    assert drafter_fingerprint(name) != before
