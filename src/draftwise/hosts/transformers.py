"""Draftwise inside Transformers: `model.generate(**inputs, custom_generate=transformers_generate(...))`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..build import build_drafters, complete
from ..catalogue import default, method
from ..errors import UserError
from ..loop import Loop
from ..models import load_tokenizer
from ..targets.hf import HFTarget
from ..types import Request, Sampling

WARPERS: dict[type, Callable[[Any], dict[str, float]]] = {
    TemperatureLogitsWarper: lambda w: {"temperature": w.temperature},
    TopKLogitsWarper: lambda w: {"top_k": w.top_k},
    TopPLogitsWarper: lambda w: {"top_p": w.top_p},
    MinPLogitsWarper: lambda w: {"min_p": w.min_p},
}


def transformers_generate(
    *, drafters: Sequence[Any] = ("ngram", "suffix"), policy: str = "", tokenizer: Any = None, seed: int = 0
) -> Callable[..., Any]:
    """A decoding method for Transformers' `generate`: the model's own text, drafted as the policy decides.

    Drafters are names or loaded models. The model is used as it is. Keep the returned function for many
    calls: what the policy learnt stays. `tokenizer` is the model's; it is only needed to check a drafter
    given by name, and found by the model's own name where it can be. Sampling follows `torch.manual_seed`.

    Raises:
        UserError: beam search, scores or attentions asked for, or a model that is refused (see the guide).
    """
    hosts: dict[int, tuple[Any, Loop]] = {}

    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        _refuse(generation_config, model_kwargs, synced_gpus)
        if id(model) not in hosts:
            hosts[id(model)] = (model, _loop(model, drafters, policy, tokenizer, seed))
        # Transformers (5.23) shows its streamer the prompt and keeps it: it waits in the caller's frame.
        streamer = streamer or sys._getframe(1).f_locals.get("streamer")
        call = Call(generation_config, logits_processor, stopping_criteria, streamer, len(input_ids))
        sequences: Any = call.run(hosts[id(model)][1], input_ids, _mask(model_kwargs, input_ids))
        if streamer is not None:
            streamer.end()
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    return decode


def _loop(model: Any, drafters: Sequence[Any], policy: str, tokenizer: Any, seed: int) -> Loop:
    target = HFTarget(model)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    if tokenizer is None and any(isinstance(d, str) for d in drafters):
        try:
            tokenizer = load_tokenizer(name)
        except UserError:
            tokenizer = None
    load = {"dtype": "auto", "device": target.rows.device, "trust_remote_code": False}
    team = build_drafters(drafters, target, tokenizer, name, pack="auto", **load)
    chosen = method(policy or default(team), list(team))
    return Loop(target, complete(team, chosen), chosen.policy, chosen.recorder, seed=seed)


def _refuse(config: GenerationConfig, model_kwargs: dict[str, Any], synced_gpus: bool) -> None:
    """Say what this decoding method cannot do, before anything is decoded."""
    if (config.num_beams or 1) > 1:
        raise UserError(f"num_beams={config.num_beams}: beam search cannot be drafted; use num_beams=1")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, name, None):
            raise UserError(f"{name}=True: not available with draftwise; leave it out")
    if model_kwargs.get("inputs_embeds") is not None:
        raise UserError("inputs_embeds: draftwise reads token ids; pass input_ids")
    if synced_gpus:
        raise UserError("synced_gpus=True: ZeRO-3 and FSDP generation is not available with draftwise")
    if config.use_cache is False:
        raise UserError("use_cache=False: draftwise needs the cache; leave it out")


def _mask(model_kwargs: dict[str, Any], input_ids: Tensor) -> Tensor:
    mask = model_kwargs.get("attention_mask")
    return torch.ones_like(input_ids) if mask is None else mask


class RowProcessor(LogitsProcessor):
    """What Transformers prepared for a padded batch, for one of its rows: each row's own copy, called with
    the row as `generate` would show it, its padding in front."""

    def __init__(self, processors: LogitsProcessorList, row: int, pad: Tensor) -> None:
        self.processors = copy.deepcopy(processors)
        self.pad = pad[None]
        for processor in self.processors:
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, Tensor):
                processor.prompt_ignore_length = ignored[row : row + 1]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Processed scores, shape (1, vocabulary)."""
        shaped: Tensor = self.processors(torch.cat([self.pad, input_ids], dim=1), scores)  # type: ignore[arg-type]
        return shaped


@dataclass(slots=True)
class Call:
    """One call of `generate`: its settings, and the rows of its batch."""

    config: GenerationConfig
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    streamer: Any
    rows: int

    def run(self, loop: Loop, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Decode every row; token ids with the prompt, padded on the right, shape (rows, length)."""
        requests: list[Request] = []
        seeds = torch.randint(1 << 62, (self.rows,)).tolist() if self.config.do_sample else [0] * self.rows
        try:
            for row, (ids, seen) in enumerate(zip(input_ids, mask, strict=True)):
                pad = ids[~seen.bool()]
                requests.append(
                    loop.add(
                        ids[seen.bool()].tolist(), self._sampling(row, pad, input_ids.shape[1], seeds[row])
                    )
                )
            mine = {request.id for request in requests}
            while any(not request.done for request in requests):
                for round in loop.step():
                    if self.streamer is not None and round.request in mine:
                        for token in round.tokens:
                            self.streamer.put(torch.tensor([token]))
        finally:
            for request in requests:
                if not request.done:
                    loop.close(request)
        return self._padded(input_ids, [r.tokens[r.prompt_length :] for r in requests])

    def _sampling(self, row: int, pad: Tensor, length: int, seed: int) -> Sampling:
        """This call's settings; what Transformers prepared is used, not made again."""
        rest = LogitsProcessorList(self.processors)
        shaping: dict[str, float] = {}
        while self.config.do_sample and rest and type(rest[-1]) in WARPERS:
            found = WARPERS[type(rest[-1])](rest[-1])
            if set(found) & set(shaping):
                break
            shaping |= found
            rest.pop()
        limits = [c.max_length - length for c in self.criteria if isinstance(c, MaxLengthCriteria)]
        eos = [t for c in self.criteria if isinstance(c, EosTokenCriteria) for t in c.eos_token_id.tolist()]
        others = StoppingCriteriaList(
            c for c in self.criteria if not isinstance(c, (MaxLengthCriteria, EosTokenCriteria))
        )

        def ends(tokens: Sequence[int], start: int) -> int | None:
            prefix = pad.tolist()
            for n in range(1, len(tokens) - start + 1):
                ids: Any = torch.tensor([[*prefix, *tokens[: start + n]]], device=pad.device)
                if bool(others(ids, None)):
                    return n
            return None

        return Sampling(
            max_new_tokens=max(min(limits, default=1 << 30), 1),
            temperature=shaping.pop("temperature", 1.0) if self.config.do_sample else 0.0,
            seed=seed,
            eos=frozenset(eos),
            processors=(RowProcessor(rest, row, pad),) if rest else (),
            ends=ends if others else None,
            **shaping,  # type: ignore[arg-type]
        )

    def _padded(self, input_ids: Tensor, texts: list[list[int]]) -> Tensor:
        pad = getattr(self.config, "_pad_token_tensor", None)
        fill = int(pad) if pad is not None else 0
        longest = max(map(len, texts))
        rows = [[*t, *(fill,) * (longest - len(t))] for t in texts]
        return torch.cat(
            [input_ids, torch.tensor(rows, device=input_ids.device, dtype=input_ids.dtype)], dim=1
        )
