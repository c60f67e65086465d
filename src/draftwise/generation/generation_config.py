"""The decoding settings of a model's authors: its `generation_config`, read as Transformers reads it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import DraftwiseWarning

# Settings that shape or end a text, and are applied. End-of-text tokens are found with the tokenizer's.
USED = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens"})
ELSEWHERE = frozenset({"do_sample", "eos_token_id"})

# fmt: off
# Settings that change no text: how it is computed, what else is returned, and options of beam search.
NEUTRAL = frozenset(
    {
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp", "low_memory",
        "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config",
        "renormalize_logits", "transformers_version", "output_attentions", "output_hidden_states",
        "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id",
        "decoder_start_token_id", "_from_model_config", "early_stopping", "length_penalty",
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
        "assistant_ensemble_weight", "speculation_type",
    }
)

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
    """The fields of `Sampling` that a model's authors set; their other settings are ignored.

    Without `do_sample` decoding is greedy, whatever the temperature. With it, missing settings have
    Transformers' defaults, such as top-k 50. Ignored settings cause a warning, attributed `level` callers up.
    """
    if generation_config is None:
        return {}
    found = {k: v for k, v in generation_config.to_dict().items() if v is not None}
    usual = {"guidance_scale": 1, "min_new_tokens": 0, **_usual(generation_config)}
    out = {k: v for k, v in found.items() if k in LEFT_OUT and v != usual.get(k) and v is not False}
    if out:
        warnings.warn(
            f"the model's generation_config has {', '.join(f'{k}={v!r}' for k, v in sorted(out.items()))}, "
            "which Draftwise does not use: give max_new_tokens, stop or processors that do the same",
            DraftwiseWarning,
            stacklevel=level,
        )
    settings = {k: v for k, v in found.items() if k in USED}
    if found.get("do_sample"):
        return {"temperature": usual["temperature"], "top_k": usual["top_k"], **settings}
    return {k: v for k, v in settings.items() if k != "temperature"}


def _usual(generation_config: Any) -> dict[str, Any]:
    """Transformers' defaults for settings missing in a model's `generation_config`."""
    usual: dict[str, Any] = {"temperature": 1.0, "top_k": 50}
    told = getattr(generation_config, "_get_default_generation_params", None)
    return usual | (told() if told is not None else {})
