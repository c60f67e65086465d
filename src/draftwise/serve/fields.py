"""The bodies of requests, field by field: what OpenAI's API has, and a few fields of vLLM and of our own."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from .foreign import translated

MOST_TEXTS, MOST_STOPS, MOST_TOPS, MOST_TOOLS, MOST_FIELDS, MOST_IDS = 128, 16, 20, 128, 64, 1024
WHOLE = 2**63 - 1

T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list in which the first thing that is wrong is the only one said."""

Unset = Annotated[list[Any] | dict[str, Any] | None, Field(max_length=0)]
"""A field that may be there if it is empty."""


def finite(given: dict[str, Any]) -> dict[str, Any]:
    """The object itself: Python reads NaN and Infinity, which an answer cannot hold.

    Raises:
        ValueError: it has one of them.
    """
    try:
        json.dumps(given, allow_nan=False)
    except ValueError:
        raise ValueError("JSON has no NaN and no Infinity: give a finite number") from None
    return given


Object = Annotated[dict[str, Any], AfterValidator(finite)]
"""Any object of JSON."""


Stop = Annotated[str, Field(max_length=4096)]
Word = Annotated[str, Field(min_length=1, max_length=4096)]
Tokens = Several[Annotated[int, Field(ge=0, le=WHOLE)]]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Strict(BaseModel):
    """No field is converted, none is unknown, and no number is infinite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def few(cls, given: Any) -> Any:
        """An error for each of a million unknown fields would take gigabytes."""
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ValueError(f"{len(given)} fields: give at most {MOST_FIELDS}")
        return given


class Speculative(Strict):
    """How much to speculate for one request."""

    policy: str | None = None
    max_length: int | None = Field(None, ge=0, le=WHOLE)
    drafters: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None


class StreamOptions(Strict):
    """What a stream tells besides the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    include_drafters: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Strict):
    """A schema for the answer."""

    name: str | None = None
    description: str | None = None
    schema_: Object | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Body(Strict):
    """The body of a request, which may have fields of other servers."""

    @model_validator(mode="before")
    @classmethod
    def own(cls, given: Any) -> Any:
        """The fields of this server."""
        return translated(given, cls.model_fields) if isinstance(given, dict) else given


class Sampled(Body):
    """The fields that all routes for texts share."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=WHOLE)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = Field(None, max_length=1024)
    allowed_token_ids: Annotated[Tokens, Field(min_length=1)] | None = None
    bad_words: Annotated[list[Word], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    seed: int | None = Field(None, ge=-WHOLE - 1, le=WHOLE)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[Tokens, Field(max_length=MOST_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=WHOLE)
    ignore_eos: bool | None = None
    stream: bool | None = None
    speculative: bool | Speculative | None = None
    user: str | None = None
    safety_identifier: str | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None


class Settings(Sampled):
    """The fields that chat and plain completions share."""

    n: int | None = Field(None, ge=1, le=MOST_TEXTS)
    max_tokens: int | None = Field(None, ge=0, le=WHOLE)
    stream_options: StreamOptions | None = None


class Completion(Settings):
    """The body of `/v1/completions`."""

    prompt: str | Several[str] | Several[int] | Several[Several[int]]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_TOPS)
    best_of: int | None = Field(None, ge=1, le=MOST_TEXTS)
    add_special_tokens: bool | None = None


class Templated(Body):
    """What a chat template is given besides messages and tools."""

    reasoning_effort: Effort | None = None
    chat_template_kwargs: Object | None = None
    documents: Annotated[list[dict[str, str]], Field(max_length=128, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class Part(Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str
    # Marks for caches change nothing here.
    cache_control: Any = None
    prompt_cache_breakpoint: Any = None


class Called(Strict):
    """The name of a function, and what it was given, as JSON."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call of a tool, as an answer had it."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Called


class Function(Strict):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool."""

    type: Literal["function"]
    function: Function


class Named(Strict):
    """The name of a function."""

    name: str


class Choice(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: Named


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(min_length=1, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    # An answer of ours may come back as it was.
    refusal: None = None
    audio: None = None
    annotations: Unset = None
    function_call: None = None
    reasoning_content: str | None = None


class Chat(Settings, Templated):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = Field(None, ge=1, le=WHOLE)
    add_special_tokens: Literal[False] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOPS)
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None


class Tokenize(Templated):
    """The body of `/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    return_token_strs: bool | None = None
    add_special_tokens: bool | None = None


class Detokenize(Strict):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: Tokens
