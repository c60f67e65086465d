"""Weights that stay in their file until they are packed: the same model, in less memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.multiprocessing import reductions
from transformers import LlamaConfig

from draftwise.models import huge_pages
from draftwise.models.load import load_model
from draftwise.models.native import kernels as panels
from draftwise.models.probe import fingerprint
from draftwise.models.weights import layouts, lazy, packed, timing
from draftwise.models.weights.layouts import SHORT, PackedLinear, fused_groups
from draftwise.models.weights.lazy import LazyWeight, lazy_files
from draftwise.models.weights.packed import arrange, layout_of
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with, written
from tests.targets.test_hf import Oracle, prompts
from tests.tiny import KERNELS, lively, own_text, with_weights_of

FILES = (torch.float32, torch.bfloat16, torch.float16)
FORMATS = {name: (stored,) for name, stored in SHORT.items()} | {"all": (*SHORT.values(), torch.float32)}
StorageWeakRef: Any = reductions.StorageWeakRef  # its methods are untyped
modeling_utils: Any = transformers.modeling_utils
READ, FASTEST, FASTER_FUSED = lazy.read, timing.fastest, timing.faster_fused  # before tests replace them
with_kernels = pytest.mark.skipif(panels.linear_kernel(torch.float32) is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of any size can be packed."""
    monkeypatch.setattr(timing, "SMALLEST", 0)


def write(folder: Path, file: torch.dtype, *formats: torch.dtype, layers: int = 2, tied: bool = False) -> str:
    """Save a model with biases and weights of these formats, in the dtype of the file."""
    sizes = KERNELS | {"num_hidden_layers": layers, "tie_word_embeddings": tied, "attention_bias": True}
    with_weights_of(lively(LlamaConfig(**sizes)).float(), *formats).to(file).save_pretrained(folder)
    return str(folder)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and packed weights."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in (module._parameters | module._buffers | vars(module)).items()
        if isinstance(value, Tensor)
    }


def facts(tensor: Tensor) -> tuple[object, ...]:
    return type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("file", FILES)
