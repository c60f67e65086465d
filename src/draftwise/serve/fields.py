"""The bodies of requests, field by field: what OpenAI's API has, and a few fields of vLLM and of our own."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MOST_TEXTS, MOST_STOPS, MOST_TOPS, MOST_TOOLS, MOST_FIELDS = 128, 16, 20, 128, 64
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
    continuous_usage_stats: Literal[False] | None = None


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


class Settings(Strict):
    """The fields that chat and plain completions share."""

    model: str
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=WHOLE)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = Field(None, max_length=1024)
    seed: int | None = Field(None, ge=-WHOLE - 1, le=WHOLE)
    n: int | None = Field(None, ge=1, le=MOST_TEXTS)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    max_tokens: int | None = Field(None, ge=0, le=WHOLE)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculative: bool | Speculative | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None
    # These change no text here.
    user: str | None = None
    metadata: Object | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class Completion(Settings):
    """The body of `/v1/completions`."""

    prompt: str | Several[str] | Several[int] | Several[Several[int]]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_TOPS)
    best_of: int | None = Field(None, ge=1, le=MOST_TEXTS)
    suffix: Literal[""] | None = None


class Part(Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


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


class Chat(Settings):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = Field(None, ge=1, le=WHOLE)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOPS)
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    functions: Unset = None
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None  # a guess of the answer: it changes no text
    verbosity: Literal["medium"] | None = None


class Tokenize(Strict):
    """The body of `/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: Literal[True] | None = None


class Detokenize(Strict):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: Several[Annotated[int, Field(ge=0, le=WHOLE)]]
