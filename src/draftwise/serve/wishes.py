"""From the body of a request to the texts that it asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ..core.arms import Arm
from ..core.request import ENDLESS
from ..core.roles import window_of
from ..core.sampling import Sampling
from ..errors import UserError
from ..generation.decoder import Decoder
from ..generation.text import stop_strings
from ..policies.catalogue import method
from .fields import Chat, Completion, Message, Settings, Speculative
from .grammar import Grammars
from .refusal import Refusal
from .texts import Wish

LONGEST = 128  # tokens of a draft that a client may ask for
FIXED = re.compile(r"static(-\d+)?")
NO_TOKENS = 16  # of a plain completion that does not say how many
OWN_NAMES = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request asks for: its texts, and how to answer.

    `echoes` are the texts of the prompts where the answer repeats them; with `drafters` a stream says who
    guessed each piece.
    """

    wishes: list[Wish]
    prompt_tokens: int
    chat: bool
    stream: bool
    usage: bool
    logprobs: bool
    n: int
    echoes: Sequence[str] = ()
    drafters: bool = False


class Bias:
    """OpenAI's `logit_bias`: added to the logits of some tokens, at every place of the text."""

    def __init__(self, tokens: Sequence[int], values: Sequence[float]) -> None:
        self.tokens, self.values = list(tokens), list(values)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with the bias, shape (rows, vocabulary)."""
        scores = scores.clone()
        scores[:, self.tokens] += scores.new_tensor(self.values)
        return scores


class Reader:
    """Reads bodies for one decoder."""

    def __init__(self, decoder: Decoder, window: int = 0, *, seed: int = 0) -> None:
        self.decoder, self.window = decoder, min(window or ENDLESS, window_of(decoder.loop.target))
        self.grammars = Grammars(decoder)
        self.seeds = Random(f"server {seed}")

    def completion(self, body: Completion) -> Asked:
        """The texts of `/v1/completions`.

        Raises:
            Refusal: something is asked for that cannot be done.
            UserError: a prompt or a setting is wrong.
        """
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise Refusal(f"best_of={body.best_of}: give the same as n, or leave it out", param="best_of")
        prompts = [self.decoder.encode(prompt, chat=False) for prompt in _several(body.prompt)]
        most = NO_TOKENS if body.max_tokens is None else body.max_tokens
        if most == 0 and not body.echo:
            raise Refusal("max_tokens=0: give 1 or more, or set echo", param="max_tokens")
        scored = body.logprobs if body.echo else None
        settings = {"logprobs": body.logprobs is not None, "top_logprobs": body.logprobs or 0}
        wishes = self._wishes(body, prompts, most, settings, scored)
        echoes = [self.echo(p, ids) for p, ids in zip(_several(body.prompt), prompts, strict=True)]
        return self._asked(body, wishes, prompts, body.logprobs is not None, echoes if body.echo else ())

    def chat(self, body: Chat) -> Asked:
        """The texts of `/v1/chat/completions`.

        Raises:
            Refusal: something is asked for that cannot be done.
            UserError: a message or a setting is wrong.
        """
        if body.top_logprobs and not body.logprobs:
            said = f"top_logprobs={body.top_logprobs}: set logprobs to true as well"
            raise Refusal(said, param="top_logprobs")
        if body.max_tokens == 0:
            raise Refusal("max_tokens=0: give 1 or more", param="max_tokens")
        ids = self.decoder.encode(messages(body.messages))
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        settings = {"logprobs": bool(body.logprobs), "top_logprobs": body.top_logprobs or 0}
        wishes = self._wishes(body, [ids], most, settings, None)
        return replace(self._asked(body, wishes, [ids], bool(body.logprobs), ()), chat=True)

    def echo(self, prompt: Any, ids: Sequence[int]) -> str:
        """The text of a prompt."""
        if isinstance(prompt, str):
            return prompt
        return str(self.decoder.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _asked(
        self, body: Settings, wishes: list[Wish], prompts: Any, logprobs: bool, echoes: Sequence[str]
    ) -> Asked:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        if body.stream_options is not None and not body.stream:
            raise Refusal("stream_options: set stream to true as well", param="stream_options")
        total = sum(map(len, prompts))
        drafters = bool(body.stream_options and body.stream_options.include_drafters)
        return Asked(wishes, total, False, bool(body.stream), usage, logprobs, body.n or 1, echoes, drafters)

    def _wishes(
        self, body: Settings, prompts: list[list[int]], most: int | None, more: Any, scored: int | None
    ) -> list[Wish]:
        n, settings = body.n or 1, self._settings(body) | more
        picked = body.seed is not None
        stop = stop_strings(() if body.stop is None else body.stop)
        without, longest, arm = self._speculation(body.speculative)
        if n > 1 and settings.get("seed") is None:
            settings["seed"] = self.seeds.getrandbits(32)
        wishes = []
        for ids in prompts:
            room = self._room(len(ids), most)
            for sample in range(n):
                settings["max_new_tokens"] = max(1, room)
                made: Sampling = self.decoder.settings(stop, len(ids), sample, alone=False, **settings)
                wish = Wish(ids, made, stop, without, longest, picked, scored, written=room > 0, arm=arm)
                wishes.append(wish)
        return wishes

    def _room(self, length: int, most: int | None) -> int:
        """How many tokens to write at most.

        Raises:
            Refusal: prompt and answer do not fit into the window.
        """
        wanted = 1 if most is None else most
        if length + wanted > self.window:
            said = (
                f"the prompt has {length} tokens and the answer up to {wanted}, but the window has "
                f"{self.window}: shorten the prompt, or ask for fewer tokens"
            )
            raise Refusal(said, code="context_length_exceeded", param="messages" if most is None else None)
        return self.window - length if most is None else most

    def _settings(self, body: Settings) -> dict[str, Any]:
        """Keyword arguments for `Decoder.settings`; the temperature is 1 unless set."""
        given = {name: value for name in OWN_NAMES if (value := getattr(body, name)) is not None}
        settings: dict[str, Any] = {"temperature": 1.0} | {**self.decoder.defaults} | given
        settings.pop("max_new_tokens", None)
        if body.top_k is not None:
            settings["top_k"] = max(0, body.top_k)
        if body.seed is not None:
            settings["seed"] = body.seed
        if body.ignore_eos:
            settings["eos"] = ()
        processors: list[Any] = []
        if body.logit_bias:
            processors.append(self._bias(body.logit_bias))
        if (grammar := self.grammars.wanted(body)) is not None:
            processors.append(grammar)
        if processors:
            settings["processors"] = processors
        return settings

    def _bias(self, given: dict[str, float]) -> Bias:
        size = self.decoder.loop.target.vocab_size
        for token in given:
            if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < size):
                said = f"logit_bias has {token[:20]!r}: give token ids from 0 to {size - 1}"
                raise Refusal(said, param="logit_bias")
        return Bias([int(token) for token in given], list(given.values()))

    def _speculation(self, asked: bool | Speculative | None) -> tuple[frozenset[str], int, Arm | None]:
        """The drafters that must not draft, the longest draft, and an arm instead of the policy's."""
        everyone = frozenset(self.decoder.loop.team.drafters)
        if asked is None or asked is True:
            return frozenset(), ENDLESS, None
        if asked is False or asked.policy == "none":
            return everyone, 0, None
        longest = ENDLESS if asked.max_length is None else asked.max_length
        mine = everyone if asked.drafters is None else frozenset(asked.drafters)
        if unknown := sorted(mine - everyone):
            said = f"speculative.drafters has {unknown[0]!r}: choose from {', '.join(sorted(everyone))}"
            raise Refusal(said, param="speculative")
        return everyone - mine, longest, None if asked.policy is None else self._fixed(asked.policy, mine)

    def _fixed(self, policy: str, drafters: frozenset[str]) -> Arm:
        """The arm of a policy that plays one.

        Others learn from all requests together, and may read files.

        Raises:
            Refusal: it is none of these, or its drafts are too long.
        """
        if not FIXED.fullmatch(policy.partition("?")[0]):
            said = (
                f"speculative.policy={policy[:60]!r}: a policy that learns is the server's; give none, or a "
                "fixed one such as static-4?drafter=ngram"
            )
            raise Refusal(said, param="speculative")
        (arm,) = method(
            policy, [name for name in self.decoder.loop.team.drafters if name in drafters]
        ).policy.arms
        if arm.length > LONGEST:
            said = f"speculative.policy={policy[:60]!r}: give drafts of at most {LONGEST} tokens"
            raise Refusal(said, param="speculative")
        return arm


def messages(given: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as the chat template takes them; the parts of a content are joined."""
    found = []
    for message in given:
        content = message.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if message.role == "developer" else message.role
        named = {"name": message.name} if message.name else {}
        found.append({"role": role, "content": text, **named})
    return found


def _several(prompt: Any) -> list[Any]:
    """The prompts of a completion, each a text or token ids.

    Raises:
        UserError: there is none.
    """
    if not prompt:
        raise UserError("the prompt is empty: give some text")
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)
