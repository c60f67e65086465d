"""Conversations: messages and variables for the chat template, and the chat that a body of `/v1/responses`
stands for."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from .bodies import (
    Chat,
    Item,
    ItemChoice,
    ItemFormat,
    ItemText,
    Message,
    Part,
    Responses,
    SamplingBody,
    TemplateBody,
    ToolCall,
)
from .errors import APIError

VARIABLES = ("reasoning_effort", "documents", "add_generation_prompt", "continue_final_message")  # of a body
COPIED = ("name", "tool_call_id", "reasoning_content")  # of a message, where they are given
ALIASES = {"messages": "input", "response_format": "text", "grammar": "text"}
SHARED = (*SamplingBody.model_fields, "parallel_tool_calls", "chat_template_kwargs")
REQUIRED = {"message": ("role", "content"), "function_call": ("call_id", "name", "arguments")}


def template_messages(messages: Sequence[Message], *, as_text: bool = False) -> list[dict[str, Any]]:
    """Return messages as the chat template takes them, arguments of calls as objects or `as_text`."""
    result = []
    for i, message in enumerate(messages):
        content, calls = message.content, message.tool_calls
        if content is None and not calls:
            raise APIError(f"messages.{i}.content is missing: give it", param="messages")
        role = "system" if message.role == "developer" else message.role
        fields: dict[str, Any] = {"role": role, "content": _join(content)}
        fields |= {key: value for key in COPIED if (value := getattr(message, key))}
        if calls:
            if message.role != "assistant":
                raise APIError(f"messages.{i}.tool_calls: only an assistant calls tools", param="messages")
            fields["tool_calls"] = [_template_call(call, as_text) for call in calls]
        result.append(fields)
    return result


def _template_call(call: ToolCall, as_text: bool) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        shown = ascii(call.function.arguments[:40])
        raise APIError(f"tool_calls: the arguments {shown} are no JSON", param="messages") from None
    arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def template_variables(body: TemplateBody, tokenizer: Any) -> dict[str, Any]:
    """Return the variables of the chat template besides messages and tools, as vLLM sets them."""
    variables = {name: value for name in VARIABLES if (value := getattr(body, name)) is not None}
    if body.reasoning_effort is not None:
        variables["enable_thinking"] = body.reasoning_effort != "none"
    own = body.chat_template_kwargs or {}
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters, *VARIABLES[1:]}
    if wrong := sorted({*reserved, "messages", "chat_template"} & own.keys()):
        message = f"chat_template_kwargs: {wrong[0]!r} is no variable of the template; leave it out"
        raise APIError(message, param="chat_template_kwargs")
    return variables | own


def as_chat(body: Responses) -> Chat:
    """Return the chat that a body of `/v1/responses` stands for."""
    text = isinstance(body.input, str)
    messages = [{"role": "user", "content": body.input}] if text else _item_messages(body.input)
    if not messages:
        raise APIError("input has no message: give one", param="input")
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    choice: Any = body.tool_choice
    if isinstance(choice, ItemChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    tools = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools or ()
    ]
    fields = {name: getattr(body, name) for name in SHARED}
    fields |= {"messages": messages, "tools": tools or None, "tool_choice": choice}
    fields |= {"max_completion_tokens": body.max_output_tokens}
    fields |= {"reasoning_effort": body.reasoning.effort if body.reasoning else None}
    if response_format := _response_format(body.text.format if body.text else None):
        if body.response_format is not None:
            raise APIError("text.format and response_format exclude each other: give one", param="text")
        fields["response_format"] = response_format
    try:
        return Chat(**fields)
    except ValidationError as error:  # calls in a row make one message, which holds only so many
        first = error.errors()[0]
        raise APIError(f"input: {first['loc'][-1]}: {first['msg']}", param="input") from None


def rename_fields(error: APIError) -> APIError:
    """Return an error of the chat that a body stands for by the names of the body."""
    error.param = ALIASES.get(error.param or "", error.param)
    error.message = error.message.replace("response_format", "text.format")
    return error


def _response_format(form: ItemFormat | None) -> dict[str, Any] | None:
    if form is None or form.type != "json_schema":
        return None if form is None else {"type": form.type}
    if form.schema_ is None:
        raise APIError("text.format.schema is missing: give it", param="text")
    schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
    return {"type": form.type, "json_schema": schema}


def _item_messages(items: Any) -> list[dict[str, Any]]:
    """Return messages; calls that follow each other belong to one of an assistant."""
    messages: list[dict[str, Any]] = []
    item: Item
    for i, item in enumerate(items):
        if item.type == "reasoning":
            continue
        for name in REQUIRED.get(item.type, ("call_id", "output")):
            if getattr(item, name) is None:
                raise APIError(f"input.{i}.{name} is missing: give it", param="input")
        if item.type == "message":
            messages.append({"role": item.role, "content": _join(item.content)})
        elif item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _join(item.output)})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _join(content: str | Sequence[Part | ItemText] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())
