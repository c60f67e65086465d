"""Layers that read the same tensor share a product, found by watching a pass, where that is faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from draftwise.models import verdicts
from draftwise.models.weights import timing
from draftwise.models.weights.layouts import FusedLinear, fuse, fused_groups
from draftwise.models.weights.packed import arrange, layouts, watch_usage
from draftwise.targets.hf import HFTarget
from tests.architectures.cases import Case, build
from tests.architectures.judge import EQUAL, judge
from tests.core.turns import loop_with, written
from tests.targets.test_hf import Oracle, prompts
from tests.tiny import model, own_text

SIZE = 8
FASTER = timing.faster_fused  # before the tests' own stand in for it


class Model(nn.Module):
    """Reads tokens as a causal LM does; `how` its layers are used is up to the test."""

    def __init__(self, how: str = "together", bias: tuple[bool, bool, bool] = (False,) * 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.embedding = how, nn.Embedding(16, SIZE)
        self.a, self.b, self.c = (nn.Linear(SIZE, n, bias=b) for n, b in zip((6, 4, 6), bias, strict=True))
        self.head = nn.Linear(16, 16, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor, **more: Any) -> Any:
        x = self.embedding(input_ids)
        if self.how == "raises":
            raise RuntimeError("reads no tokens alone")
        a = self.a(x)
        if self.how == "written to in between":
            x *= 2
        if self.how == "another tensor":
            x = x.clone()
        b = self.b(x)
        if self.how == "called twice":
            b = b + self.b(x)
        c = x @ self.c.weight.T if self.how == "weight read" else self.c(x)
        if self.how == "no slices":
            c = c if c.is_contiguous() else c * 2
        return SimpleNamespace(logits=self.head(torch.cat([a, b, c], -1)))


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if type(module) is nn.Linear}


@pytest.mark.parametrize(
    "how, groups, kept",
    [
        ("together", [["a", "b", "c"]], set()),
        ("written to in between", [], set()),
        ("another tensor", [["b", "c"]], set()),
        ("called twice", [["a", "c"]], set()),
        ("weight read", [["a", "b"]], {"c"}),
        ("no slices", [], set()),
        ("raises", [], set()),
    ],
)
def test_what_reads_the_same_tensor_is_seen_in_a_pass(
    how: str, groups: list[list[str]], kept: set[str]
) -> None:
    made = Model(how)
    assert watch_usage(made, linears(made)) == (groups, kept)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in made.modules())
    if how != "raises":
        ids = torch.tensor([[3, 1, 4]])
        own = made(ids).logits
        arrange(made, True)
        assert fused_groups(made) == groups
        assert torch.allclose(made(ids).logits, own, atol=1e-5)


def test_a_bias_is_shared_with_layers_that_have_one() -> None:
    made = Model(bias=(True, False, True))
    ids = torch.tensor([[3, 1, 4]])
    own = made(ids).logits
    assert watch_usage(made, linears(made)).siblings == [["a", "c"]]
    arrange(made, True)
    assert fused_groups(made) == [["a", "c"]] and torch.allclose(made(ids).logits, own, atol=1e-5)


def test_experts_that_no_token_chose_are_known_by_their_kind() -> None:
    class Experts(Model):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
            self.tower = nn.Linear(8, 8)

        def forward(self, input_ids: Tensor, **more: Any) -> Any:
            logits = self.experts[1](super().forward(input_ids).logits)
            return SimpleNamespace(logits=logits)

    made = Experts()
    assert watch_usage(made, linears(made)).kept == {"tower"}


def test_a_shared_weight_is_not_fused() -> None:
    made = Model()
    made.b.weight = nn.Parameter(torch.randn(6, SIZE))
    made.b.out_features, made.head = 6, nn.Linear(18, 16)
    made.extra = nn.Linear(SIZE, 6)
    made.extra.weight = made.b.weight
    arrange(made, True)
    assert fused_groups(made) == []


def fused(count: int = 3) -> tuple[Any, list[nn.Linear]]:
    torch.manual_seed(0)
    own = [nn.Linear(SIZE, n) for n in (6, 4, 6)[:count]]
    made = nn.Module()
    for i, layer in enumerate(own):
        setattr(made, f"l{i}", layer)
    fuse(made, [f"l{i}" for i in range(count)])
    return made, own


def test_each_layer_answers_for_what_it_is_given() -> None:
    """In any order, with other tensors, again and again; nothing is held once all have answered."""
    made, own = fused()
    x, y = torch.randn(2, 3, SIZE), torch.randn(2, 3, SIZE)
    for order in ("l0 x l1 x l2 x", "l2 y l1 x l0 y l0 x l1 y", "l0 x l0 y l1 x l2 y l2 y", "l1 x l2 x l1 x"):
        calls = order.split()
        for name, which in zip(calls[::2], calls[1::2], strict=True):
            given = {"x": x, "y": y}[which]
            said = getattr(made, name)(given)
            assert torch.allclose(said, own[int(name[1])](given), atol=1e-6), (order, name, which)
    [made.l0(x), made.l1(x), made.l2(x)]
    assert made.l0.held is None
    made.l0(x)
    x += 1  # the same tensor, with other values: the first layer begins anew
    for i, name in enumerate(("l0", "l1", "l2")):
        assert torch.allclose(getattr(made, name)(x), own[i](x), atol=1e-6)


def test_threads_that_run_the_same_model_do_not_mix() -> None:
    made, own = fused()
    wrong = []

    def run(seed: int) -> None:
        x = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(seed))
        wanted = [layer(x) for layer in own]
        for _ in range(300):
            found = [made.l0(x), made.l1(x), made.l2(x)]
            if not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["llama", "gemma3-window"])
@pytest.mark.parametrize("batch", [1, 3])
def test_fused_layers_write_the_models_own_text(name: str, batch: int) -> None:
    """With a good drafter, and one that is never right."""
    made = model(name, dtype=torch.float32)
    own = [own_text(made, p, 40) for p in prompts()]
    arrange(made, True)
    assert any(isinstance(module, FusedLinear) for module in made.modules())
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    for spoil in (0.1, 1.0):
        team: dict[str, Any] = {"oracle": Oracle(truth, spoil)}
        loop = loop_with(HFTarget(made), team, "static-6")
        assert written(loop, prompts(), 40, batch) == own


@pytest.mark.parametrize("pays", [True, False])
def test_products_are_fused_where_that_is_faster(
    pays: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The answer is saved and taken from the file in the next process."""
    asked: list[int] = []

    def measure(apart: timing.Pass, together: timing.Pass, **_: Any) -> Iterator[None]:
        yield
        asked.extend(len(list(run(1))) for run in (apart, together))  # type: ignore[call-overload]
        return timing.Timing(8, 8 * pays, (0.5 if pays else 2.0,) * 4, steady=True)  # type: ignore[return-value]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "faster_fused", FASTER)
    monkeypatch.setattr(timing, "measure", measure)
    for wanted in ([3, 1], []):
        monkeypatch.setattr(timing, "DECIDED", {})
        asked.clear()
        made = Model()
        arrange(made, "auto")
        assert asked == wanted and fused_groups(made) == [["a", "b", "c"]] * pays
        said = "0 of 0 linear layers packed" + "; 3 fused to 1" * pays
        assert layouts({"target": SimpleNamespace(module=made)}) == {"target": said}
    kept = (tmp_path / "draftwise" / "packing.json").read_text()
    assert "6+4+6 x 8, after others fused" in kept and ('"fused"' in kept) == pays
    assert verdicts.load("packing", "x") is None


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "longcat_flash"])
def test_a_model_that_multiplies_with_a_weight_itself_keeps_it(name: str) -> None:
    """As Mamba's `dt_proj`: packed, it would be gone."""
    made = build(Case(name, name))
    seen = watch_usage(made, linears(made))
    assert seen.kept and seen.kept < linears(made).keys()
    assert judge(Case(name, name), ["packed"]).word == EQUAL
