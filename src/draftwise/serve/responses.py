"""`/v1/responses`: the chat that a body stands for, and its answer, whole or as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from pydantic import ValidationError

from .answers import ChatAnswer, Json, metrics
from .bodies import Chat, Item, ItemChoice, ItemFormat, Responses, SamplingBody
from .errors import APIError
from .generations import Event
from .requests import join_content
from .tools import AnswerPart

ALIASES = {"messages": "input", "response_format": "text", "grammar": "text"}
SHARED = (*SamplingBody.model_fields, "parallel_tool_calls", "chat_template_kwargs")
REQUIRED = {"message": ("role", "content"), "function_call": ("call_id", "name", "arguments")}


class ItemAnswer(ChatAnswer):
    """The answer to one request to `/v1/responses`, as items: reasoning, a message, and calls of tools.

    `request` is its body, which `parsed` has as a chat.
    """

    prefix = "resp_"
    end = ""

    def __init__(self, *parts: Any, request: Responses) -> None:
        super().__init__(*parts)
        self.request = request
        self.output: list[Json] = []
        self.open: Json | None = None  # the message or reasoning that is being written
        self.reasoning = ""
        self.number, self.finish_reason = 0, ""

    def whole(self, events: Sequence[Event]) -> Json:
        self.chunks(events[0])
        return self._response(is_over=True)

    # -- in pieces ------------------------------------------------------------------------------------

    def opening_chunks(self) -> list[Json]:
        """Return the first events: the response has been made, and is under way."""
        return [
            self._event(f"response.{kind}", response=self._response()) for kind in ("created", "in_progress")
        ]

    def chunks(self, event: Event) -> list[Json]:
        events: list[Json] = []
        for part in self._parse(event):
            text = part.text or part.reasoning
            events += self._add_call(part) if part.name else self._write(text, bool(part.reasoning))
        if event.is_last:
            self.finish_reason = event.finish_reason
            if not self.output and self.open is None:
                events += self._write("")
            events += self._close()
        return events

    def closing_chunks(self) -> list[Json]:
        """Return the event that ends a stream, with the response."""
        response = self._response(is_over=True)
        return [self._event(f"response.{response['status']}", response=response)]

    def error_chunk(self, error: APIError) -> Json:
        fields = error.body["error"]
        code = fields["code"] or fields["type"]
        return self._event("error", code=code, message=fields["message"], param=fields["param"])

    def to_event(self, chunk: Json) -> str:
        return f"event: {chunk['type']}\n{super().to_event(chunk)}"

    def _event(self, kind: str, **fields: Any) -> Json:
        self.number += 1
        return {"type": kind, "sequence_number": self.number - 1} | fields

    # -- items ----------------------------------------------------------------------------------------

    def _write(self, text: str, is_reasoning: bool = False) -> list[Json]:
        """Write a piece of text or of reasoning; the first one opens an item of its kind."""
        kind = "reasoning" if is_reasoning else "message"
        events = self._close() if self.open is not None and self.open["type"] != kind else []
        if self.open is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.open = {"id": f"msg_{token_hex(12)}", "type": kind, "role": "assistant", "content": []}
            if is_reasoning:
                part = {"type": "reasoning_text", "text": ""}
                self.open = {"id": f"rs_{token_hex(12)}", "type": kind, "summary": [], "content": []}
            events.append(self._item_event("added", self.open | {"status": "in_progress"}))
            events.append(self._event("response.content_part.added", **self._place, part=part))
            self.open["content"] = [part]
        self.open["content"][0]["text"] += text
        self.reasoning += text if is_reasoning else ""
        return [*events, self._text_event("delta", delta=text)] if text else events

    def _close(self) -> list[Json]:
        """End the item that is being written, if there is one."""
        if self.open is None:
            return []
        (part,) = self.open["content"]
        item = self.open | {"status": "completed" if self.finish_reason != "length" else "incomplete"}
        events = [
            self._text_event("done", text=part["text"]),
            self._event("response.content_part.done", **self._place, part=part),
            self._item_event("done", item),
        ]
        self.output.append(item)
        self.open = None
        return events

    def _add_call(self, call: AnswerPart) -> list[Json]:
        """Add a whole call, which ends the message before it."""
        events = self._close()
        item = {"id": f"fc_{token_hex(12)}", "type": "function_call", "call_id": call.id, "name": call.name}
        done = item | {"arguments": call.arguments, "status": "completed"}
        place = {"item_id": item["id"], "output_index": len(self.output)}
        kind = "response.function_call_arguments"
        events += [
            self._item_event("added", item | {"arguments": "", "status": "in_progress"}),
            self._event(f"{kind}.delta", **place, delta=call.arguments),
            self._event(f"{kind}.done", **place, name=call.name, arguments=call.arguments),
            self._item_event("done", done),
        ]
        self.output.append(done)
        return events

    def _item_event(self, kind: str, item: Json) -> Json:
        return self._event(f"response.output_item.{kind}", output_index=len(self.output), item=item)

    def _text_event(self, kind: str, **fields: Any) -> Json:
        """Return an event of the text that is being written."""
        assert self.open is not None
        part = self.open["content"][0]["type"]
        fields |= {"logprobs": []} if part == "output_text" else {}
        return self._event(f"response.{part}.{kind}", **self._place, **fields)

    @property
    def _place(self) -> Json:
        assert self.open is not None
        return {"item_id": self.open["id"], "output_index": len(self.output), "content_index": 0}

    # -- the response itself --------------------------------------------------------------------------

    def _response(self, *, is_over: bool = False) -> Json:
        """Return the response as it is now."""
        body, is_cut = self.request, is_over and self.finish_reason == "length"
        status = ("incomplete" if is_cut else "completed") if is_over else "in_progress"
        fields = body.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": list(self.output),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": fields.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": fields.get("tools", []),
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": self._item_usage() if is_over else None,
            "metrics": metrics(self.sequences) if is_over else None,
        }

    def _item_usage(self) -> Json:
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.token_texts.count(self.reasoning)},
            "total_tokens": usage["total_tokens"],
        }


# -- the body -----------------------------------------------------------------------------------------


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
            messages.append({"role": item.role, "content": join_content(item.content)})
        elif item.type == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item.call_id, "content": join_content(item.output)}
            )
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages
