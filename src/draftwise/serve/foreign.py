"""Fields that OpenAI, vLLM and llama.cpp take and this server does not: those that may be ignored, since they
change no text here, and those that are refused by name unless their value asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from reprlib import Repr
from typing import Any

from .refusal import SHOWN, Refusal

# Storage, caches, a guess of the answer, and how long an answer likes to be.
OPENAI = (
    "access_programs image max_tool_calls metadata prediction prompt_cache_key prompt_cache_options "
    "prompt_cache_retention service_tier store verbosity"
)
# Names of requests, scheduling, experts, inputs that are no text, beams, and slow tokenizers.
VLLM = (
    "length_penalty media_io_kwargs mm_payload mm_processor_kwargs priority request_id return_mm_kwargs "
    "return_token_offsets routed_experts_prompt_start session_id spaces_between_special_tokens "
    "stream_interval"
)
# Caches, slots, reports, and numbers of samplers that are off.
LLAMACPP = (
    "adaptive_decay backend_sampling cache_prompt dry_allowed_length dry_base dry_penalty_last_n "
    "dry_sequence_breakers dynatemp_exponent id_slot mirostat_eta mirostat_tau n_cache_reuse n_discard "
    "n_keep repeat_last_n return_progress sse_ping_interval timings_per_token verbose xtc_threshold"
)
IGNORED = frozenset(f"{OPENAI} {VLLM} {LLAMACPP}".split())

NEITHER: tuple[Any, ...] = (False,)
EMPTY: tuple[Any, ...] = ([], {}, "")

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": EMPTY,
    "background": NEITHER,
    "background_options": EMPTY,
    "context_management": EMPTY,
    "conversation": EMPTY,
    "function_call": ("none", "auto"),
    "functions": EMPTY,
    "modalities": (["text"],),
    "moderation": EMPTY,
    "previous_response_id": (),
    "prompt": (),
    "suffix": EMPTY,
    "truncation": ("disabled",),
    "web_search_options": (),
    # vLLM
    "cache_salt": (),
    "chat_template": (),
    "ec_transfer_params": EMPTY,
    "echo": NEITHER,
    "enable_response_messages": NEITHER,
    "include_reasoning": (True,),
    "kv_transfer_params": EMPTY,
    "logprob_token_ids": EMPTY,
    "previous_input_messages": EMPTY,
    "prompt_embeds": EMPTY,
    "prompt_logprobs": (),
    "repetition_detection": EMPTY,
    "return_prompt_text": NEITHER,
    "return_token_ids": NEITHER,
    "return_tokens_as_token_ids": NEITHER,
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": NEITHER,
    "vllm_xargs": EMPTY,
    "watermarking": NEITHER,
    # llama.cpp
    "adaptive_target": (-1,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar_lazy": NEITHER,
    "grammar_triggers": EMPTY,
    "lora": EMPTY,
    "min_keep": (0,),
    "mirostat": (0,),
    "n_indent": (0,),
    "n_probs": (0,),
    "post_sampling_probs": NEITHER,
    "preserved_tokens": EMPTY,
    "reasoning_budget_tokens": (-1,),
    "reasoning_format": ("none", "auto"),
    "repeat_penalty": (1,),
    "response_fields": EMPTY,
    "return_tokens": NEITHER,
    "samplers": EMPTY,
    "t_max_predict_ms": (0, -1),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
"""By name the values, besides null, that ask for nothing."""

INSTEAD = {
    "cache_salt": "start the server with --prefix-cache 0",
    "conversation": "send it whole, as input",
    "function_call": "give tool_choice",
    "functions": "give tools",
    "n_probs": "give logprobs",
    "previous_response_id": "no response is stored here; send the whole conversation as input",
    "prompt_logprobs": "give echo and logprobs to /v1/completions",
    "repeat_penalty": "give repetition_penalty, which counts the whole text",
}
SHORT = Repr()  # a value may be megabytes, nested a thousand times
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = 2 * SHOWN


def shown(value: Any) -> str:
    """A value in an error: short, and in ASCII."""
    text = SHORT.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def translated(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """A body in the fields that are its `own`, besides those that are unknown everywhere.

    Raises:
        Refusal: a field asks for something that is not done here.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name in own or name not in IGNORED | REFUSED.keys() | OTHERWISE.keys():
            kept[name] = value
        elif name in REFUSED and value is not None and value not in REFUSED[name]:
            remedy = INSTEAD.get(name, "leave it out")
            said = f"{name}={shown(value)} is not done here: {remedy}"
            raise Refusal(said, code="unsupported_parameter", param=name)
    for name in OTHERWISE.keys() & given.keys() - own:
        if given[name] is None:
            continue
        for mine, value in OTHERWISE[name](given[name]).items():
            if kept.get(mine) is not None:
                raise Refusal(f"{name} and {mine} exclude each other: give one", param=name)
            kept[mine] = value
    return kept


def _structured(asked: Any) -> dict[str, Any]:
    """vLLM's `structured_outputs` in fields of this server.

    Raises:
        Refusal: it asks for something else.
    """
    if not isinstance(asked, dict):
        raise Refusal(f"structured_outputs={shown(asked)}: give an object", param="structured_outputs")
    found: dict[str, Any] = {}
    for kind, value in asked.items():
        if kind in ("regex", "grammar"):
            found[kind] = value
        elif kind == "json" and value is not None:
            found |= _schema(value)
        elif kind == "json_object" and value:
            found["response_format"] = {"type": "json_object"}
        elif kind == "choice" and value is not None:
            found["grammar"] = _choice(value)
        elif kind != "disable_any_whitespace" and value:  # there is none that could be left out
            said = f"structured_outputs.{kind[:SHOWN]}={shown(value)} is not done here: leave it out"
            raise Refusal(said, param="structured_outputs")
    return found


def _choice(asked: Any) -> str:
    if not isinstance(asked, list) or not asked or not all(isinstance(one, str) and one for one in asked):
        raise Refusal("structured_outputs.choice: give a list of texts", param="structured_outputs")
    return "start: " + " | ".join(json.dumps(one) for one in asked)


def _schema(asked: Any) -> dict[str, Any]:
    try:
        schema = json.loads(asked) if isinstance(asked, str) else asked
    except (ValueError, RecursionError):
        said = f"the schema {shown(asked)} is no JSON: repair it"
        raise Refusal(said, param="structured_outputs") from None
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


OTHERWISE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "structured_outputs": _structured,
    "json_schema": _schema,
    "n_predict": lambda most: {"max_tokens": None if most == -1 else most},
    "n_cmpl": lambda n: {"n": n},
}
"""Fields of others that this server has under another name."""
