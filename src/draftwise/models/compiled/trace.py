"""Builds a model from its blueprint without weights, and compiles its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..attention import Own, traced_heads
from ..cache_names import name_for
from ..heads.pairs import PairModel, from_structure
from ..native.kernels import packed_shape
from ..runner.cache import Plan, RowLayer
from ..runner.hidden_states import LayerHooks
from ..weights.layouts import KERNELS, LAYOUTS, SHORT, TURNED, fuse, turn
from .blueprint import Blueprint, Unfit, named_tensors

OWN = ("mkl", *KERNELS)  # layouts whose products TorchInductor cannot express by itself
EXAMPLE = (2, 5, 200, 512)  # rows, width, visible slots and slots of the traced pass: all different, none 1


class PassLayer(RowLayer):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """One layer of the KV cache as inputs of the graph: keys and values, shape (rows, heads, slots, size)."""

    def __init__(self, kept: tuple[Tensor, Tensor] | None, slots: Tensor, total: int, width: int) -> None:
        super().__init__(Plan(total=total, width=width))
        self.kept, self.slots, self.is_initialized = kept, slots, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the pass's tokens in place and return all visible slots, shape (rows, heads, total, size)."""
        if self.kept is None:
            raise Unfit("a layer wrote to the cache that did not do so before")
        slots = self.slots[:, None]
        for held, new in zip(self.kept, (key_states, value_states), strict=True):
            rows, heads = (torch.arange(n, device=new.device) for n in new.shape[:2])
            held.index_put_((rows[:, None, None], heads[:, None], slots), new)
        keys, values = (held[:, :, : self.plan.total] for held in self.kept)
        return keys, values


class Pass(nn.Module):
    """A forward pass as a function of tensors alone.

    Inputs: ids and positions (rows, width), one additive mask (rows, 1, width, visible slots) per kind of
    layer, the slots that the tokens are written to (rows, width), the positions of the pass whose logits are
    wanted (any number), the keys and values of each cache layer, and a head's states (rows, width, size).
    """

    def __init__(self, model: nn.Module, plan: Blueprint) -> None:
        super().__init__()
        self.model, self.plan, self.cache_name = model, plan, name_for(model)
        self.hooks = LayerHooks(model, plan.outputs) if plan.outputs and not plan.states else None

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        masks: Sequence[Tensor],
        slots: Tensor,
        keep: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        head_states: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        total, width, plan = masks[0].shape[-1], ids.shape[1], self.plan
        kept = {layer[0]: pair for layer, pair in zip(plan.layers, zip(keys, values), strict=True)}  # noqa: B905
        layers: Any = [PassLayer(kept.get(i), slots, total, width) for i in range(plan.depth)]
        mask: Any = dict(zip(plan.kinds, masks, strict=True)) if plan.kinds else masks[0]
        named: dict[str, Any] = {self.cache_name: Cache(layers=layers), "use_cache": True}
        if plan.keeps:
            named["logits_to_keep"] = keep
        if head_states:
            named["states"] = head_states[0]
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            **named,
        )
        logits: Tensor = output.logits
        states = [self.hooks.latest[layer] for layer in plan.outputs] if self.hooks else []
        if head_states:
            states = [output.states]
        return (logits if plan.keeps else logits[:, keep], *states)


class TracedLinear(nn.Module):
    """A packed linear layer for tracing: `packed` and `shape` stand for the tensors of a `PackedLinear`."""

    def __init__(self, linear: nn.Linear, layout: str) -> None:
        super().__init__()
        weight = linear.weight
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.packed = nn.Parameter(_as_packed(weight, layout), requires_grad=False)
        self.shape = nn.Parameter(torch.empty_like(weight)) if layout in OWN else weight
        self.weight = weight.new_empty(0, device="cpu")  # as the pass will find it
        self.product = LAYOUTS[layout].product
        if layout in OWN:
            from . import kernels  # TorchInductor's own parts, which other versions may not have

            self.product = kernels.PRODUCTS[layout]

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.packed, self.shape, self.bias)


def _as_packed(weight: Tensor, layout: str) -> Tensor:
    """A tensor of the shape that the packed weight has, as far as the graph reads it."""
    if layout in KERNELS:
        stored = SHORT.get(layout, weight.dtype)
        return weight.new_empty(packed_shape(weight.shape[0], weight.shape[1], stored), dtype=stored)
    return weight.t().contiguous() if layout == "columns" else weight