def test_a_lazy_model_becomes_the_plain_one(
    file: torch.dtype, formats: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: with every mix of formats, in our layouts, in PyTorch's, and too small for any."""
    path = write(tmp_path, file, *FORMATS[formats], tied=tied)
    ids = torch.tensor([prompts()[0]])
    for exact, smallest in ((True, 0), (False, 0), (False, 1 << 17)):
        monkeypatch.setattr(timing, "SMALLEST", smallest)
        plain, loaded = load_model(path, device="cpu"), load_model(path, device="cpu", lazy=True)
        kinds = [type(value) for value in tensors(loaded).values()]
        assert kinds.count(LazyWeight) == (0 if file == torch.float32 else 14 + (not tied))
        assert fingerprint(loaded) == fingerprint(plain)
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=ids).logits, plain(input_ids=ids).logits)
        for model in (plain, loaded):
            arrange(model, True, exact=exact)
        assert [*map(layout_of, loaded.modules())] == [*map(layout_of, plain.modules())]
        assert fused_groups(loaded) == fused_groups(plain) and fused_groups(loaded)
        assert any(type(module) is PackedLinear for module in loaded.modules()) == (not smallest)
        own, others = tensors(plain), tensors(loaded)
        assert own.keys() == others.keys()
        for name, tensor in own.items():
            assert facts(tensor) == facts(others[name])
            if tensor.layout == torch.strided:  # oneDNN's can be compared by their products alone
                assert torch.equal(tensor, others[name])
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_layouts_are_timed_with_weights_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same layout is chosen as for a model that is not lazy."""
    reads, timings = list[Tensor](), list[int]()

    def note(weight: Tensor) -> Tensor:
        if isinstance(weight, LazyWeight):
            reads.append(weight)
        return READ(weight)

    def measure(plain: timing.Pass, other: timing.Pass, **_: Any) -> Iterator[None]:
        yield
        timings.append(len(reads))
        plain(1), other(1)
        assert len(reads) == timings[-1]
        return timing.Timing(8, 8, (0.5,) * 4, steady=True)  # type: ignore[return-value]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "DECIDED", {})
    for name, function in {"fastest": FASTEST, "faster_fused": FASTER_FUSED, "measure": measure}.items():
        monkeypatch.setattr(timing, name, function)
    for module in (lazy, layouts, timing):
        monkeypatch.setattr(module, "read", note)
    loaded = load_model(write(tmp_path / "model", torch.bfloat16, torch.bfloat16), device="cpu", lazy=True)
    arrange(loaded, "auto")
    assert len(timings) > 4 and timings[-1] > timings[0] > 0
    assert any(type(module) is PackedLinear for module in loaded.modules())


@pytest.mark.parametrize("file", FILES)
def test_it_writes_the_plain_models_text(file: torch.dtype, tmp_path: Path) -> None:
    """With a good drafter, and one that is never right."""
    path = write(tmp_path, file, *FORMATS["all"])
    own = [own_text(load_model(path, device="cpu"), prompt, 40) for prompt in prompts()]
    loaded = load_model(path, device="cpu", lazy=True)
    target = HFTarget(loaded)  # reads a few tokens before the weights are packed
    arrange(loaded, "auto", exact=True)
    truth = {tuple(prompt): text for prompt, text in zip(prompts(), own, strict=True)}
    for spoil in (0.1, 1.0):
        team: dict[str, Any] = {"oracle": Oracle(truth, spoil)}
        assert written(loop_with(target, team, "static-6"), prompts(), 40, 3) == own


@with_kernels
@pytest.mark.parametrize("kept", [1, 1 << 27])
def test_the_system_gets_memory_back_now_and_then(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(packed, "KEPT", kept)
    monkeypatch.setattr(packed, "release_freed", lambda: calls.append(None))
    loaded = load_model(write(tmp_path, torch.bfloat16, torch.bfloat16), device="cpu", lazy=True)
    arrange(loaded, True, exact=True)
    count = sum(isinstance(module, PackedLinear) for module in loaded.modules())
    assert len(calls) == (count if kept == 1 else 0) and count


class Memory:
    """Counts the bytes of float32 values that are read from lazy weights, or of the model, and still live."""

    def __init__(self) -> None:
        self.live: dict[Any, int] = {}
        self.total = self.most = 0

    def add(self, values: Tensor) -> Tensor:
        storage = values.untyped_storage()
        self.live = {ref: size for ref, size in self.live.items() if not ref.expired()}
        if StorageWeakRef(storage) not in self.live:
            self.live[StorageWeakRef(storage)] = storage.nbytes()
            self.total += storage.nbytes()
        self.most = max(self.most, sum(self.live.values()))
        return values


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    count = Memory()

    def noted(weight: Tensor) -> Tensor:
        values = READ(weight)
        return count.add(values) if isinstance(weight, LazyWeight) else values

    for module in (lazy, layouts, timing):
        monkeypatch.setattr(module, "read", noted)
    yield count


@with_kernels
@pytest.mark.parametrize("file", FILES)
def test_the_layers_are_never_in_float32_at_once(file: torch.dtype, tmp_path: Path, memory: Memory) -> None:
    """Beside embedding, norms and biases one layer is, from the load to the last packed weight."""
    path = write(tmp_path, file, torch.bfloat16, layers=8)
    loaded = load_model(path, device="cpu", lazy=True)
    linears = [module for module in loaded.modules() if isinstance(module, nn.Linear)]
    sizes = {len(layer.weight) * layer.in_features * 4 for layer in linears}
    if file != torch.float32:  # else the weights are the file's own pages
        for tensor in tensors(loaded).values():
            if not isinstance(tensor, LazyWeight):
                memory.add(tensor)
    residue = sum(memory.live.values())
    del linears
    arrange(loaded, True, exact=True)
    assert {layout_of(module) for module in loaded.modules()} == {"", "bfloat16-panels"}
    whole = 8 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96) * 4
    assert memory.total > whole, "every layer was read"
    assert memory.most <= residue + 2 * max(sizes), "two products that read the same tensor are one"
    assert 4 * memory.most < whole


def test_layers_are_free_as_soon_as_they_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that lie in memory in float32 as well, such as those of models that were not loaded lazily."""
    loaded = load_model(write(tmp_path, torch.bfloat16, torch.bfloat16), device="cpu")
    weights = [module.weight for module in loaded.modules() if type(module) is nn.Linear]
    storages = [StorageWeakRef(weight.untyped_storage()) for weight in weights]
    counts: list[int] = []
    room = huge_pages.Room

    def note(size: int) -> Any:
        counts.append(sum(not one.expired() for one in storages))
        return room(size)

    monkeypatch.setattr(packed, "Room", note)
    del weights
    arrange(loaded, True)
    assert counts == sorted(counts, reverse=True) and counts[-1] < counts[0]
    assert all(one.expired() for one in storages)


