"""The messages of a conversation, as chat templates take them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

from .fields import Message, Templated, ToolCall
from .refusal import Refusal

GIVEN = ("reasoning_effort", "documents", "add_generation_prompt", "continue_final_message")  # of a body
NAMED = ("name", "tool_call_id", "reasoning_content")  # of a message, where they are given


def messages(given: Sequence[Message], *, as_text: bool = False) -> list[dict[str, Any]]:
    """Messages as the chat template takes them, arguments of calls as objects or `as_text`; the parts of a
    content are joined.

    Raises:
        Refusal: one without content, or calls whose arguments are no JSON.
    """
    found = []
    for place, message in enumerate(given):
        content, calls = message.content, message.tool_calls
        if content is None and not calls:
            raise Refusal(f"messages.{place}.content is missing: give it", param="messages")
        text = content if isinstance(content, str) else "".join(part.text for part in content or ())
        one: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
        one["content"] = text
        one |= {key: value for key in NAMED if (value := getattr(message, key))}
        if calls:
            if message.role != "assistant":
                raise Refusal(f"messages.{place}.tool_calls: only an assistant calls tools", param="messages")
            one["tool_calls"] = [_called(call, as_text) for call in calls]
        found.append(one)
    return found


def variables(body: Templated, tokenizer: Any) -> dict[str, Any]:
    """What the chat template is given besides messages and tools, as vLLM gives it.

    Raises:
        Refusal: a variable has the name of something else that the template, or its renderer, is given.
    """
    given = {name: value for name in GIVEN if (value := getattr(body, name)) is not None}
    if body.reasoning_effort is not None:
        given["enable_thinking"] = body.reasoning_effort != "none"
    own = body.chat_template_kwargs or {}
    named = inspect.signature(tokenizer.apply_chat_template).parameters
    if wrong := sorted({*named, *GIVEN[1:], "messages", "chat_template"} & own.keys()):
        said = f"chat_template_kwargs: {wrong[0]!r} is no variable of the template; leave it out"
        raise Refusal(said, param="chat_template_kwargs")
    return given | own


def _called(call: ToolCall, as_text: bool) -> dict[str, Any]:
    """A call as the template takes it."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        shown = ascii(call.function.arguments[:40])
        raise Refusal(f"tool_calls: the arguments {shown} are no JSON", param="messages") from None
    named = {
        "name": call.function.name,
        "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
    }
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": named}
