"""Prompts that are too long, found out before all of them is read: megabytes take a tokenizer seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..generation.prompts import rendered
from ..inputs import whole
from .refusal import Refusal

LETTERS = 4  # characters of a token, in most texts
# Tokens that the beginning of a text may have more than all of it: it ends within a word, or within the name
# of a special token.
MARGIN = 256


def several(prompt: Any) -> list[Any]:
    """The prompts of a completion, each a text or token ids.

    Raises:
        UserError: there is none.
    """
    if not prompt:
        raise UserError("the prompt is empty: give some text")
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def bounded(
    tokenizer: Any,
    prompt: Any,
    most: int,
    tools: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """See that a prompt, text, messages or token ids, has no more than about `most` tokens.

    Longer and longer beginnings of a text are read until one has too many. Its bytes would not tell: one
    token may stand for any number of spaces, or of characters that a tokenizer does not know.

    Raises:
        Refusal: it has more.
        UserError: it is no Unicode, or the template rejects it.
    """
    text, param = prompt, "prompt"
    if not isinstance(prompt, str) and prompt and isinstance(prompt[0], dict):
        if sum(len(str(one)) for one in (prompt, tools, options)) <= LETTERS * (most + MARGIN):
            return
        text, param = rendered(tokenizer, prompt, tools=tools, options=options), "messages"
    if not isinstance(text, str):
        if len(text) > most:
            raise too_long(most, param)
        return
    n = LETTERS * (most + MARGIN)
    while n < len(text):
        if len(tokenizer(whole(text[:n], "the prompt"))["input_ids"]) > most + MARGIN:
            raise too_long(most, param)
        n *= 2


def too_long(most: int, param: str) -> Refusal:
    """A prompt of more tokens than are read."""
    said = f"the prompt has more than {most} tokens, the most that are read here: shorten it"
    return Refusal(said, code="context_length_exceeded", param=param)
