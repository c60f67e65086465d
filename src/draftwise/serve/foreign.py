"""Fields that OpenAI, vLLM and llama.cpp take and this server does not: those that may be ignored, since they
change no text here, and those that are refused by name unless their value asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from reprlib import Repr
from typing import Any

from .errors import MAX_SHOWN, APIError

# Storage, caches, a guess of the answer, and how long an answer likes to be (OpenAI); names of requests,
# scheduling, experts, inputs that are no text, beams and slow tokenizers (vLLM); caches, slots, reports, and
# numbers of samplers that are off (llama.cpp).
_IGNORED = (
    "access_programs image max_tool_calls metadata prediction prompt_cache_key prompt_cache_options "
    "prompt_cache_retention service_tier store verbosity "
    "length_penalty media_io_kwargs mm_payload mm_processor_kwargs priority request_id return_mm_kwargs "
    "return_token_offsets routed_experts_prompt_start session_id spaces_between_special_tokens "
    "stream_interval "
    "adaptive_decay backend_sampling cache_prompt dry_allowed_length dry_base dry_penalty_last_n "
    "dry_sequence_breakers dynatemp_exponent id_slot mirostat_eta mirostat_tau n_cache_reuse n_discard "
    "n_keep repeat_last_n return_progress sse_ping_interval timings_per_token verbose xtc_threshold"
)
IGNORED = frozenset(_IGNORED.split())
_REFUSED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (
        "cache_salt chat_template previous_response_id prompt prompt_logprobs thinking_token_budget "
        "truncate_prompt_tokens truncation_side web_search_options",
        (),
    ),
    (
        "background echo enable_response_messages grammar_lazy post_sampling_probs return_prompt_text "
        "return_token_ids return_tokens return_tokens_as_token_ids use_beam_search watermarking",
        (False,),
    ),
    (
        "audio background_options context_management conversation ec_transfer_params functions "
        "grammar_triggers kv_transfer_params logprob_token_ids lora moderation preserved_tokens "
        "previous_input_messages prompt_embeds repetition_detection response_fields samplers suffix "
        "vllm_xargs",
        ([], {}, ""),
    ),
    ("dry_multiplier dynatemp_range min_keep mirostat n_indent n_probs xtc_probability", (0,)),
    ("adaptive_target reasoning_budget_tokens top_n_sigma", (-1,)),
    ("repeat_penalty typical_p", (1,)),
    ("function_call", ("none", "auto")),
    ("include_reasoning", (True,)),
    ("modalities", (["text"],)),
    ("reasoning_format", ("none", "auto")),
    ("t_max_predict_ms", (0, -1)),
    ("truncation", ("disabled",)),
)
REFUSED = {name: values for names, values in _REFUSED for name in names.split()}
"""By name the values, besides null, that ask for nothing."""

REMEDIES = {
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
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = 2 * MAX_SHOWN


def show_value(value: Any) -> str:
    """Return a value for an error message: short, and in ASCII."""
    text = SHORT.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def translate_fields(fields: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return a body in the fields that are its `own`, besides those that are unknown everywhere.

    Raises:
        APIError: a field asks for something that is not done here.
    """
    result: dict[str, Any] = {}
    for name, value in fields.items():
        if name in own or name not in IGNORED | REFUSED.keys() | ALIASES.keys():
            result[name] = value
        elif name in REFUSED and value is not None and value not in REFUSED[name]:
            remedy = REMEDIES.get(name, "leave it out")
            message = f"{name}={show_value(value)} is not done here: {remedy}"
            raise APIError(message, code="unsupported_parameter", param=name)
    for name in ALIASES.keys() & fields.keys() - own:
        if fields[name] is None:
            continue
        for alias, value in ALIASES[name](fields[name]).items():
            if result.get(alias) is not None:
                raise APIError(f"{name} and {alias} exclude each other: give one", param=name)
            result[alias] = value
    return result


def _structured_outputs(value: Any) -> dict[str, Any]:
    """Translate vLLM's `structured_outputs`."""
    name = "structured_outputs"
    if not isinstance(value, dict):
        raise APIError(f"{name}={show_value(value)}: give an object", param=name)
    fields: dict[str, Any] = {}
    for kind, inner in value.items():
        if kind in ("regex", "grammar"):
            fields[kind] = inner
        elif kind == "json" and inner is not None:
            fields |= _json_schema(inner)
        elif kind == "json_object" and inner:
            fields["response_format"] = {"type": "json_object"}
        elif kind == "choice" and inner is not None:
            if not isinstance(inner, list) or not inner or not all(isinstance(x, str) and x for x in inner):
                raise APIError(f"{name}.choice: give a list of texts", param=name)
            fields["grammar"] = "start: " + " | ".join(map(json.dumps, inner))
        elif kind != "disable_any_whitespace" and inner:  # there is none that could be left out
            message = f"{name}.{kind[:MAX_SHOWN]}={show_value(inner)} is not done here: leave it out"
            raise APIError(message, param=name)
    return fields


def _json_schema(value: Any) -> dict[str, Any]:
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        message = f"the schema {show_value(value)} is no JSON: repair it"
        raise APIError(message, param="structured_outputs") from None
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


ALIASES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "structured_outputs": _structured_outputs,
    "json_schema": _json_schema,
    "n_predict": lambda count: {"max_tokens": None if count == -1 else count},
    "n_cmpl": lambda n: {"n": n},
}
"""Fields of others that this server has under another name."""
