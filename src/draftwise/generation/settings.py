"""Settings of texts: what a model's authors set, and logits processors, of which each text has its own."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import DraftwiseWarning, UserError, one_line


def reusable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with iterators read into tuples: each text reads them."""
    return {k: tuple(value) if isinstance(value, Iterator) else value for k, value in settings.items()}


def own_processors(processors: Sequence[Any], *, alone: bool) -> tuple[Any, ...]:
    """Return the processors of one text: a processor may keep a state, which belongs to one text only.

    A class, or a function that takes no arguments, is called to make a new one. Other processors are copied,
    unless the text is `alone`: then the given object itself is used. Models inside a processor are shared,
    not copied.

    Raises:
        UserError: a processor cannot be copied.
    """
    return tuple(_make(p) if _is_factory(p) else p if alone else _copy(p) for p in processors)


def _is_factory(processor: Any) -> bool:
    """Return whether this is a class, or a function that takes no token ids and scores.

    A module of torch takes any arguments itself, and passes them on to `forward`.
    """
    function = processor
    while isinstance(function, partial):
        function = function.func
    if inspect.isclass(function):
        return True
    call = getattr(processor, "forward", processor)
    return _accepts(call) and not _accepts(call, "ids", "scores")


def _accepts(call: Any, *arguments: str) -> bool:
    try:
        inspect.signature(call).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _make(factory: Any) -> Any:
    try:
        return factory()
    except TypeError as error:
        message = f"processors: {factory!r} cannot be called without arguments ({one_line(error)})"
        raise UserError(message) from None


def _copy(processor: Any) -> Any:
    values = getattr(processor, "__dict__", {}).values()
    shared = {id(value): value for value in values if callable(getattr(value, "parameters", None))}
    try:
        return copy.deepcopy(processor, shared)  # models, which hold their weights in parameters, are shared
    except Exception as error:
        raise UserError(
            f"processors: {type(processor).__name__} cannot be copied for each of several texts "
            f"({one_line(error)}): give a function that makes one"
        ) from error


# -- the settings of a model's authors -------------------------------------------------------------------


# Settings that shape or end a text, and are applied; `do_sample` and the end-of-text tokens are read too.
USED = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens"})

# fmt: off
# Settings that would change the text but are not supported: ignored with a warning.
LEFT_OUT = frozenset(
    {
        "max_length", "min_length", "min_new_tokens", "max_time", "stop_strings", "num_beams",
        "num_return_sequences", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
        "encoder_repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id",
        "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
        "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "token_healing", "guidance_scale",
        "watermarking_config", "encoder_no_repeat_ngram_size", "penalty_alpha", "dola_layers",
        "diversity_penalty", "num_beam_groups", "constraints", "force_words_ids",
    }
)
# fmt: on


def own_settings(generation_config: Any, *, level: int = 2) -> Mapping[str, Any]:
    """Return the fields of `Sampling` that a model's authors set; their other settings are ignored.

    Without `do_sample` decoding is greedy, whatever the temperature. With it, missing settings have
    Transformers' defaults, such as top-k 50. Ignored settings cause a warning, attributed `level` callers up.
    """
    if generation_config is None:
        return {}
    own = {k: v for k, v in generation_config.to_dict().items() if v is not None}
    # Transformers' defaults for settings that are missing.
    usual: dict[str, Any] = {"guidance_scale": 1, "min_new_tokens": 0, "temperature": 1.0, "top_k": 50}
    if (defaults := getattr(generation_config, "_get_default_generation_params", None)) is not None:
        usual |= defaults()
    out = {k: v for k, v in own.items() if k in LEFT_OUT and v != usual.get(k) and v is not False}
    if out:
        warnings.warn(
            f"the model's generation_config has {', '.join(f'{k}={v!r}' for k, v in sorted(out.items()))}, "
            "which Draftwise does not use: give max_new_tokens, stop or processors that do the same",
            DraftwiseWarning,
            stacklevel=level,
        )
    settings = {k: v for k, v in own.items() if k in USED}
    if own.get("do_sample"):
        return {"temperature": usual["temperature"], "top_k": usual["top_k"], **settings}
    return {k: v for k, v in settings.items() if k != "temperature"}
