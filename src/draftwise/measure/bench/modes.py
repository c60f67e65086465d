"""The modes of peers that run in processes of their own, by name, with their options; and reading options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints

from ... import registry
from ...errors import UserError

TRANSFORMERS = (
    "plain",
    "assisted",
    "constant",
    "heuristic",
    "threshold",
    "lookup",
    "compiled",
    "compiled-lookup",
    "compiled-assisted",
)
Flash = Literal["auto", "on", "off"]
Loop = Literal["fast", "library"]
Cache = Literal["f16", "f32"]


def llamacpp_plain(
    *,
    context: int = 4096,
    gpu_layers: int = 0,
    flash: Flash = "auto",
    loop: Loop = "fast",
    cache: Cache = "f16",
) -> dict[str, Any]:
    """Plain decoding."""
    return {"context": context, "gpu_layers": gpu_layers, "flash": flash, "loop": loop, "cache": cache}


def llamacpp_lookup(
    *,
    context: int = 4096,
    gpu_layers: int = 0,
    flash: Flash = "auto",
    loop: Loop = "fast",
    cache: Cache = "f16",
    length: int = 10,
    ngram: int = 2,
) -> dict[str, Any]:
    """llama-cpp-python's prompt lookup, with its own defaults."""
    own = {"lookup": length, "ngram": ngram}
    return llamacpp_plain(context=context, gpu_layers=gpu_layers, flash=flash, loop=loop, cache=cache) | own


def llamacpp_draft(
    *,
    context: int = 4096,
    gpu_layers: int = 0,
    flash: Flash = "auto",
    loop: Loop = "fast",
    cache: Cache = "f16",
    length: int = 3,
    confidence: float = 0.0,
) -> dict[str, Any]:
    """A draft model, with the default length and threshold of llama.cpp's own programs (3 and 0)."""
    own = {"length": length, "confidence": confidence}
    return llamacpp_plain(context=context, gpu_layers=gpu_layers, flash=flash, loop=loop, cache=cache) | own


def vllm_plain() -> None:
    """Plain decoding."""


def vllm_ngram(*, length: int = 5, min: int = 1, max: int = 4) -> dict[str, Any]:
    """vLLM's prompt lookup, with the n-gram lengths of ours."""
    spread = {"prompt_lookup_min": min, "prompt_lookup_max": max}
    return {"method": "ngram", "num_speculative_tokens": length} | spread


def vllm_suffix(*, length: int = 16) -> dict[str, Any]:
    """vLLM's suffix decoding, which needs arctic-inference."""
    return {"method": "suffix", "num_speculative_tokens": length}


def vllm_draft(*, length: int = 3) -> dict[str, Any]:
    """vLLM with a draft model."""
    return {"method": "draft_model", "num_speculative_tokens": length}


LLAMACPP: dict[str, Callable[..., dict[str, Any]]] = {
    "plain": llamacpp_plain,
    "lookup": llamacpp_lookup,
    "draft": llamacpp_draft,
}
VLLM: dict[str, Callable[..., Any]] = {
    "plain": vllm_plain,
    "ngram": vllm_ngram,
    "suffix": vllm_suffix,
    "draft": vllm_draft,
}
ENGINES: Mapping[str, Sequence[str]] = {
    "transformers": TRANSFORMERS,
    "llamacpp": tuple(LLAMACPP),
    "vllm": tuple(VLLM),
}


def converted(
    name: str, factory: Callable[..., Any], given: Mapping[str, str], others: Sequence[str]
) -> dict[str, Any]:
    """A peer's options, converted to the types of its mode's options; `others` are read elsewhere.

    Raises:
        UserError: an unknown option, a value of another type, or a number that is not above 0.
    """
    known = {p.name: p for p in inspect.signature(factory).parameters.values()}
    kinds = get_type_hints(factory)
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            raise UserError(f"{name} has no option {key!r}: choose from {', '.join([*known, *others])}")
        options[key] = _converted(f"{name}: {key}={text}", kinds[key], text, zero=key == "confidence")
    return options


def flag(said: str, text: str) -> bool:
    """A switch.

    Raises:
        UserError: neither true nor false.
    """
    if text.lower() not in registry.YES + registry.NO:
        raise UserError(f"{said}: write true or false")
    return text.lower() in registry.YES


def _converted(said: str, kind: Any, text: str, *, zero: bool) -> Any:
    if kind is bool:
        return flag(said, text)
    if choices := get_args(kind):
        if text not in choices:
            raise UserError(f"{said}: choose from {', '.join(choices)}")
        return text
    try:
        value = kind(text)
    except ValueError:
        raise UserError(f"{said} is not {kind.__name__}") from None
    if not (0 < value < 1_000_000 or (zero and value == 0)):
        raise UserError(f"{said}: give a positive number")
    return value
