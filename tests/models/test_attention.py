"""Heads that share a key are computed together: the same numbers, in our passes alone."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from draftwise.models import attention as ours
from draftwise.models.attention import PASS, forward, shared_heads
from draftwise.models.runner import ModelRunner, PassInput

V = 40
ours._others()  # of Transformers' own function, which tests replace


class Called:
    """A function that notes its calls."""

    def __init__(self, function: Callable[..., Any], name: str = "", calls: list[str] | None = None) -> None:
        self.function, self.name = function, name
        self.names = [] if calls is None else calls
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.names.append(self.name)
        self.calls.append((args, named))
        return self.function(*args, **named)


class Module(nn.Module):
    """What Transformers' attention reads of a layer."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal = groups, True


def inputs(
    groups: int, width: int, dtype: torch.dtype, *, rows: int = 2, heads: int = 3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, and a mask that hides some slots of the second row."""
    slots, size = 29, 16
    rng = torch.Generator().manual_seed(groups + width)
    query = torch.randn(rows, width, heads * groups, size, generator=rng).transpose(1, 2)
    key, value = (torch.randn(rows, heads, 40, size, generator=rng)[:, :, :slots] for _ in range(2))
    hidden = (
        torch.arange(slots)
        > torch.tensor([28, 20])[:rows, None, None, None] - width + torch.arange(1, width + 1)[:, None]
    )
    mask = hidden * torch.finfo(dtype).min
    return query.to(dtype), key.to(dtype), value.to(dtype), mask.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("traced", [False, True])
def test_the_same_numbers(
    groups: int, width: int, dtype: torch.dtype, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value, mask = inputs(groups, width, dtype)
    own, _ = ours.replaced()(Module(groups), query, key, value, mask, scaling=0.3)
    called = Called(ours.replaced())
    monkeypatch.setattr(ours, "replaced", lambda: called)
    (found, nothing) = forward(Module(groups), query, key, value, mask, scaling=0.3, traced=traced)
    assert nothing is None and found.shape == own.shape and found.is_contiguous()
    assert torch.allclose(found, own, atol=4 * torch.finfo(dtype).eps)
    ordinary = groups == 1 and (dtype == torch.float32 or (width > 1 and not traced))
    assert bool(called.calls) is ordinary


@pytest.mark.parametrize("groups", [1, 2])
def test_one_token_that_sees_everything_has_no_mask(groups: int) -> None:
    query, key, value, _ = inputs(groups, 1, torch.bfloat16)
    (own, _), (found, _) = (f(Module(groups), query, key, value, None) for f in (ours.replaced(), forward))
    assert torch.allclose(found, own, atol=0.03)


def test_a_mask_of_true_and_false() -> None:
    query, key, value, mask = inputs(2, 3, torch.float32)
    (own, _), (found, _) = (f(Module(2), query, key, value, mask == 0) for f in (ours.replaced(), forward))
    assert torch.allclose(found, own, atol=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"dropout": 0.5},
        {"position_bias": torch.zeros(1, 6, 3, 29)},
        {"attention_mask": None},
        {"attention_mask": torch.zeros(2, 6, 3, 29)},
        {"module": Module(1)},
        {"query": torch.zeros(2, 6, 3, 16, device="meta")},
    ],
    ids=["dropout", "bias", "causal", "mask of each head", "other groups", "other device"],
)
def test_what_is_unusual_is_transformers_own(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, mask = inputs(2, 3, torch.float32)
    given: dict[str, Any] = {
        "module": Module(2),
        "query": query,
        "key": key,
        "value": value,
        "attention_mask": mask,
    } | more
    called = Called(lambda *args, **named: (query, None))
    monkeypatch.setattr(ours, "replaced", lambda: called)
    forward(**given)
    ((args, named),) = called.calls
    assert all(
        one is given[name] for one, name in zip(args, ("module", "query", "key", "value"), strict=False)
    )
    assert all(named[name] is more[name] for name in more if name in ("dropout", "position_bias"))


def test_models_use_it_in_our_passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of two tokens in both ways; Transformers copies the keys, ours does not."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=V, hidden_size=32, intermediate_size=48, **sizes)
    model: Any = LlamaForCausalLM(config)
    model.eval()
    assert model.config._attn_implementation == ours.SDPA
    calls: list[str] = []
    own = Called(ours.replaced(), "own", calls)
    monkeypatch.setattr(ours, "replaced", lambda: own)
    monkeypatch.setattr(ours, "attention", Called(ours.attention, "ours", calls))
    text, rows = [3, 5, 9, 7, 11], ModelRunner(model)
    rows.open(0)
    calls.clear()
    with torch.inference_mode():
        rows.forward(PassInput(0, [text[:3]], 1))
        logits = rows.forward(PassInput(0, [text[3:]], 2)).logits
        assert calls == ["ours"] * 4
        plain = model(torch.tensor([text])).logits[:, 3:]
    assert calls == ["ours"] * 4 + ["own"] * 2
    assert torch.allclose(logits, plain, atol=1e-5)


def test_other_threads_are_not_affected() -> None:
    seen = []
    with shared_heads():
        thread = Thread(target=lambda: seen.append(PASS.ours))
        thread.start()
        thread.join()
        assert PASS.ours
        with pytest.raises(ValueError, match="in a pass"), shared_heads():
            raise ValueError("in a pass")
        assert PASS.ours
    assert seen == [False] and not PASS.ours


def test_two_threads_that_load_the_first_model_at_once_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own, waiting = ours.replaced(), Barrier(2)
    interface = ours._interface()
    monkeypatch.setattr(ours, "OWN", [])
    interface.register(ours.SDPA, own)
    found = []

    def load() -> None:
        waiting.wait()
        found.append(ours.replaced())

    threads = [Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [own, own] and interface()[ours.SDPA] is ours._chosen
