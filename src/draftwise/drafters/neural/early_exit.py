"""Early exit: the target's own first layers draft, with its output layer and its KV cache."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...errors import UserError
from ...models.runner import PassInput
from ...models.runner.hidden_states import Source
from ...registry import Within
from .heads import HeadDrafter, trees_by_row

Texts = Sequence[Sequence[int]]


class EarlyExitDrafter(HeadDrafter):
    """Drafts with the first layers of the target, its final norm and its head; there is nothing to load.

    `layers` 0 means a third of them. The target's KV cache already holds the text for these layers, so
    nothing is prefilled twice; drafted tokens are written after it and rolled back before the target verifies
    them. With a `width`, or a wider arm, it drafts a tree, with `top` and `gain` as for `eagle`. The first
    round of a text is plain decoding: the target has not read it yet.

    Source: LayerSkip (arXiv 2404.16710).
    """

    def __init__(
        self,
        target: Source,
        *,
        layers: Annotated[int, "first layers of the target to use; 0: a third of them"] = 0,
        width: Annotated[
            int, "1 drafts a chain; more, a tree of at most length * width nodes", Within(1)
        ] = 1,
        sample: Annotated[
            bool, "sample drafts where the request samples; false: most probable tokens"
        ] = True,
        top: Annotated[int, "tokens tried after each node of a tree", Within(1)] = 8,
        gain: Annotated[float, "least gain in accepted tokens per depth; 0: no limit", Within(0)] = 0.0,
    ) -> None:
        self.runner = target.runner
        if self.runner.stateful:
            raise UserError(
                f"{type(self.runner.model).__name__} keeps a state that cannot rewind, which its first "
                "layers alone would spoil: use another drafter than early-exit"
            )
        depth = int(self.runner.config.num_hidden_layers)
        if not 0 <= layers < depth:
            raise UserError(f"layers={layers}: this target has {depth} layers, exit after 1 to {depth - 1}")
        layers = layers or max(1, depth // 3)
        self.model = first_layers(self.runner.model, layers)
        super().__init__(target, (layers,), width=width, sample=sample, top=top, gain=gain)

    def ready(self, request: Request) -> bool:
        """Return if the target has read all of the text but its last token: more must not be overwritten."""
        ids, lengths = self.runner.request_ids, self.runner.cached_lengths
        return request.id in ids and lengths[ids.index(request.id)] == len(request.tokens) - 1

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token, from the target's own states, which do not drift."""
        graded = []
        for job in jobs:
            states = self.features.of(job.request.id, job.start - 1, len(job.request.tokens) - 1)
            graded.append(self._graded(job, self._logits(states), states))
        return graded

    def _logits(self, states: Tensor) -> Tensor:
        """Return the logits of states, shape (tokens, vocabulary), by the target's norm and output layer."""
        body, whole = self.model.get_decoder(), self.runner.model
        norm = [module for name, module in body.named_children() if "norm" in name or name == "ln_f"][-1]
        logits: Tensor = whole.get_output_embeddings()(norm(states))
        if isinstance(scale := getattr(whole, "logit_scale", None), (int, float)):  # Cohere
            logits = logits * scale
        if isinstance(scale := getattr(self.runner.config, "logits_scaling", None), (int, float)):  # Granite
            logits = logits / scale
        cap = getattr(self.runner.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _rows_of(self, requests: Sequence[Request]) -> Sequence[int]:
        rows: list[int] = self.runner.move_to_front([request.id for request in requests])
        return rows

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        def step(tokens: Texts, above: Texts, parents: Texts | None) -> tuple[Tensor, Tensor | None]:
            trees = trees_by_row(parents)
            given = PassInput(0, tokens, max(map(len, tokens)), parents=trees, model=self.model)
            return self.runner.forward(given).logits, None

        try:
            logits, _ = step([job.request.tokens[-1:] for job in jobs], [], None)
            return self._draft_by_steps(jobs, logits, None, step)
        finally:
            for row, job in enumerate(jobs):
                self.runner.cached_lengths[row] = len(job.request.tokens) - 1


def first_layers(model: Any, layers: int) -> Any:
    """Return a causal LM of the first layers of another model, sharing its modules, norm and output layer.

    Raises:
        UserError: the model has no list of its layers.
    """
    body = model.get_decoder()
    depth = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    lists = [name for name, m in body.named_children() if isinstance(m, nn.ModuleList) and len(m) == depth]
    at = next((name for name, module in model.named_children() if module is body), None)
    moved = "forward" in vars(model) or "forward" in vars(body)  # spread over devices
    if not lists or at is None or moved:
        raise UserError(
            f"{type(model).__name__} shows no list of its {depth} layers to exit from, or is spread"
        )
    short, whole = _sharing(body), _sharing(model)
    short._modules[lists[0]] = nn.ModuleList(list(getattr(body, lists[0]))[:layers])
    short.config = copy.deepcopy(body.config)
    short.config.num_hidden_layers = layers
    whole._modules[at] = short
    return whole


def _sharing(module: Any) -> Any:
    """Return a shallow copy of a module whose parts can be replaced, without its hooks."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    other._forward_hooks, other._forward_pre_hooks = OrderedDict(), OrderedDict()
    return other
