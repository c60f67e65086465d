"""The probe sees what is wrong with a way of reading and says so; what it found is kept."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma4TextConfig

from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.hosts.transformers.prompted import is_neutral
from draftwise.models import probe, verdicts
from draftwise.models.fingerprints import model_fingerprint
from draftwise.models.probe import rows_of
from draftwise.models.probe.readings import Readings
from draftwise.models.probe.small import miniature, selects
from draftwise.models.probe.ways import alone, branched, side_by_side
from draftwise.models.runner import ModelRunner
from draftwise.models.runner.cache import RowLayer
from draftwise.models.runner.masks import Masks
from draftwise.targets.hf import HFTarget
from tests.architectures.cases import Case, build, cases
from tests.tiny import COMMON, VOCAB, lively, model

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def errors(made: Any, known: Readings) -> list[float]:
    ways = (alone, side_by_side, lambda rows, known: branched(rows, known, together=True))
    return [way(ModelRunner(made), known) for way in ways]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3-window"])
def test_rounding_is_far_below_the_tolerance_and_mistakes_far_above(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(name, dtype=dtype)
    known = Readings(made)
    assert known.lively
    assert max(errors(made, known)) < known.tolerance / 2
    additive = Masks._additive
    monkeypatch.setattr(Masks, "_additive", lambda self, unseen: additive(self, unseen.roll(1, -1)))
    assert min(errors(made, known)) > known.tolerance


def test_a_model_that_is_wrong_in_batches_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama", dtype=torch.float32)
    forward = made.forward

    def confused(**given: Any) -> Any:
        out = forward(**given)
        if len(given["input_ids"]) > 1:
            out.logits = out.logits.flip(0)
        return out

    confused.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "forward", confused)
    with pytest.warns(DraftwiseWarning, match=r"LlamaForCausalLM reads each text.*off by"):
        rows = rows_of(made)
    assert not rows.together and rows.guided
    assert rows_of(made, probe=False).together
    monkeypatch.setenv("DRAFTWISE_PROBE", "0")
    assert rows_of(made).together
    monkeypatch.setenv("DRAFTWISE_PROBE", "off")
    with pytest.raises(UserError, match="DRAFTWISE_PROBE='off': give 0 or 1"):
        rows_of(made)


def test_what_was_found_is_kept_by_what_decides_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama", dtype=torch.float32)
    rows_of(made)
    assert verdicts.place("probes").parent == tmp_path / "draftwise"
    with monkeypatch.context() as patch:
        patch.setattr(probe, "Readings", None)  # a second probe would call it
        rows_of(made)
        LMDrafter(model("llama", seed=9, dtype=torch.float32), VOCAB)  # other weights of the same class
        other = model("llama", dtype=torch.bfloat16)
        with pytest.raises(UserError, match="cannot be decoded"):
            rows_of(other)
    keys = {probe.fingerprint(m) for m in (made, other, model("qwen3", dtype=torch.float32))}
    eager = model("llama", dtype=torch.float32, attention="eager")
    assert len(keys | {probe.fingerprint(eager)}) == 4


@pytest.mark.parametrize("kept", ["{", "[]", '{"KEY": 5}', '{"KEY": {"together": false}}'])
def test_a_damaged_file_is_as_good_as_none(kept: str) -> None:
    made = model("llama", dtype=torch.float32)
    verdicts.place("probes").parent.mkdir()
    verdicts.place("probes").write_text(kept.replace("KEY", probe.fingerprint(made)))
    assert rows_of(made).together


def test_a_model_without_a_text_of_its_own_is_not_remembered() -> None:
    """Weights of zero give the same logits however they are read."""
    made = model("llama", scale=0.0, dtype=torch.float32)
    rows_of(made)
    assert not verdicts.place("probes").exists()


def test_the_model_is_left_as_it_was() -> None:
    made = model("llama", dtype=torch.float32)
    made.train()
    made.model.layers[0].eval()
    made.generation_config.num_beams = 3
    before, settings = copy.deepcopy(made.state_dict()), made.generation_config
    HFTarget(made)
    assert made.training and made.model.layers[1].training and not made.model.layers[0].training
    assert made.generation_config is settings and settings.num_beams == 3
    after = made.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not any(module._forward_hooks for module in made.modules())


def test_few_and_short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model pays for a handful of short passes, and for one the second time."""
    made = model("mistral-window", dtype=torch.float32)
    made.config.sliding_window = 4096
    read: list[int] = []
    made.register_forward_pre_hook(
        lambda module, given, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    rows_of(made)
    assert len(read) <= 16 and max(read) <= 32
    read.clear()
    rows_of(made)
    assert read == [5]  # its masks and positions are asked each time


class Scaled(torch.Tensor):
    """A weight of a class of its own, which says how it is quantised."""

    how = ""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return [], self.how


def test_a_model_that_is_quantised_in_place_is_another_model() -> None:
    made = model("llama", dtype=torch.float32)
    quantise: Any = torch.ao.quantization.quantize_dynamic
    quantised = quantise(copy.deepcopy(made), {torch.nn.Linear})
    prints = {probe.fingerprint(made), probe.fingerprint(quantised)}
    for how in ("weights", "activations"):
        weight = torch.Tensor._make_subclass(Scaled, made.lm_head.weight.detach())
        made.lm_head.weight = torch.nn.Parameter(weight)
        made.lm_head.weight.how = how
        prints.add(probe.fingerprint(made))
        assert model_fingerprint(made)
    assert len(prints) == 4


def test_a_class_that_cannot_read_is_refused_in_one_line() -> None:
    """All layers share keys that no layer makes."""
    sizes: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
    made = lively(Gemma4TextConfig(**COMMON, **sizes, num_kv_shared_layers=2))
    with pytest.raises(UserError, match=r"Gemma4ForCausalLM.* cannot read a text \(KeyError"):
        rows_of(made)


def test_an_index_that_chooses_among_more_than_a_short_text_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few tokens an index of 2048 leaves nothing out: a small model of the class is tried as well."""
    case = Case("dsa", "deepseek_v32", {"index_topk": 2048})
    keep = RowLayer.update_indexer
    monkeypatch.setattr(RowLayer, "update_indexer", lambda self, states: keep(self, states).flip(1))
    with pytest.warns(DraftwiseWarning, match="a pass of its own"):
        assert rows_of(build(case, lively=False)).stateful  # read with a cache of the class's own


def test_the_small_model_costs_little_and_changes_nothing_of_the_other() -> None:
    made = build(Case("dsa", "deepseek_v32", {"index_topk": 2048}), lively=False)
    before, drawn = copy.deepcopy(made.state_dict()), torch.random.get_rng_state()
    small = miniature(made.to(torch.bfloat16))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert small.dtype == torch.float32 and small.config.index_topk == 8
    assert sum(p.numel() for p in small.parameters()) < 1e6
    assert all(torch.equal(value.bfloat16(), made.state_dict()[name]) for name, value in before.items())
    assert not selects(model("mistral-window")) and selects(made)


@pytest.mark.parametrize("name", ["mamba2", "falcon/sequential"])
def test_a_class_without_a_small_model_is_tried_as_it_is(name: str) -> None:
    """Sizes of these do not go together when each is made small: one is not made, one cannot be read."""
    case = next(case for case in cases() if case.name == name)
    made = build(case, lively=False)
    assert miniature(made) is None
    assert name == "mamba2" or is_neutral(made)
