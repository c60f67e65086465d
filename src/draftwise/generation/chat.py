"""A conversation that keeps its caches: each turn reads only what is new."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from ..core.loop import Loop
from ..core.request import Request
from ..core.sampling import Sampling
from ..errors import UserError
from .output import Output
from .prompts import Prompt, rendered
from .text import Piece, Stops, decode


class Partner(Protocol):
    """What a conversation needs of a decoder."""

    tokenizer: Any
    loop: Loop
    eos: frozenset[int]

    @property
    def last(self) -> Output: ...

    def encode(self, prompt: Prompt) -> list[int]: ...

    def settings(self, stop: Stops, prompt_length: int, **sampling: Any) -> Sampling: ...

    def follow(self, request: Request, stop: Stops) -> Generator[Piece, None, None]: ...


class Chat:
    """A conversation with a decoder. `messages` is what was said, `last` the newest answer.

    Turns are joined by the tokens that were really written, so nothing is read again. Where the template
    writes an earlier turn otherwise than it was said, such as without its reasoning, all of it is read anew.
    """

    def __init__(self, decoder: Partner) -> None:
        self.decoder = decoder
        self.messages: list[dict[str, str]] = []
        self.last = Output()
        self._request: Request | None = None
        self._said = ""  # what the request's prompt was made of

    def __repr__(self) -> str:
        return f"Chat({len(self.messages)} messages, {self.decoder!r})"

    def send(self, text: str, *, stop: Stops = (), **sampling: Any) -> Generator[Piece, None, None]:
        """Say something and get the answer piece by piece."""
        if not isinstance(text, str) or not text.strip():
            raise UserError("the message is empty: give some text")
        decoder = self.decoder
        messages = [*self.messages, {"role": "user", "content": text}]
        # What is refused raises here, and leaves the conversation as it was.
        ids, said = decoder.encode(messages), rendered(decoder.tokenizer, messages)
        more = self._continuation(ids, said)
        if more is None or self._request is None:
            request = decoder.loop.add(ids, decoder.settings(stop, len(ids), **sampling), keep=True)
            self._drop()
        else:
            request = self._request
            settings = decoder.settings(stop, len(request.tokens) + len(more), **sampling)
            decoder.loop.extend(request, more, settings)
        self.messages, self._request, self._said = messages, request, said
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

    def _continuation(self, ids: Sequence[int], said: str) -> list[int] | None:
        """Tokens from the end of the last answer to the beginning of the next, or None to read anew.

        `ids` are those of the whole conversation, `said` is its text.
        """
        request, decoder = self._request, self.decoder
        if request is None:
            return None
        written = request.tokens
        if ids[: len(written)] == written:
            return list(ids[len(written) :]) or None
        # The model may have written the same text in other tokens.
        end = written[-1:] if written[-1] in decoder.eos else []
        answer = written[request.prompt_length : len(written) - len(end)]
        before = self._said + decode(decoder.tokenizer, answer, special=True)
        if not said.startswith(before):
            return None
        rest = list(decoder.tokenizer(said[len(before) :], add_special_tokens=False)["input_ids"])
        return rest[len(end) :] or None if rest[: len(end)] == end else None
