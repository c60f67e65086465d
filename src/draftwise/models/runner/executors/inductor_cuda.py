"""The forward pass of a model as TorchInductor compiles it in this process, for graphs to capture.

It is traced once with dynamic shapes, so that passes of all sizes share its kernels: compiled for each size,
a pass took a minute each. PyTorch keeps what it compiled on disk, so that a second process takes less.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ....errors import one_line
from ...compiled.blueprint import Unfit, blueprint
from ...compiled.trace import Pass, export
from ..runner import ModelRunner
from .functions import Computed, Pairs


class InductorKernels:
    """Computes the passes of one model, with its tensors as they are now; `seconds` is what compiling took.

    Raises:
        Unfit: the model cannot be compiled.
    """

    def __init__(self, runner: ModelRunner) -> None:
        begin, self.plan = perf_counter(), blueprint(runner)
        hooks = runner.eager.hooks
        before = dict(hooks.latest) if hooks else {}
        try:
            self.run, self.tensors = _compile(Pass(runner.model, self.plan), runner.device)
        except Exception as error:  # whatever the model's code or TorchInductor raises
            raise Unfit(one_line(error)) from error
        finally:
            if hooks:
                hooks.latest.clear()
                hooks.latest.update(before)  # tracing has left tensors without numbers
        self.seconds = perf_counter() - begin

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Any,
        slots: Tensor,
        pairs: Pairs,
        states: Tensor | None,
    ) -> Computed:
        """The pass of `functions.call_model`; `pairs` are whole buffers of keys and values by layer."""
        plan = self.plan
        kinds = [mask[kind] if isinstance(mask, dict) else mask for kind in plan.kinds or ("",)]
        shape = (*ids.shape, kinds[0].shape[-1])
        masks = [one.expand(shape[0], 1, *shape[1:]).contiguous() for one in kinds]
        used = [pairs[layer[0]] for layer in plan.layers]
        inputs = [
            *(ids.contiguous(), positions.expand(ids.shape).contiguous(), *masks, slots.contiguous()),
            torch.arange(ids.shape[1], device=ids.device),
            *(keys for keys, _ in used),
            *(values for _, values in used),
            *([] if states is None else [states.contiguous()]),
        ]
        logits, *more = self.run(*self.tensors, *inputs)
        own = more.pop() if plan.states else None
        return Computed(logits, own, dict(zip(plan.outputs, more, strict=True)) if own is None else {})


@torch.no_grad()
def _compile(model: Pass, device: torch.device) -> tuple[Any, Sequence[Tensor]]:
    """A pass as a function of the model's tensors and its inputs, and these tensors."""
    from torch._inductor import standalone_compile
    from torch.export.graph_signature import InputKind

    traced = export(model, model.plan, device)
    state, graph = {**traced.state_dict, **traced.constants}, traced.graph_module
    specs = traced.graph_signature.input_specs
    tensors = [state[str(spec.target)].detach() for spec in specs if spec.kind != InputKind.USER_INPUT]
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    return standalone_compile(graph, inputs, dynamic_shapes="from_graph"), tensors
