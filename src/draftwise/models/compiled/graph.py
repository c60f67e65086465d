"""A compiled graph with the weights of the model that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attached import Sliced
from ..runner import Rows
from ..weights.layouts import PackedLinear
from .blueprint import Blueprint, Unfit, named_tensors

Run = Callable[[list[Tensor]], Any]  # a pass as a function of the graph's inputs


class Graph:
    """Runs passes of one model; any number of `Rows` of this model may share it.

    Raises:
        Unfit: the file needs a tensor that the model does not have.
    """

    def __init__(self, path: Path, plan: Blueprint, model: Any) -> None:
        loader: Any = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
        wanted, known = loader.get_constant_fqns(), dict(_tensors(model))
        if missing := sorted(set(wanted) - known.keys()):
            raise Unfit(f"the graph needs {missing[0]}, which the model does not have")
        self.plan, self.weights = plan, {name: known[name] for name in wanted}
        loader.load_constants(self.weights, False, True, True)  # the model's own tensors, not copies
        self.run: Run = loader.run
        self._zeros = torch.zeros(0)

    def __call__(self, rows: Rows, ids: Tensor, named: dict[str, Any], keep: int) -> Tensor:
        """Run the pass that `rows` has planned, with the positions and masks `named` for the model.

        Returns the logits of the last `keep` positions, shape (rows, keep, vocabulary).
        """
        count, width = ids.shape
        at = named["position_ids"]
        inputs = [
            ids,
            (at if at.shape[0] == count else at.expand(count, -1)).contiguous(),
            *self._masks(rows, named["attention_mask"], count, width),
            self._written(rows, count, width),
            rows.positions[width - keep : width],
            *self._buffers(rows),
        ]
        logits: Tensor = self.run(inputs)[0]
        return logits

    def step(self, rows: Rows, tokens: Sequence[int], keep: int) -> Tensor:
        """Run a planned pass of a few tokens of one text that see all before them; returns as a call does."""
        plan, width = rows.cache.plan, len(tokens)
        at = rows.positions[plan.start : plan.total][None]
        if width == 1:
            mask = self._open(rows, plan.total).view(1, 1, 1, -1)
        else:
            mask = rows.masks.band(width, plan.total, rows.positions).contiguous()
        masks = [mask] * max(1, len(self.plan.kinds))
        last = rows.positions[width - keep : width]
        logits: Tensor = self.run([rows.few.ids(tokens), at, *masks, at, last, *self._buffers(rows)])[0]
        return logits

    def _buffers(self, rows: Rows) -> list[Tensor]:
        """The keys of all layers in the pass's rows, then the values, shape (rows, heads, slots, size).

        They are those of the last pass unless a buffer has grown or the rows are others: slicing them takes
        as long as all else that is prepared for a drafted token.
        """
        cache, plan = rows.cache, rows.cache.plan
        span = (plan.first, plan.last, plan.capacity, plan.slots, plan.buffers)
        if (had := cache.sliced) is not None and had.span == span:
            return had.parts
        used = [cache.rows[layer[0]] for layer in self.plan.layers]
        for one, (_, *shape) in zip(used, self.plan.layers, strict=True):
            if not one.is_initialized:
                one.allocate(shape, rows.dtype, rows.device)
            elif one.keys.shape[0] < plan.capacity or one.keys.shape[2] < plan.slots:
                one.grow()
        whole = (*(one.keys for one in used), *(one.values for one in used))
        parts = [one[plan.first : plan.last] for one in whole]
        cache.sliced = Sliced((*span[:4], plan.buffers), parts)
        return parts

    def _masks(self, rows: Rows, mask: Any, count: int, width: int) -> list[Tensor]:
        """One contiguous mask for each kind of layer, shape (rows, 1, width, visible slots)."""
        total = rows.cache.plan.total
        if mask is None:
            mask = self._open(rows, count * width * total).view(count, 1, width, total)
        if not self.plan.kinds:
            return [_full(mask, count, width, total)]
        if isinstance(mask, Tensor):
            return [_full(mask, count, width, total)] * len(self.plan.kinds)
        return [_full(mask[kind], count, width, total) for kind in self.plan.kinds]

    def _open(self, rows: Rows, size: int) -> Tensor:
        """Zeros, which hide nothing."""
        if self._zeros.numel() < size:
            self._zeros = torch.zeros(2 * size, dtype=rows.dtype, device=rows.device)
        return self._zeros[:size]

    def _written(self, rows: Rows, count: int, width: int) -> Tensor:
        """The slots that each row writes to, shape (rows, width)."""
        plan = rows.cache.plan
        if plan.even:
            return rows.positions[plan.start : plan.start + width].expand(count, -1).contiguous()
        return torch.from_numpy(plan.at)


def _full(mask: Tensor, count: int, width: int, total: int) -> Tensor:
    return mask.expand(count, 1, width, total).contiguous()


def _tensors(model: Any) -> list[tuple[str, Tensor]]:
    """Every tensor of the model by the name that the graph has for it."""
    named = named_tensors(model)
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            named += [(f"{name}.packed", module.packed), (f"{name}.shape", module.shape)]
    return [(f"model.{name}", tensor.detach()) for name, tensor in named]
