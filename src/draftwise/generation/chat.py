"""A conversation that keeps its KV cache: each turn prefills only the new tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ..core.request import Request
from ..errors import UserError
from .output import Output, Writer
from .processors import reusable
from .prompts import render_messages
from .text import Piece, Stops, decode, stop_strings


class Chat:
    """A conversation with a decoder. `messages` is the history, `last` the newest answer.

    Turns are joined at the level of tokens, so nothing is prefilled twice. If the chat template renders an
    earlier turn differently from what was generated, for example without its reasoning, the whole
    conversation is prefilled again. An answer that is still being read ends with the next message; what was
    written of it stays in the history.
    """

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.messages: list[dict[str, str]] = []
        self.last = Output()
        self._request: Request | None = None
        self._prompt = ""  # the text that the request's prompt was made from
        self._open: Writer | None = None  # of the answer that is being read

    def __repr__(self) -> str:
        return f"Chat({len(self.messages)} messages, {self.decoder!r})"

    def send(self, text: str, *, stop: Stops = (), **sampling: Any) -> Generator[Piece, None, None]:
        """Send a message and receive the answer piece by piece."""
        if not isinstance(text, str) or not text.strip():
            raise UserError("the message is empty: give some text")
        self._break_off()
        decoder = self.decoder
        stop, sampling = stop_strings(stop), reusable(sampling)
        messages = [*self.messages, {"role": "user", "content": text}]
        # Invalid input raises here, and leaves the conversation unchanged.
        ids, prompt = decoder.encode(messages), render_messages(decoder.tokenizer, messages)
        more = self._continuation(ids, prompt)
        if more is None or self._request is None:
            request = decoder.loop.add(ids, decoder.settings(stop, len(ids), **sampling), keep=True)
            self._drop()
        else:
            request = self._request
            settings = decoder.settings(stop, len(request.tokens) + len(more), **sampling)
            decoder.loop.extend(request, more, settings)
        self.messages, self._request, self._prompt = messages, request, prompt
        self._open = writer = Writer(decoder.tokenizer, stop, request.sampling.seed)
        try:
            yield from decoder.follow(request, writer)
        finally:
            if self._open is writer:  # else the conversation continued without it, or was closed
                self._open, self.last = None, writer.output()  # `decoder.last` may be another's by now
                self.messages.append({"role": "assistant", "content": self.last.text})

    def close(self) -> None:
        """End the conversation, with an answer that is still being read, and free its KV cache."""
        self._open = None
        self._drop()
        self.messages.clear()

    def _break_off(self) -> None:
        """End an answer that is still being read."""
        writer, self._open = self._open, None
        if writer is not None:
            self._drop()
            self.messages.append({"role": "assistant", "content": writer.output().text})

    def _drop(self) -> None:
        if self._request is not None:
            self.decoder.loop.close(self._request)
            self._request = None

    def _continuation(self, ids: Sequence[int], prompt: str) -> list[int] | None:
        """Return the tokens between the last answer and the next one; None if all is to be prefilled again.

        `ids` are the tokens of the whole conversation, `prompt` is its text.
        """
        request, decoder = self._request, self.decoder
        if request is None or request.id not in decoder.loop.parked:  # it failed, or was closed
            return None
        written = request.tokens
        if ids[: len(written)] == written:
            return list(ids[len(written) :]) or None
        # The template may tokenize the same text differently from what the model wrote.
        end = written[-1:] if written[-1] in decoder.eos else []
        answer = written[request.prompt_length : len(written) - len(end)]
        before = self._prompt + decode(decoder.tokenizer, answer, special=True)
        if not prompt.startswith(before):
            return None
        rest = list(decoder.tokenizer(prompt[len(before) :], add_special_tokens=False)["input_ids"])
        return rest[len(end) :] or None if rest[: len(end)] == end else None
