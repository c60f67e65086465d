"""The body of `/v1/responses`, and the chat that it stands for; nothing is stored: its input is all."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from .fields import MOST_TOOLS, WHOLE, Chat, Effort, Function, Object, Sampled, Several, Strict, Unset
from .refusal import Refusal

# Log-probabilities are not told here; the rest belongs to tools that OpenAI runs.
Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Text(Strict):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None  # changes nothing here


class Item(Strict):
    """A message, a call of a tool, what a tool answered, or reasoning, which is not read again."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Several[Text] | None = None
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | Several[Text] | None = None
    # An answer of ours may come back as it was.
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    summary: Unset = None
    encrypted_content: None = None


class Form(Strict):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Object | None = Field(None, alias="schema")
    strict: bool | None = None


class TextSettings(Strict):
    """Settings of the text."""

    format: Form | None = None
    verbosity: Any = None  # changes nothing here


class FlatTool(Function):
    """A function that the model may call."""

    type: Literal["function"]


class FlatChoice(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class Obfuscation(Strict):
    """Changes nothing here."""

    include_obfuscation: bool | None = None


class Reasoning(Strict):
    """How much to think; what is told of it here is all of it, or nothing."""

    effort: Effort | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class Responses(Sampled):
    """The body of `/v1/responses`."""

    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=WHOLE)
    text: TextSettings | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    stream_options: Obfuscation | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: Object | None = None
    include: Annotated[list[Included], Field(max_length=8)] | None = None
    top_logprobs: Literal[0] | None = None
    metadata: Object | None = None


NAMES = {"messages": "input", "response_format": "text", "grammar": "text"}
SAME = (*Sampled.model_fields, "parallel_tool_calls", "chat_template_kwargs")


def chat(body: Responses) -> Chat:
    """The chat that a body stands for.

    Raises:
        Refusal: it asks for a form twice, or an item lacks something.
    """
    talk = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _messages(body.input)
    if not talk:
        raise Refusal("input has no message: give one", param="input")
    if body.instructions is not None:
        talk = [{"role": "system", "content": body.instructions}, *talk]
    choice = body.tool_choice
    named = (
        {"type": "function", "function": {"name": choice.name}} if isinstance(choice, FlatChoice) else choice
    )
    tools = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools or ()
    ]
    made = {name: getattr(body, name) for name in SAME}
    made |= {"messages": talk, "tools": tools or None, "tool_choice": named}
    made |= {"max_completion_tokens": body.max_output_tokens}
    made |= {"reasoning_effort": body.reasoning.effort if body.reasoning else None}
    if asked := _form(body.text.format if body.text else None):
        if body.response_format is not None:
            raise Refusal("text.format and response_format exclude each other: give one", param="text")
        made["response_format"] = asked
    try:
        return Chat(**made)
    except ValidationError as error:  # calls in a row make one message, which holds only so many
        first = error.errors()[0]
        raise Refusal(f"input: {first['loc'][-1]}: {first['msg']}", param="input") from None


def renamed(refusal: Refusal) -> Refusal:
    """A refusal of the chat that a body stands for, by the names of the body."""
    refusal.param = NAMES.get(refusal.param or "", refusal.param)
    refusal.message = refusal.message.replace("response_format", "text.format")
    return refusal


def _form(form: Form | None) -> dict[str, Any] | None:
    if form is None or form.type != "json_schema":
        return None if form is None else {"type": form.type}
    if form.schema_ is None:
        raise Refusal("text.format.schema is missing: give it", param="text")
    schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
    return {"type": form.type, "json_schema": schema}


def _messages(items: list[Item]) -> list[dict[str, Any]]:
    """Messages; calls that follow each other belong to one of an assistant."""
    found: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        if item.type == "reasoning":
            continue
        needed = {"message": ("role", "content"), "function_call": ("call_id", "name", "arguments")}
        for name in needed.get(item.type, ("call_id", "output")):
            if getattr(item, name) is None:
                raise Refusal(f"input.{place}.{name} is missing: give it", param="input")
        if item.type == "message":
            found.append({"role": item.role, "content": _text(item.content)})
        elif item.type == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        else:
            called = {"name": item.name, "arguments": item.arguments}
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            calls = found[-1].setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": called})
    return found


def _text(content: str | list[Text] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())
