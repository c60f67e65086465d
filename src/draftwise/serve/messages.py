"""The messages of a conversation, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .fields import Message, ToolCall
from .refusal import Refusal

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
