"""Every argument of `generate`, and what becomes of it inside `transformers_generate`.

`python -m tests.hosts.arguments` prints the table of docs/reference/arguments.md.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CompileConfig, GenerationConfig, WatermarkingConfig

from tests.tiny import model

IDS = torch.tensor([[0, 0, 3, 4, 5, 3, 4, 5], [7, 8, 9, 7, 8, 9, 7, 8]])
OBEYED, REFUSED = "obeyed", "refused"
IDLE, EARLIER = "no effect, as in plain decoding", "left to Transformers"
ONES = torch.tensor([[3, 1, 1, 1, 1, 1, 1, 1], [7, 8, 9, 1, 1, 1, 1, 1]])
DRAWN = {"do_sample": True, "top_k": 0}  # with settings that leave one token, so that texts can be compared
KEPT = {"return_dict_in_generate": True}
STATIC = {"cache_implementation": "static"}

SHORT = GenerationConfig(max_new_tokens=4)  # type: ignore[no-untyped-call]

Given = dict[str, Any]
Row = tuple[str, Given | None, str]  # what becomes of it, an example (None: the test that is named), a remark


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    """Some tokens for each row."""
    return [row + 1, row + 4, int(ids[-1]) + 1]


# The parameters of `generate` itself, and what it takes for the model.
SIGNATURE: dict[str, Row] = {
    "inputs": (OBEYED, {"inputs": IDS}, ""),
    "generation_config": (OBEYED, {"generation_config": SHORT}, ""),
    "logits_processor": (OBEYED, None, "`test_transformers_rows.py`"),
    "stopping_criteria": (OBEYED, None, "`test_transformers_rows.py`"),
    "prefix_allowed_tokens_fn": (OBEYED, {"prefix_allowed_tokens_fn": allowed}, ""),
    "synced_gpus": (REFUSED, {"synced_gpus": True}, ""),
    "assistant_model": (REFUSED, {"assistant_model": model("llama", seed=2)}, ""),
    "streamer": (OBEYED, None, "`test_transformers_rows.py`"),
    "negative_prompt_ids": (OBEYED, {"guidance_scale": 2.0, "negative_prompt_ids": IDS[:, 4:]}, ""),
    "negative_prompt_attention_mask": (
        OBEYED,
        {
            "guidance_scale": 2.0,
            "negative_prompt_ids": IDS,
            "negative_prompt_attention_mask": (IDS != 0).long(),
        },
        "",
    ),
    "custom_generate": (OBEYED, {}, ""),
}
MODEL: dict[str, Row] = {
    "attention_mask": (OBEYED, {"attention_mask": (IDS != 0).long()}, "refused where it pads on the right"),
    "position_ids": (OBEYED, {"position_ids": torch.arange(8)[None] + 3}, ""),
    "cache": (
        OBEYED,
        None,
        "`test_transformers_caches.py`; `past_key_values` before Transformers 5.24; a cache that is not of "
        "plain keys and values is refused",
    ),
    "inputs_embeds": (
        OBEYED,
        None,
        "`test_peft.py`",
    ),
    "token_type_ids": (
        OBEYED,
        {"token_type_ids": torch.ones_like(IDS)},
        "`test_transformers_prompted.py`: and any other input of a model, such as `pixel_values`",
    ),
    "tokenizer": (OBEYED, None, "for `stop_strings` it is that of `transformers_generate`"),
    "assistant_tokenizer": (IDLE, {"assistant_tokenizer": object()}, ""),
}
# The fields of GenerationConfig.
FIELDS: dict[str, Row] = {
    "max_length": (OBEYED, {"max_length": 13, "max_new_tokens": None}, ""),
    "max_new_tokens": (OBEYED, {"max_new_tokens": 5}, ""),
    "min_length": (OBEYED, {"min_length": 18}, ""),
    "min_new_tokens": (OBEYED, {"min_new_tokens": 9}, ""),
    "early_stopping": (IDLE, {"early_stopping": True}, "of beam search"),
    "max_time": (OBEYED, {"max_time": 1e-9}, ""),
    "stop_strings": (OBEYED, None, "`test_pipeline.py`; not as a field of `generation_config`"),
    "do_sample": (OBEYED, {**DRAWN, "top_k": 1}, ""),
    "num_beams": (REFUSED, {"num_beams": 2}, ""),
    "use_mtp": (REFUSED, {"use_mtp": True}, ""),
    "use_cache": (
        OBEYED,
        {"use_cache": True},
        "False is refused where the caller asks for it or it changes the text",
    ),
    "cache_implementation": (OBEYED, {**STATIC, **KEPT}, "quantized and offloaded are refused"),
    "cache_config": (
        REFUSED,
        {"cache_implementation": "offloaded", "cache_config": {}},
        "of quantized caches",
    ),
    "max_cache_len": (OBEYED, {**STATIC, **KEPT, "max_cache_len": 60}, ""),
    "temperature": (OBEYED, {**DRAWN, "temperature": 1e-5}, ""),
    "top_k": (OBEYED, {"do_sample": True, "top_k": 1}, ""),
    "top_p": (OBEYED, {**DRAWN, "top_p": 0.01}, ""),
    "min_p": (OBEYED, {**DRAWN, "min_p": 1.0}, ""),
    "top_h": (OBEYED, {**DRAWN, "top_h": 0.01}, ""),
    "typical_p": (OBEYED, {**DRAWN, "typical_p": 1e-6}, ""),
    "epsilon_cutoff": (OBEYED, {**DRAWN, "epsilon_cutoff": 0.999}, ""),
    "eta_cutoff": (OBEYED, {**DRAWN, "eta_cutoff": 0.9999, "output_scores": True, **KEPT}, ""),
    "repetition_penalty": (OBEYED, {"repetition_penalty": 1.5}, ""),
    "encoder_repetition_penalty": (OBEYED, {"encoder_repetition_penalty": 5.0}, ""),
    "length_penalty": (IDLE, {"length_penalty": 2.0}, "of beam search"),
    "no_repeat_ngram_size": (OBEYED, {"no_repeat_ngram_size": 2}, ""),
    "bad_words_ids": (OBEYED, {"bad_words_ids": [[1], [22, 8]]}, ""),
    "renormalize_logits": (OBEYED, {"renormalize_logits": True, "output_scores": True, **KEPT}, ""),
    "forced_bos_token_id": (OBEYED, {"inputs": IDS[:, -1:], "forced_bos_token_id": 6}, ""),
    "forced_eos_token_id": (OBEYED, {"forced_eos_token_id": 6}, ""),
    "remove_invalid_values": (OBEYED, {"remove_invalid_values": True}, ""),
    "exponential_decay_length_penalty": (OBEYED, {"exponential_decay_length_penalty": (3, 1.8)}, ""),
    "suppress_tokens": (OBEYED, {"suppress_tokens": [1, 10]}, ""),
    "begin_suppress_tokens": (OBEYED, {"begin_suppress_tokens": [1, 22]}, ""),
    "sequence_bias": (OBEYED, {"sequence_bias": [[[4], 6.0]]}, ""),
    "token_healing": (EARLIER, {"token_healing": True}, "it loses the tokenizer and raises"),
    "guidance_scale": (OBEYED, {"guidance_scale": 1.6}, ""),
    "watermarking_config": (OBEYED, {"watermarking_config": WatermarkingConfig(bias=5.0)}, ""),
    "num_return_sequences": (OBEYED, {"do_sample": True, "top_k": 1, "num_return_sequences": 3}, ""),
    "output_attentions": (REFUSED, {"output_attentions": True, **KEPT}, ""),
    "output_hidden_states": (REFUSED, {"output_hidden_states": True, **KEPT}, ""),
    "output_scores": (OBEYED, {"output_scores": True, **KEPT}, ""),
    "output_logits": (OBEYED, {"output_logits": True, **KEPT}, ""),
    "return_dict_in_generate": (OBEYED, KEPT, ""),
    "pad_token_id": (OBEYED, {"pad_token_id": 9}, ""),
    "bos_token_id": (OBEYED, {"inputs": None, "bos_token_id": 3}, ""),
    "eos_token_id": (OBEYED, {"eos_token_id": [4, 9, 10]}, ""),
    "encoder_no_repeat_ngram_size": (OBEYED, {"inputs": ONES, "encoder_no_repeat_ngram_size": 2}, ""),
    "decoder_start_token_id": (IDLE, {"decoder_start_token_id": 3}, "of encoder-decoder models"),
    "is_assistant": (REFUSED, {"is_assistant": True}, ""),
    "num_assistant_tokens": (IDLE, {"num_assistant_tokens": 3}, "of assisted decoding"),
    "num_assistant_tokens_schedule": (
        IDLE,
        {"num_assistant_tokens_schedule": "constant"},
        "of assisted decoding",
    ),
    "assistant_confidence_threshold": (IDLE, {"assistant_confidence_threshold": 0.9}, "of assisted decoding"),
    "prompt_lookup_num_tokens": (REFUSED, {"prompt_lookup_num_tokens": 3}, ""),
    "max_matching_ngram_size": (IDLE, {"max_matching_ngram_size": 3}, "of assisted decoding"),
    "assistant_early_exit": (REFUSED, {"assistant_early_exit": 1}, ""),
    "assistant_lookbehind": (IDLE, {"assistant_lookbehind": 3}, "of assisted decoding"),
    "target_lookbehind": (IDLE, {"target_lookbehind": 3}, "of assisted decoding"),
    "assistant_ensemble_weight": (IDLE, {"assistant_ensemble_weight": 0.5}, "of assisted decoding"),
    "speculation_type": (IDLE, {"speculation_type": "dflash"}, "of assisted decoding"),
    "compile_config": (REFUSED, {"compile_config": CompileConfig()}, ""),
    "disable_compile": (OBEYED, {"disable_compile": True}, "the model is never compiled"),
    "continuous_batching_config": (IDLE, None, "deprecated"),
    "low_memory": (IDLE, {"low_memory": True}, "of contrastive search"),
    "penalty_alpha": (REFUSED, {"penalty_alpha": 0.6, "top_k": 4}, ""),
    "dola_layers": (REFUSED, {"dola_layers": "low"}, ""),
    "diversity_penalty": (IDLE, {"diversity_penalty": 0.5}, "of beam search"),
    "num_beam_groups": (IDLE, {"num_beam_groups": 2}, "of beam search"),
    "constraints": (REFUSED, {"constraints": [object()]}, ""),
    "force_words_ids": (REFUSED, {"force_words_ids": [[3]]}, ""),
    "prefill_chunk_size": (OBEYED, {"prefill_chunk_size": 3}, "prompts are read in pieces of this size"),
}
NOTES = {"transformers_version"}  # fields that ask for nothing


def table() -> str:
    """The three tables as one, in markdown."""
    lines = ["| argument | what becomes of it | held by |", "|---|---|---|"]
    for name, (verdict, example, remark) in {**SIGNATURE, **MODEL, **FIELDS}.items():
        named = "" if example is None else f"`test_arguments[{name}]`"
        lines.append(f"| `{name}` | {verdict} | {'; '.join(part for part in (named, remark) if part)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
