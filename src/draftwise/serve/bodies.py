"""The bodies of requests: OpenAI's fields, and some of vLLM's and our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from reprlib import Repr
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .errors import MAX_SHOWN, APIError

MAX_SAMPLES, MAX_STOPS, MAX_TOPS, MAX_FIELDS, MAX_ENTRIES = 128, 16, 20, 64, 1024
MAX_INT = 2**63 - 1
DEFAULT_TOKENS = 16  # of a plain completion that does not say how many


def check_size(fields: Any, most: int) -> Any:
    """Reject an object of very many fields: an error for each of a million would take gigabytes."""
    if isinstance(fields, dict) and len(fields) > most:
        raise ValueError(f"{len(fields)} fields: give at most {most}")
    return fields


def check_finite(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object: Python reads NaN and Infinity, which an answer cannot hold."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("JSON has no NaN and no Infinity: give a finite number") from None
    return value


T = TypeVar("T")
# Of a list only the first error is reported.
Items = Annotated[list[T], Field(fail_fast=True)]
NonEmpty = Annotated[list[T], Field(min_length=1, fail_fast=True)]
UpTo128 = Annotated[list[T], Field(max_length=128, fail_fast=True)]
UpTo16 = Annotated[list[T], Field(max_length=MAX_STOPS, fail_fast=True)]
Empty = Annotated[list[Any] | dict[str, Any] | None, Field(max_length=0)]
Object = Annotated[dict[str, Any], AfterValidator(check_finite)]
Entries = Annotated[dict[str, T], BeforeValidator(lambda fields: check_size(fields, MAX_ENTRIES))]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]
Stop = Annotated[str, Field(max_length=4096)]
Word = Annotated[str, Field(min_length=1, max_length=4096)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolMode = Literal["none", "auto", "required"]
FormKind = Literal["text", "json_object", "json_schema"]


class StrictModel(BaseModel):
    """No field is converted, none is unknown, and no number is infinite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def limit_fields(cls, fields: Any) -> Any:
        return check_size(fields, MAX_FIELDS)


class Speculative(StrictModel):
    policy: str | None = None
    max_length: Count | None = None
    drafters: UpTo128[str] | None = None


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    include_drafters: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(StrictModel):
    name: str | None = None
    description: str | None = None
    schema_: Object | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    type: FormKind
    json_schema: JsonSchema | None = None


class Body(StrictModel):
    """The body of a request, which may have fields of other servers."""

    @model_validator(mode="before")
    @classmethod
    def translate(cls, fields: Any) -> Any:
        return translate_fields(fields, cls.model_fields) if isinstance(fields, dict) else fields


class SamplingBody(Body):
    """The fields of all routes that generate."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=MAX_INT)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: Entries[Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    allowed_token_ids: NonEmpty[Count] | None = None
    bad_words: UpTo16[Word] | None = None
    seed: int | None = Field(None, ge=-MAX_INT - 1, le=MAX_INT)
    stop: Stop | UpTo16[Stop] | None = None
    stop_token_ids: Annotated[Items[Count], Field(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    speculative: bool | Speculative | None = None
    user: str | None = None
    safety_identifier: str | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None


class GenerationBody(SamplingBody):
    n: int | None = Field(None, ge=1, le=MAX_SAMPLES)
    max_tokens: Count | None = None
    stream_options: StreamOptions | None = None

    @property
    def samples(self) -> int:
        """Texts for each prompt."""
        return self.n or 1


class Completion(GenerationBody):
    """The body of `/v1/completions`."""

    prompt: str | Items[str] | Items[int] | Items[Items[int]]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOPS)
    best_of: int | None = Field(None, ge=1, le=MAX_SAMPLES)
    add_special_tokens: bool | None = None

    @property
    def tops(self) -> int | None:
        """Most likely tokens to report in place of each; None: no log-probabilities at all."""
        return self.logprobs

    @property
    def length(self) -> int | None:
        """Most tokens to write; None: as many as the window holds."""
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens


class TemplateBody(Body):
    """Variables of the chat template besides messages and tools."""

    reasoning_effort: Effort | None = None
    chat_template_kwargs: Object | None = None
    documents: UpTo128[Entries[str]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class Part(StrictModel):
    """A piece of a message's content; marks for caches change nothing here."""

    type: Literal["text"]
    text: str
    cache_control: Any = None
    prompt_cache_breakpoint: Any = None


class FunctionCall(StrictModel):
    name: str
    arguments: str
    parsed_arguments: Any = None  # which OpenAI's library adds to an answer, like `index` and `parsed`


class ToolCall(StrictModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Any = None


class Function(StrictModel):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(StrictModel):
    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    name: str


class ToolChoice(StrictModel):
    type: Literal["function"]
    function: FunctionName


class Message(StrictModel):
    """One message of a conversation; the fields of an answer of ours may come back as they were."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | NonEmpty[Part] | None = None
    name: str | None = None
    tool_calls: UpTo128[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    annotations: Empty = None
    function_call: None = None
    reasoning_content: str | None = None
    parsed: Any = None


class Chat(GenerationBody, TemplateBody):
    """The body of `/v1/chat/completions`."""

    messages: NonEmpty[Message]
    max_completion_tokens: Positive | None = None
    add_special_tokens: Literal[False] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOPS)
    tools: UpTo128[Tool] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def tops(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def length(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class Tokenize(TemplateBody):
    """The body of `/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: NonEmpty[Message] | None = None
    tools: UpTo128[Tool] | None = None
    return_token_strs: bool | None = None
    add_special_tokens: bool | None = None


class Detokenize(StrictModel):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: Items[Count]


class ItemText(StrictModel):
    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None  # changes nothing here


class Item(StrictModel):
    """A message, a call of a tool, its result, or reasoning, which is not read again; an answer of ours may
    come back as it was."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Items[ItemText] | None = None
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | Items[ItemText] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    summary: Empty = None
    encrypted_content: None = None


class ItemFormat(JsonSchema):
    type: FormKind


class TextSettings(StrictModel):
    format: ItemFormat | None = None
    verbosity: Any = None  # changes nothing here


class ItemTool(Function):
    type: Literal["function"]


class ItemChoice(FunctionName):
    type: Literal["function"]


class Obfuscation(StrictModel):
    include_obfuscation: bool | None = None


class Reasoning(StrictModel):
    """How much to think; an answer has all of it, or nothing."""

    effort: Effort | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


# Log-probabilities are not part of responses here; the rest belongs to tools that OpenAI runs.
Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Responses(SamplingBody):
    """The body of `/v1/responses`."""

    input: str | NonEmpty[Item]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    text: TextSettings | None = None
    tools: UpTo128[ItemTool] | None = None
    tool_choice: ToolMode | ItemChoice | None = None
    parallel_tool_calls: bool | None = None
    stream_options: Obfuscation | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: Object | None = None
    include: Annotated[list[Included], Field(max_length=8)] | None = None
    top_logprobs: Literal[0] | None = None
    metadata: Object | None = None


# -- fields of other servers -----------------------------------------------------------------------------


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
    """Return a body in its `own` fields and unknown ones; an `APIError` names what is not done here."""
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
