"""Between tokens and text: pieces as they come, and stop strings that begin and end in different tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BROKEN = "�"  # what an unfinished UTF-8 character decodes to
TARGET = "target"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text and who guessed it: `target`, or the drafter's name."""

    text: str
    source: str


@dataclass(slots=True)
class StopStrings:
    """Says after which token the text holds one of the stop strings (`Sampling.ends`)."""

    tokenizer: Any
    strings: tuple[str, ...]
    prompt_length: int

    def __call__(self, tokens: Sequence[int], start: int) -> int | None:
        """How many of the tokens from `start` on to keep, or None if no stop string is complete."""
        # Every token gives at least one byte, but a few may be skipped or half a character.
        before = max(self.prompt_length, start - 8 - max(len(s.encode()) for s in self.strings))
        if not self._found(tokens[before:]):
            return None
        return next(
            (n for n in range(1, len(tokens) - start) if self._found(tokens[before : start + n])),
            len(tokens) - start,
        )

    def _found(self, tokens: Sequence[int]) -> bool:
        text = decode(self.tokenizer, tokens)
        return any(s in text for s in self.strings)


@dataclass(slots=True)
class Detokenizer:
    """Turns tokens into pieces as they come.

    Text is held back while it may still be half a character or the beginning of a stop string; after a
    stop string nothing more comes.
    """

    tokenizer: Any
    stop: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    shown: int = 0
    anchor: int = 0
    anchored: str = ""
    waiting: list[Piece] = field(default_factory=list)
    stopped: bool = False

    def push(self, tokens: Sequence[int], source: str) -> list[Piece]:
        """The pieces that are certain now that `tokens` have come from `source`."""
        self.tokens += tokens
        # Decoding from a few tokens back keeps spaces and characters right without decoding everything again.
        now = decode(self.tokenizer, self.tokens[self.anchor :])
        if now.endswith(BROKEN):
            return []
        new = now[len(self.anchored) :]
        self.anchor = max(len(self.tokens) - 4, 0)
        self.anchored = decode(self.tokenizer, self.tokens[self.anchor :])
        return self._take(new, source)

    def flush(self, source: str = TARGET) -> list[Piece]:
        """What was still held back when the text ended."""
        rest = decode(self.tokenizer, self.tokens[self.anchor :])[len(self.anchored) :]
        out = self._take(rest, source) if rest else []
        if not self.stopped:
            out += self.waiting
        self.waiting = []
        return out

    def _take(self, new: str, source: str) -> list[Piece]:
        if self.stopped or not new:
            return []
        self.text += new
        self.waiting.append(Piece(new, source))
        at = [i for s in self.stop if (i := self.text.find(s, max(self.shown - len(s), 0))) >= 0]
        if at:
            self.stopped = True
            out = self._release(min(at))
            self.text, self.waiting = self.text[: min(at)], []
            return out
        return self._release(len(self.text) - self._held())

    def _held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        most = max((len(s) for s in self.stop), default=1) - 1
        return next(
            (
                n
                for n in range(most, 0, -1)
                if any(s.startswith(self.text[-n:]) for s in self.stop if n < len(s))
            ),
            0,
        )

    def _release(self, upto: int) -> list[Piece]:
        out: list[Piece] = []
        while self.waiting and self.shown < upto:
            piece = self.waiting.pop(0)
            room = upto - self.shown
            if len(piece.text) > room:
                self.waiting.insert(0, Piece(piece.text[room:], piece.source))
                piece = Piece(piece.text[:room], piece.source)
            self.shown += len(piece.text)
            out.append(piece)
        return out


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of some tokens, without special ones and with its spaces as they are."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def prompt_ids(tokenizer: Any, prompt: str | Sequence[Mapping[str, str]], *, chat: bool = True) -> list[int]:
    """The tokens of a text, or of messages, in the tokenizer's chat template where there is one."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(prompt, str):
        if not (chat and template):
            return list(tokenizer(prompt)["input_ids"])
        prompt = [{"role": "user", "content": prompt}]
    if not template:  # a base model: what was said, line by line
        return list(tokenizer("".join(f"{m['content']}\n" for m in prompt))["input_ids"])
    encoded = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])
