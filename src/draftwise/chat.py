"""A conversation that keeps its caches: each turn reads only what is new."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from .decoder import Output
from .errors import UserError
from .text import Piece, Stops
from .types import Request

if TYPE_CHECKING:
    from .decoder import Decoder

ANSWER = "\x02answer\x03"  # stands for an answer while the template writes what follows it


class Chat:
    """A conversation with a decoder. `messages` is what was said, `last` the newest answer.

    Turns are joined by the tokens that were really written, so nothing is read again; where a template
    rewrites earlier turns, the conversation is read anew.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.messages: list[dict[str, str]] = []
        self.last = Output()
        self._request: Request | None = None

    def send(self, text: str, *, stop: Stops = (), **sampling: Any) -> Generator[Piece, None, None]:
        """Say something and get the answer piece by piece."""
        if not text.strip():
            raise UserError("the message is empty: give some text")
        decoder = self.decoder
        messages = [*self.messages, {"role": "user", "content": text}]
        more = self._continuation(messages)
        # What is refused raises here, and leaves the conversation as it was.
        if more is None or self._request is None:
            ids = decoder.encode(messages)
            request = decoder.loop.add(ids, decoder.settings(stop, len(ids), **sampling), keep=True)
            self._drop()
        else:
            request = self._request
            settings = decoder.settings(stop, len(request.tokens) + len(more), **sampling)
            decoder.loop.extend(request, more, settings)
        self.messages, self._request = messages, request
        try:
            yield from decoder.follow(request, stop)
        finally:
            self.last = decoder.last
            self.messages.append({"role": "assistant", "content": self.last.text})
            if not request.done:
                self._request = None

    def close(self) -> None:
        """Forget the conversation and free its caches."""
        self._drop()
        self.messages.clear()

    def _drop(self) -> None:
        if self._request is not None:
            self.decoder.loop.close(self._request)
            self._request = None

    def _continuation(self, messages: Sequence[dict[str, str]]) -> list[int] | None:
        """Token ids from the end of the last answer to the beginning of the next, or None to read anew."""
        request, tokenizer = self._request, self.decoder.tokenizer
        if request is None:
            return None
        if not getattr(tokenizer, "chat_template", None):
            rendered = f"{ANSWER}\n{messages[-1]['content']}\n"
        else:
            spoken = [*messages[:-2], {"role": "assistant", "content": ANSWER}, messages[-1]]
            rendered = tokenizer.apply_chat_template(spoken, add_generation_prompt=True, tokenize=False)
        if rendered.count(ANSWER) != 1:
            return None
        ids = list(tokenizer(rendered.partition(ANSWER)[2], add_special_tokens=False)["input_ids"])
        ended = request.tokens[-1] in self.decoder.eos
        return ids[1:] if ended and ids and ids[0] == request.tokens[-1] else ids
