"""Arguments of `generate` that this decoding method does not support: rejected by name, never ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.integrations import deepspeed
from transformers.integrations.fsdp import is_fsdp_managed_module

from ...errors import UserError
from ...models.cache_names import CACHE
from .prompted import PromptedTarget
from .target import HostTarget

DRAFTERS = "the drafters are those of transformers_generate; leave it out"

# Fields of GenerationConfig: when one is rejected, and the remedy. All others are applied, or have no effect
# on plain decoding either; tests/hosts/arguments.py lists every one of them.
REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_beams": (lambda n: n > 1, "beam search cannot be drafted; use num_beams=1"),
    "constraints": (bool, "constrained beam search cannot be drafted; leave it out"),
    "force_words_ids": (bool, "constrained beam search cannot be drafted; leave it out"),
    "penalty_alpha": (lambda a: a > 0, "contrastive search cannot be drafted; leave it out"),
    "dola_layers": (bool, "DoLa decoding cannot be drafted; leave it out"),
    "prompt_lookup_num_tokens": (bool, DRAFTERS),
    "assistant_early_exit": (bool, DRAFTERS),
    "use_mtp": (bool, DRAFTERS),
    "is_assistant": (bool, "draftwise writes the target's own text; leave it out"),
    "output_attentions": (bool, "not available with draftwise; leave it out"),
    "output_hidden_states": (bool, "not available with draftwise; leave it out"),
    "use_cache": (lambda use: not use, "draftwise needs the cache; leave it out"),
    "cache_implementation": (
        lambda kind: kind == "quantized" or "offloaded" in kind,
        "draftwise keeps a cache of its own, in the model's precision on its device; leave it out",
    ),
    "compile_config": (bool, "draftwise does not compile the model; leave it out"),
}


def check(config: GenerationConfig, model: Any) -> None:
    """Raise a UserError for a setting that would be ignored.

    `use_cache=False` in the model's own settings (MPT) is accepted, since it only changes the cost. If it
    changes the text, `check_cache` rejects it.
    """
    own = model.generation_config.use_cache
    for name, (wrong, remedy) in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and wrong(value) and not (name == "use_cache" and own is False):
            raise UserError(f"{name}={value!r}: {remedy}")


def check_cache(config: GenerationConfig, model: Any, target: HostTarget | PromptedTarget) -> None:
    """Raise a UserError if the model's text without a cache differs from its text with one, or is read so."""
    if config.use_cache is False and (target.regimes is not None or isinstance(target, PromptedTarget)):
        name = type(model).__name__
        raise UserError(f"use_cache=False: {name} writes another text without its cache; give use_cache=True")


def check_given(cache: Any) -> None:
    """Raise a UserError for a caller's cache that changes what it stores: the text depends on it."""
    if not getattr(cache, "_is_user_defined", False):
        return
    inner = getattr(cache, "self_attention_cache", cache)
    for part in (inner, *getattr(inner, "layers", ())):
        kinds, update = type(part).__mro__, getattr(type(part), "update", None)
        is_foreign = update is not None and not update.__module__.startswith("transformers")
        if is_foreign or any("Quantized" in kind.__name__ for kind in kinds):
            raise UserError(
                f"{CACHE}: draftwise keeps keys and values as the model computes them, which "
                f"{type(part).__name__} may not; use a DynamicCache"
            )


# PEFT attaches to a model's layers, for one call, a list with an entry for each row of the batch.
PER_ROW = {"adapter_names", "alora_offsets"}


def check_call(model: Any, streamer: Any, synced_gpus: bool | None) -> Any:
    """Raise a UserError for other arguments that are not supported; return the streamer of the call.

    Transformers (5.23) does not pass them to a decoding method given as a function, so they are read from the
    stack frame of the calling `generate`, however many functions lie between.
    """
    arguments = _generate_frame(model)
    if arguments.get("assistant_model") is not None:
        raise UserError(f"assistant_model: {DRAFTERS}")
    synced_gpus = synced_gpus or arguments.get("synced_gpus")
    if synced_gpus is None:  # the same rule as in `generate`
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        several = several and torch.distributed.get_world_size() > 1
        synced_gpus = several and (_is_zero3() or is_fsdp_managed_module(model))
    if synced_gpus:
        raise UserError("synced_gpus=True: ZeRO-3 and FSDP generation is not available with draftwise")
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            for name in PER_ROW & getattr(hook, "keywords", {}).keys():
                raise UserError(f"{name}: draftwise has no adapters by row; leave it out")
    return arguments.get("streamer") if streamer is None else streamer


def _is_zero3() -> bool:
    enabled: Any = deepspeed.is_deepspeed_zero3_enabled
    return bool(enabled())


def _generate_frame(model: Any) -> dict[str, Any]:
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate" and frame.f_locals.get("self") is model:
            return {name: frame.f_locals.get(name) for name in ("streamer", "assistant_model", "synced_gpus")}
        frame = frame.f_back
    return {}
