"""The settings of a text, from the fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..generation.decoder import Decoder
from .bias import Allowed, AtLeast, barred, bias, within
from .constraint import Constraint
from .fields import Completion, Sampled, Tokenize
from .refusal import Refusal
from .tools import Spoken

ANY_SEED = -1  # as vLLM and llama.cpp have it
OWN_NAMES = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
Grammar = Callable[[], Constraint]


def settings_of(body: Sampled, decoder: Decoder, grammar: Grammar | None) -> dict[str, Any]:
    """Keyword arguments for `Decoder.settings` that hold for all texts; the temperature is 1 unless set."""
    given = {name: value for name in OWN_NAMES if (value := getattr(body, name)) is not None}
    settings: dict[str, Any] = {"temperature": 1.0} | {**decoder.defaults} | given
    settings.pop("max_new_tokens", None)
    if body.top_k is not None:
        settings["top_k"] = max(0, body.top_k)
    if body.seed not in (None, ANY_SEED):
        settings["seed"] = body.seed
    if body.stop_token_ids or body.ignore_eos:
        asked = within(body.stop_token_ids or (), decoder.loop.target.vocab_size, "stop_token_ids")
        # A text under a grammar ends where its form does.
        settings["eos"] = {*asked, *(() if body.ignore_eos and grammar is None else decoder.eos)}
    return settings


def processors(body: Sampled, decoder: Decoder, grammar: Grammar | None, length: int, room: int) -> list[Any]:
    """What changes the logits of a text of up to `room` tokens after a prompt of so many.

    Raises:
        Refusal: token ids that are none, or fields that exclude each other.
    """
    size, found = decoder.loop.target.vocab_size, list[Any]()
    _fits(body, grammar is not None, room)
    if body.logit_bias:
        found.append(bias(body.logit_bias, size))
    if body.bad_words:
        found.append(barred(body.bad_words, decoder.tokenizer))
    if body.allowed_token_ids:
        found.append(Allowed(within(body.allowed_token_ids, size, "allowed_token_ids")))
    if body.min_tokens:
        found.append(AtLeast(length + body.min_tokens, {*decoder.eos, *(body.stop_token_ids or ())}))
    if grammar is not None:
        found.append(grammar)
    return found


def _fits(body: Sampled, formed: bool, room: int) -> None:
    """See that no token must both be written and not."""
    least = body.min_tokens or 0
    if least > room:
        raise Refusal(f"min_tokens={least}: the text has {room} tokens at most", param="min_tokens")
    if least and body.stop:
        raise Refusal("min_tokens and stop exclude each other here: give stop_token_ids", param="min_tokens")
    several = {
        "an answer in a given form": formed,
        "allowed_token_ids": bool(body.allowed_token_ids),
        "min_tokens or bad_words": bool(least or body.bad_words),
    }
    if len(names := [name for name, there in several.items() if there]) > 1:
        raise Refusal(f"{names[0]} excludes {names[1]}: give one", param=names[1].partition(" ")[0])


def spoken(body: Sampled, decoder: Decoder, kept: Collection[str] = ()) -> Any:
    """What turns the tokens of a text into its text, if not the decoder's tokenizer.

    It shows the special tokens `kept`, or all if the request wants them, and no token that ends the text,
    unless the request wants that one too.
    """
    tokenizer, shows = decoder.tokenizer, body.skip_special_tokens is False
    ends = set() if body.include_stop_str_in_output else set(body.stop_token_ids or ())
    if not (ends or shows or kept):
        return None
    special = list(getattr(tokenizer, "all_special_ids", ()))
    names = tokenizer.convert_ids_to_tokens(special) if special else ()
    if shows and not body.include_stop_str_in_output and not body.ignore_eos:
        ends |= decoder.eos
    silent = {token for token, name in zip(special, names, strict=True) if name not in kept}
    return Spoken(tokenizer, ends if shows else ends | silent)


def reading(body: Completion | Tokenize) -> dict[str, Any]:
    """How the tokenizer reads a prompt."""
    return {} if body.add_special_tokens is None else {"add_special_tokens": body.add_special_tokens}