def build(plan: Blueprint) -> nn.Module:
    """The model of a blueprint, with memory for its weights that is never touched.

    Raises:
        Unfit: the class makes other weights from the configuration.
    """
    model = _skeleton(plan).eval().requires_grad_(False)
    for names in plan.fused:
        fuse(model, names)
    for path, layout in plan.packed.items():
        parent, _, last = path.rpartition(".")
        linear = model.get_submodule(path)
        setattr(
            model.get_submodule(parent),
            last,
            turn(linear) if layout == TURNED else TracedLinear(linear, layout),
        )
    made_tensors = dict(named_tensors(model))
    for path, (shape, dtype) in plan.tensors.items():
        found = made_tensors.get(path)
        if found is None or list(found.shape) != shape:
            raise Unfit(f"the loaded model is not what its configuration says ({path})")
        found.data = found.data.to(_dtype(dtype))
    made: nn.Module = model.to_empty(device="cpu")
    if isinstance(made, PairModel):
        made.share()
    for path, tensor in named_tensors(made):
        if path in plan.small:
            tensor.copy_(torch.tensor(plan.small[path], dtype=torch.float64).reshape(tensor.shape))
    return made


def _skeleton(plan: Blueprint) -> Any:
    module, name = plan.model
    with torch.device("meta"):
        if plan.states:
            return from_structure(plan.config).to(_dtype(plan.dtype))
        kind: Any = getattr(import_module(module), name)
        config = kind.config_class.from_dict(plan.config)
        return kind._from_config(config, dtype=_dtype(plan.dtype), attn_implementation=plan.attention)


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def _shims(plan: Blueprint) -> dict[Any, list[str]]:
    if not {*KERNELS} & {*plan.packed.values()} and not plan.own_attention:
        return {}
    from .kernels import SHIMS

    return SHIMS


def _own(plan: Blueprint) -> Own | None:
    if not plan.own_attention:
        return None
    from .kernels import head_attention

    return head_attention


def export(model: Pass, plan: Blueprint, device: torch.device) -> Any:
    """Trace a pass once for any number of rows, tokens and slots.

    Raises:
        Unfit: the model cannot be traced with these inputs.
    """
    from torch.fx.experimental import _config as symbolic

    (rows, width, total, slots), free = EXAMPLE, torch.export.Dim.DYNAMIC
    count, depth = len(plan.kinds) or 1, len(plan.layers)

    def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(*shape, dtype=dtype or _dtype(plan.dtype), device=device)

    example = (
        zeros(rows, width, dtype=torch.long),
        zeros(rows, width, dtype=torch.long),
        [zeros(rows, 1, width, total) for _ in range(count)],
        zeros(rows, width, dtype=torch.long),
        zeros(3, dtype=torch.long),
        [zeros(rows, layer[1], slots, layer[2]) for layer in plan.layers],
        [zeros(rows, layer[3], slots, layer[4]) for layer in plan.layers],
        [zeros(rows, width, plan.states)][: plan.states],
    )
    shapes = (
        {0: free, 1: free},
        {0: free, 1: free},
        [{0: free, 2: free, 3: free}] * count,
        {0: free, 1: free},
        {0: free},
        [{0: free, 2: free}] * depth,
        [{0: free, 2: free}] * depth,
        [{0: free, 1: free}][: plan.states],
    )
    # One graph for one row or token as well as for many.
    with symbolic.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return torch.export.export(model, example, dynamic_shapes=shapes, strict=False)


@torch.no_grad()
def compile_to(plan: Blueprint, path: Path) -> None:
    """Compile the forward pass of a blueprint into a file.

    Raises:
        Unfit: the model cannot be traced with these inputs.
    """
    from torch._inductor import aoti_compile_and_package, config
    from torch.fx.experimental import _config as symbolic

    symbolic.backed_size_oblivious = True  # TorchInductor, too
    model = Pass(build(plan), plan)
    with traced_heads(_own(plan)):
        traced = export(model, plan, torch.device("cpu"))
    with config.patch(
        {
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.precompile_headers": False,  # none is used again: each graph has its own folder
            "cpp.dynamic_threads": True,  # as many threads as the process has that runs it
            "compile_threads": 1,
            "aot_inductor.custom_ops_to_c_shims": _shims(plan),
        }
    ):
        aoti_compile_and_package(traced, package_path=str(path))
