"""Answers to `/v1/responses`: whole ones, and the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from .answers import Answer, Json, metrics
from .calls import Found
from .items import Responses
from .refusal import Refusal
from .texts import Event, Text


@dataclass
class Response(Answer):
    """The answer to one body of `/v1/responses`, as items: reasoning, a message, and calls of tools."""

    body: Responses | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.id = f"resp_{token_hex(12)}"
        self.output: list[Json] = []
        self.open: Json | None = None  # the message or reasoning that is being written
        self.thought = ""
        self.number, self.reason = 0, ""

    # -- whole ----------------------------------------------------------------------------------------

    def whole(self, texts: Sequence[Text], events: Sequence[Sequence[Event]]) -> Json:
        """See `Answer`."""
        for event in events[0]:
            self.chunks(texts[0], event, first=False)
        return self._response(texts)

    # -- in pieces ------------------------------------------------------------------------------------

    def openings(self, texts: Sequence[Text]) -> list[Json]:
        """The first events: the response has been made, and is under way."""
        return [
            self._told(f"response.{kind}", response=self._response()) for kind in ("created", "in_progress")
        ]

    def chunks(self, text: Text, event: Event, *, first: bool) -> list[Json]:
        """The events of one event of the text."""
        if self.asked.parser is None:
            found = [Found(event.text)] if event.text else []
        else:
            found = self._found(text, event.text, last=event.last)
        told: list[Json] = []
        for one in found:
            told += (
                self._call(one) if one.name else self._write(one.text or one.reasoning, bool(one.reasoning))
            )
        if event.last:
            self.reason = event.reason
            if not self.output and self.open is None:
                told += self._write("")
            told += self._close()
        return told

    def last(self, texts: Sequence[Text]) -> Json:
        """The event that ends a stream."""
        response = self._response(texts)
        return self._told(f"response.{response['status']}", response=response)

    def sent(self, chunk: Json) -> str:
        """One server-sent event, with its name."""
        return f"event: {chunk['type']}\n{super().sent(chunk)}"

    def failed(self, refusal: Refusal) -> Json:
        """The event that tells of an error in mid-stream."""
        error = refusal.body["error"]
        named = {"code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
        return self._told("error", **named)

    @property
    def end(self) -> str:
        """What follows the last event."""
        return ""

    # -- items ----------------------------------------------------------------------------------------

    def _told(self, kind: str, **more: Any) -> Json:
        self.number += 1
        return {"type": kind, "sequence_number": self.number - 1} | more

    def _write(self, text: str, thought: bool = False) -> list[Json]:
        """A piece of text or of reasoning; the first one opens an item of its kind."""
        kind = "reasoning" if thought else "message"
        told = self._close() if self.open is not None and self.open["type"] != kind else []
        if self.open is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.open = {"id": f"msg_{token_hex(12)}", "type": kind, "role": "assistant", "content": []}
            if thought:
                part = {"type": "reasoning_text", "text": ""}
                self.open = {"id": f"rs_{token_hex(12)}", "type": kind, "summary": [], "content": []}
            begun = self.open | {"status": "in_progress"}
            told.append(self._told("response.output_item.added", output_index=self._at, item=begun))
            told.append(self._told("response.content_part.added", **self._place, part=part))
            self.open["content"] = [part]
        self.open["content"][0]["text"] += text
        self.thought += text if thought else ""
        if text:
            told.append(self._said("delta", delta=text))
        return told

    def _said(self, what: str, **more: Any) -> Json:
        """An event of the text that is being written."""
        assert self.open is not None
        kind = self.open["content"][0]["type"]
        more |= {"logprobs": []} if kind == "output_text" else {}
        return self._told(f"response.{kind}.{what}", **self._place, **more)

    def _close(self) -> list[Json]:
        """The end of the item that is being written, if there is one."""
        if self.open is None:
            return []
        (part,) = self.open["content"]
        item = self.open | {"status": "completed" if self.reason != "length" else "incomplete"}
        told = [
            self._said("done", text=part["text"]),
            self._told("response.content_part.done", **self._place, part=part),
            self._told("response.output_item.done", output_index=self._at, item=item),
        ]
        self.output.append(item)
        self.open = None
        return told

    def _call(self, found: Found) -> list[Json]:
        """A whole call, which ends the message before it."""
        told = self._close()
        item = {"id": f"fc_{token_hex(12)}", "type": "function_call", "call_id": found.id, "name": found.name}
        begun = item | {"arguments": "", "status": "in_progress"}
        ended = item | {"arguments": found.arguments, "status": "completed"}
        place = {"item_id": item["id"], "output_index": self._at}
        kind = "response.function_call_arguments"
        told += [
            self._told("response.output_item.added", output_index=self._at, item=begun),
            self._told(f"{kind}.delta", **place, delta=found.arguments),
            self._told(f"{kind}.done", **place, name=found.name, arguments=found.arguments),
            self._told("response.output_item.done", output_index=self._at, item=ended),
        ]
        self.output.append(ended)
        return told

    @property
    def _at(self) -> int:
        return len(self.output)

    @property
    def _place(self) -> Json:
        assert self.open is not None
        return {"item_id": self.open["id"], "output_index": self._at, "content_index": 0}

    # -- the response itself --------------------------------------------------------------------------

    def _response(self, texts: Sequence[Text] = ()) -> Json:
        """The response as it is now; with its `texts` once they are over."""
        body = self.body
        assert body is not None
        cut = self.reason == "length"
        status = ("incomplete" if cut else "completed") if texts else "in_progress"
        given = body.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": list(self.output),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut and texts else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": self._used(texts) if texts else None,
            "metrics": metrics(texts) if texts else None,
        }

    def _used(self, texts: Sequence[Text]) -> Json:
        used = self.usage(texts)
        return {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": used["prompt_tokens_details"],
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.names.count(self.thought)},
            "total_tokens": used["total_tokens"],
        }
