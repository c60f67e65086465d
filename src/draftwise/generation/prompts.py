"""Prompts of every kind: text, messages for the tokenizer's chat template, and token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import UserError
from ..inputs import show, whole

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
KINDS = "give text, token ids, or messages with role and content"


def encode(
    tokenizer: Any,
    prompt: Any,
    *,
    vocab_size: int,
    chat: bool = True,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a prompt; an array has shape (n,) or (1, n); for `options` see `prompt_ids`.

    Raises:
        UserError: an empty prompt, one of another kind, or ids outside the vocabulary.
    """
    if isinstance(prompt, str):
        return prompt_ids(tokenizer, prompt, chat=chat, options=options)
    if hasattr(prompt, "tolist"):  # an array of NumPy or torch
        prompt = prompt.tolist()
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
            (prompt,) = prompt
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        raise UserError(f"a prompt cannot be {show(prompt)}: {KINDS}")
    items = list(prompt)
    if items and isinstance(items[0], Mapping):
        return prompt_ids(tokenizer, items, options=options)
    wrong = [x for x in items if isinstance(x, bool) or not isinstance(x, Integral)]
    if wrong:
        raise UserError(
            f"a prompt cannot hold {show(wrong[0])}: {KINDS}; generate_many takes several prompts"
        )
    ids = [int(token) for token in items]
    if not ids:
        raise UserError("the prompt is empty: give some text")
    if min(ids) < 0 or max(ids) >= vocab_size:
        outside = min(ids) if min(ids) < 0 else max(ids)
        raise UserError(f"token id {outside} is outside the vocabulary of {vocab_size}")
    return ids


def prompt_ids(
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    *,
    chat: bool = True,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the tokens of a text, or of messages, in the tokenizer's chat template if it has one.

    The `options` are those of the template, such as `tools`, and variables in it; for a text without a
    template they are the tokenizer's.

    Raises:
        UserError: an empty prompt, one that is not Unicode, or messages that the template rejects.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(prompt, str):
        plain = not (chat and template)
        read = tokenizer(whole(prompt, "the prompt"), **(options or {})) if plain and prompt else {}
        ids = list(read.get("input_ids", ()))
        if not prompt or (plain and not ids):  # some tokenizers read no white space
            raise UserError("the prompt is empty: give some text")
        if plain:
            return ids
        prompt = [{"role": "user", "content": prompt}]
    if not template:
        return list(tokenizer(render_messages(tokenizer, prompt))["input_ids"])
    return list(_apply_template(tokenizer, prompt, return_dict=True, **(options or {}))["input_ids"])


def render_messages(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None
) -> str:
    """Return the text of messages, up to where the next answer begins; `prompt_ids` returns its tokens."""
    if getattr(tokenizer, "chat_template", None):
        return str(_apply_template(tokenizer, messages, tokenize=False, **(options or {})))
    _check(messages)
    return "".join(f"{m['content']}\n" for m in messages)  # a base model: the contents line by line


def _apply_template(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
    from jinja2 import TemplateError

    _check(messages)
    try:
        options = {"add_generation_prompt": True} | options
        return tokenizer.apply_chat_template(list(messages), **options)
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"the chat template refuses these messages: {reason}") from error


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UserError(f"a message cannot be {show(message)}: it needs role and content")
        if not isinstance(content := message.get("content"), str):
            raise UserError(f"the content of a message cannot be {show(content)}: give text")
        whole(content, f"a message of {message['role']!r}")