def test_other_threads_and_other_classes_have_plain_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opener = write(tmp_path / "own", torch.bfloat16, torch.bfloat16), modeling_utils.safe_open
    kinds: dict[str, set[type]] = {}

    def load(name: str, **options: Any) -> None:
        kinds[name] = {type(one) for one in load_model(path, device="cpu", **options).parameters()}

    with lazy_files():
        assert modeling_utils.safe_open is not opener
        thread = Thread(target=load, args=("thread",))
        thread.start()
        thread.join()
    assert modeling_utils.safe_open is opener
    load("lazy", lazy=True)
    load("bfloat16", lazy=True, dtype="bfloat16")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = str(shutil.copytree(path, tmp_path / "other"))
    settings = json.loads((Path(path) / "config.json").read_text())
    code = {"AutoConfig": "other.OtherConfig", "AutoModelForCausalLM": "other.OtherModel"}
    (Path(path) / "config.json").write_text(json.dumps({**settings, "model_type": "other", "auto_map": code}))
    (Path(path) / "other.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OtherConfig(LlamaConfig):\n    model_type = 'other'\n"
        "class OtherModel(LlamaForCausalLM):\n    config_class = OtherConfig\n"
    )
    load("code", lazy=True, trust_remote_code=True)
    assert kinds.pop("lazy") == {nn.Parameter, LazyWeight}
    assert kinds == {name: {nn.Parameter} for name in ("thread", "bfloat16", "code")}


def test_a_lazy_weight_has_the_values_of_its_parts() -> None:
    parts = torch.randn(3, 4).bfloat16(), torch.randn(2, 4)
    wanted = torch.cat([part.float() for part in parts])
    weight = nn.Parameter(LazyWeight(parts, torch.float32))
    assert isinstance(weight, LazyWeight) and weight.requires_grad and weight.shape == (5, 4)
    assert weight.dtype == torch.float32 and weight.data_ptr() == parts[0].data_ptr()
    for mode in (False, True):
        with torch.inference_mode(mode):
            for same in (weight[...], weight.detach(), LazyWeight(parts, torch.float32).detach()):
                assert type(same) is LazyWeight and torch.equal(same, wanted)
    assert torch.equal(weight, wanted) and torch.equal(weight[1:4].t(), wanted[1:4].t())
    x = torch.randn(2, 4)
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, wanted))
    assert torch.equal(torch.cat([weight, wanted]), torch.cat([wanted, wanted]))


def test_matrices_of_16_bits_alone_are_lazy(tmp_path: Path) -> None:
    half = {f"{dims} of {dtype}": torch.ones([2] * dims, dtype=dtype) for dims in range(4) for dtype in FILES}
    save_file(half, tmp_path / "some.safetensors")
    with lazy_files():
        file = modeling_utils.safe_open(tmp_path / "some.safetensors", framework="pt", device="cpu")
        values = {name: file.get_slice(name)[...].to(dtype=torch.float32) for name in file.keys()}  # noqa: SIM118
    kinds = {name for name, tensor in values.items() if type(tensor) is LazyWeight}
    assert kinds == {"2 of torch.bfloat16", "2 of torch.float16"}
    assert all(torch.equal(values[name], tensor.float()) for name, tensor in half.items())
