"""Early exit: the target's own first layers draft, with its output layer and its KV cache."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...errors import UserError
from ...models.runner import PassInput
from ...models.runner.hidden_states import Source
from .chains import draft_chains, grades
from .trees import draft_trees

Texts = Sequence[Sequence[int]]


class EarlyExitDrafter:
    """Drafts with the first layers of the target, its final norm and its head; there is nothing to load.

    `layers` 0 means a third of them. The target's KV cache already holds the text for these layers, so
    nothing is prefilled twice; drafted tokens are written after it and rolled back before the target verifies
    them. With a `width`, or a wider arm, it drafts a tree, with `top` and `gain` as for `eagle`. The first
    round of a text is plain decoding: the target has not read it yet.

    Source: LayerSkip (arXiv 2404.16710).
    """

    guided = True

    def __init__(
        self,
        target: Source,
        *,
        layers: Annotated[int, "first layers of the target to use; 0: a third of them"] = 0,
        width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes"] = 1,
        sample: Annotated[
            bool, "draw drafts where the request draws; false: always the most probable"
        ] = True,
        top: Annotated[int, "tokens tried after each node of a tree"] = 8,
        gain: Annotated[float, "least gain in accepted tokens per added node; 0: no limit"] = 0.0,
    ) -> None:
        if min(width, top) < 1 or gain < 0:
            said = f"width={width}&top={top}&gain={gain}"
            raise UserError(f"{said}: give width and top 1 or more and gain 0 or more")
        self.runner, self.vocab_size = target.runner, target.vocab_size
        if self.runner.stateful:
            raise UserError(
                f"{type(self.runner.model).__name__} keeps a state that cannot rewind, which its first "
                "layers alone would spoil: use another drafter than early-exit"
            )
        depth = int(self.runner.config.num_hidden_layers)
        if not 0 <= layers < depth:
            raise UserError(f"layers={layers}: this target has {depth} layers, exit after 1 to {depth - 1}")
        layers = layers or max(1, depth // 3)
        self.model, self.features = first_layers(self.runner.model, layers), target.hidden_states((layers,))
        self.branches, self.sample, self.top, self.gain = width, sample, top, gain

    def ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token.

        If it holds more, those tokens must not be overwritten, and the answer is False.
        """
        ids, lengths = self.runner.request_ids, self.runner.cached_lengths
        return request.id in ids and lengths[ids.index(request.id)] == len(request.tokens) - 1

    def hint(self, request: Request) -> float:
        """1 if the target has read the text."""
        return float(self.ready(request))

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing: the target reads the text."""

    def close(self, request: Request) -> None:
        """Nothing: the cache is the target's."""

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain or tree per job; an empty one if the target has not read the text."""
        drafts = [Draft()] * len(jobs)
        jobs = [replace(job, width=max(job.width, self.branches)) for job in jobs]
        for wide in (False, True):
            which = [i for i, job in enumerate(jobs) if (job.width > 1) == wide and self.ready(job.request)]
            if which:
                for i, draft in zip(which, self._draft([jobs[i] for i in which]), strict=True):
                    drafts[i] = draft
        return drafts

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token, from the target's own states: valid at any position of a draft."""
        made = []
        for job in jobs:
            states = self.features.of(job.request.id, job.start - 1, len(job.request.tokens) - 1)
            logits = self._logits(states)
            constraint, size = constraint_of(job.request, job.start), self.vocab_size
            made.append(
                grades(job, logits, states, vocab_size=size, sample=self.sample, constraint=constraint)
            )
        return made

    def _logits(self, states: Tensor) -> Tensor:
        """Logits of states after the target's norm and output layer, shape (tokens, vocabulary)."""
        body, whole = self.model.get_decoder(), self.runner.model
        norm = [module for name, module in body.named_children() if "norm" in name or name == "ln_f"][-1]
        logits: Tensor = whole.get_output_embeddings()(norm(states))
        if isinstance(scale := getattr(whole, "logit_scale", None), (int, float)):  # Cohere
            logits = logits * scale
        if isinstance(scale := getattr(self.runner.config, "logits_scaling", None), (int, float)):  # Granite
            logits = logits / scale
        cap = getattr(self.runner.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        rows = self.runner.move_to_front([job.request.id for job in jobs])

        def step(tokens: Texts, above: Texts, kin: Texts | None) -> tuple[Tensor, Tensor | None]:
            texts: list[Sequence[int]] = [()] * len(rows)
            for row, text in zip(rows, tokens, strict=True):
                texts[row] = text
            trees = {row: parents for row, parents in zip(rows, kin, strict=True) if parents} if kin else None
            widest = max(map(len, texts))
            return self.runner.forward(PassInput(0, texts, widest, parents=trees, model=self.model)).logits[
                rows
            ], None

        try:
            logits, _ = step([job.request.tokens[-1:] for job in jobs], [], None)
            if jobs[0].width > 1:
                return draft_trees(jobs, logits, step, top=self.top, gain=self.gain)
            size, sample = self.vocab_size, self.sample
            return draft_chains(jobs, logits, None, step, vocab_size=size, sample=sample)
        finally:
            for row, job in zip(rows, jobs, strict=True):
                self.runner.cached_lengths[row] = len(job.request.tokens) - 1


def first_layers(model: Any, layers: int) -> Any:
    """A causal LM of the first layers of another model, sharing its modules, norm and output layer.

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
    """A shallow copy of a module whose parts can be replaced, without its hooks."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    other._forward_hooks, other._forward_pre_hooks = OrderedDict(), OrderedDict()
    return other
