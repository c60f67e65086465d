"""From the body of a request to the texts that it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from ..core.arms import Arm
from ..core.request import ENDLESS
from ..core.roles import window_of
from ..core.sampling import Sampling
from ..generation.decoder import Decoder
from ..generation.prompts import encode
from ..generation.text import StopStrings, stop_strings
from ..policies.catalogue import method
from .calls import Calls, Parser, Shipped
from .fields import Chat, Completion, Settings, Speculative, StreamOptions, Tokenize, Tool
from .forms import Form
from .grammar import Grammars, form
from .lengths import bounded, several
from .limits import Limits
from .messages import messages, variables
from .refusal import Refusal
from .settings import Grammar, processors, reading, settings_of, spoken
from .texts import Wish
from .tokens import TokenTexts
from .tools import Template, grammar, offered

LONGEST = 128  # tokens of a draft that a client may ask for
FIXED = re.compile(r"static(-\d+)?")
NO_TOKENS = 16  # of a plain completion that does not say how many


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request asks for: its texts, and how to answer.

    `echoes` are the texts of the prompts where the answer repeats them, and `begins` tells where the text of
    each of their tokens begins, where these are scored; with `drafters` a stream says who
    guessed each piece, and with `continuous` every piece has the usage; `parser` makes what finds the calls
    of tools in a text.
    """

    wishes: list[Wish]
    prompt_tokens: int
    chat: bool
    stream: bool
    usage: bool
    logprobs: bool
    n: int
    echoes: Sequence[str] = ()
    begins: Sequence[Sequence[int]] = ()
    drafters: bool = False
    continuous: bool = False
    parser: Callable[[], Parser] | None = None


class Reader:
    """Reads bodies for one decoder."""

    def __init__(self, decoder: Decoder, limits: Limits | None = None, *, seed: int = 0) -> None:
        self.decoder, self.limits = decoder, limits or Limits()
        self.window = min(self.limits.window or ENDLESS, window_of(decoder.loop.target))
        self.grammars, self.template = Grammars(decoder), Template(decoder.tokenizer)
        self.names = TokenTexts(decoder.tokenizer)
        self.seeds = Random(f"server {seed}")

    def form(self, body: Settings) -> Form | None:
        """The form that the answer must have; its grammar is to be compiled before the body is read.

        Raises:
            Refusal: a body asks for several.
        """
        return form(body, grammar(body, self._tools(body), self.template) if isinstance(body, Chat) else None)

    def completion(self, body: Completion, grammar: Grammar | None = None) -> Asked:
        """The texts of `/v1/completions`.

        Raises:
            Refusal: something is asked for that cannot be done.
            UserError: a prompt or a setting is wrong.
        """
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise Refusal(f"best_of={body.best_of}: give the same as n, or leave it out", param="best_of")
        self._few(len(given := several(body.prompt)) * (body.n or 1), "prompt")
        prompts = [self.read(prompt, options=reading(body)) for prompt in given]
        most = NO_TOKENS if body.max_tokens is None else body.max_tokens
        if most == 0 and not body.echo:
            raise Refusal("max_tokens=0: give 1 or more, or set echo", param="max_tokens")
        scored = body.logprobs if body.echo else None
        settings = {"logprobs": body.logprobs is not None, "top_logprobs": body.logprobs or 0}
        wishes = self._wishes(body, prompts, most, settings, scored, grammar)
        asked = self._asked(body, wishes, prompts, body.logprobs is not None)
        if not body.echo:
            return asked
        echoes = [self.echo(p, ids) for p, ids in zip(given, prompts, strict=True)]
        pairs = zip(prompts, echoes, strict=True)
        begins = () if scored is None else [self.names.begins(ids, text) for ids, text in pairs]
        return replace(asked, echoes=echoes, begins=begins)

    def chat(self, body: Chat, grammar: Grammar | None = None) -> Asked:
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
        self._few(body.n or 1, "n")
        tools = [tool.model_dump(exclude_none=True) for tool in self._tools(body)]
        talk = messages(body.messages, as_text=self.template.as_text)
        if any(one["role"] == "tool" for one in talk) and not self.template.takes_answers:
            raise Refusal("the chat template takes no messages of role 'tool'", param="messages")
        ids = self.read(talk, tools=tools, options=variables(body, self.decoder.tokenizer))
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        settings = {"logprobs": bool(body.logprobs), "top_logprobs": body.top_logprobs or 0}
        wishes = self._wishes(body, [ids], most, settings, None, grammar)
        asked = replace(self._asked(body, wishes, [ids], bool(body.logprobs)), chat=True)
        return self._with_calls(asked, body, tools) if tools else asked

    def _tools(self, body: Chat) -> list[Tool]:
        """The tools that the model is told of.

        Raises:
            Refusal: it cannot be told of any, or its calls would not be understood.
        """
        tools = offered(body)
        if tools and not self.template.takes_tools:
            raise Refusal("tools: the chat template of this model takes none; leave them out", param="tools")
        if tools and self.template.format is None and self.template.shipped is None:
            said = "tools: the form of this model's calls is not known; put them into a message instead"
            raise Refusal(said, param="tools")
        return tools

    def _with_calls(self, asked: Asked, body: Settings, tools: list[Any]) -> Asked:
        """The same, with its calls told apart from its text."""
        template, names = self.template, {tool["function"]["name"] for tool in tools}
        parser: Callable[[], Parser]
        if template.shipped is not None:
            prompt = self.decoder.tokenizer.decode(asked.wishes[0].prompt)
            parser = partial(Shipped, self.decoder.tokenizer, template.shipped, prompt, tools)
        else:
            assert template.format is not None
            parser = partial(Calls, template.format, names)
        told = spoken(body, self.decoder, template.marks)
        wishes = [replace(wish, spoken=told) for wish in asked.wishes]
        return replace(asked, wishes=wishes, parser=parser)

    def tokens(self, body: Tokenize, *, windows: int) -> list[int]:
        """The tokens of `/tokenize`: those that a prompt or messages would have.

        Raises:
            Refusal: it is longer than so many windows, or something is asked for that cannot be done.
            UserError: it is empty or wrong.
        """
        if body.messages is None:
            return self.read(body.prompt, options=reading(body), windows=windows)
        if body.add_special_tokens:
            raise Refusal("add_special_tokens: a chat template adds its own", param="add_special_tokens")
        talk, tools = messages(body.messages, as_text=self.template.as_text), body.tools or ()
        told = [tool.model_dump(exclude_none=True) for tool in tools]
        return self.read(talk, tools=told, options=variables(body, self.decoder.tokenizer), windows=windows)

    def read(
        self,
        prompt: Any,
        *,
        tools: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        windows: int = 1,
    ) -> list[int]:
        """The tokens of a prompt, which must not be longer than so many windows; for `options` see `encode`.

        Raises:
            Refusal: it is longer, as far as its beginning tells.
            UserError: it is empty or wrong.
        """
        tokenizer, size = self.decoder.tokenizer, self.decoder.loop.target.vocab_size
        bounded(tokenizer, prompt, windows * self.window, tools, options)
        return encode(tokenizer, prompt, vocab_size=size, chat=False, tools=tools, options=options)

    def echo(self, prompt: Any, ids: Sequence[int]) -> str:
        """The text of a prompt."""
        if isinstance(prompt, str):
            return prompt
        return str(self.decoder.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _asked(self, body: Settings, wishes: list[Wish], prompts: Any, logprobs: bool) -> Asked:
        if body.stream_options is not None and not body.stream:
            raise Refusal("stream_options: set stream to true as well", param="stream_options")
        told = body.stream_options or StreamOptions()
        usage, total = bool(told.include_usage), sum(map(len, prompts))
        made = Asked(wishes, total, False, bool(body.stream), usage, logprobs, body.n or 1)
        always = usage and bool(told.continuous_usage_stats)
        return replace(made, drafters=bool(told.include_drafters), continuous=always)

    def _few(self, texts: int, param: str) -> None:
        """See that a request asks for no more texts than there is room for, before anything is made of them.

        Raises:
            Refusal: it does.
        """
        room = self.limits.one_client
        if texts > room:
            said = f"{texts} texts in one request: this server takes at most {room} at once"
            raise Refusal(said, param=param)

    def _wishes(
        self,
        body: Settings,
        prompts: list[list[int]],
        most: int | None,
        more: Any,
        scored: int | None,
        grammar: Grammar | None,
    ) -> list[Wish]:
        n, settings = body.n or 1, settings_of(body, self.decoder, grammar) | more
        picked = "seed" in settings
        stop, told = stop_strings(() if body.stop is None else body.stop), spoken(body, self.decoder)
        without, longest, arm = self._speculation(body.speculative)
        if n > 1 and settings.get("seed") is None:
            settings["seed"] = self.seeds.getrandbits(32)
        wishes = []
        for ids in prompts:
            room = self._room(len(ids), most)
            settings["max_new_tokens"] = max(1, room)
            settings["processors"] = processors(body, self.decoder, grammar, len(ids), room)
            for sample in range(n):
                made: Sampling = self.decoder.settings(stop, len(ids), sample, alone=False, **settings)
                if stop and told is not None:
                    made = replace(made, ends=StopStrings(told, stop, len(ids)))
                wish = Wish(ids, made, stop, without, longest, picked, scored, written=room > 0, arm=arm)
                keeps = bool(body.include_stop_str_in_output)
                wishes.append(replace(wish, spoken=told, keeps_stop=keeps))
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

    def _speculation(self, asked: bool | Speculative | None) -> tuple[frozenset[str], int, Arm | None]:
        """The drafters that must not draft, the longest draft, and an arm instead of the policy's."""
        everyone = frozenset(self.decoder.loop.pool.drafters)
        if asked is None or asked is True:
            return frozenset(), ENDLESS, None
        if self.limits.choice == "nothing":
            said = "speculative: clients choose nothing of it here (--clients-choose); leave it out"
            raise Refusal(said, param="speculative")
        if asked is False or asked.policy == "none":
            return everyone, 0, None
        longest = ENDLESS if asked.max_length is None else asked.max_length
        mine = everyone if asked.drafters is None else frozenset(asked.drafters)
        if unknown := sorted(mine - everyone):
            said = f"speculative.drafters has {unknown[0][:80]!r}: choose from {', '.join(sorted(everyone))}"
            raise Refusal(said, param="speculative")
        return everyone - mine, longest, None if asked.policy is None else self._fixed(asked.policy, mine)

    def _fixed(self, policy: str, drafters: frozenset[str]) -> Arm:
        """The arm of a policy that plays one.

        Others learn from all requests together, and may read files.

        Raises:
            Refusal: it is none of these, or its drafts are too long.
        """
        if self.limits.choice != "everything":
            said = (
                f"speculative.policy={policy[:60]!r}: clients choose max_length and drafters, or "
                "false, and no policy, unless the server is started with --clients-choose everything"
            )
            raise Refusal(said, param="speculative")
        if not FIXED.fullmatch(policy.partition("?")[0]):
            said = (
                f"speculative.policy={policy[:60]!r}: a policy that learns is the server's; give none, or a "
                "fixed one such as static-4?drafter=ngram"
            )
            raise Refusal(said, param="speculative")
        names = [name for name in self.decoder.loop.pool.drafters if name in drafters]
        (arm,) = method(policy, names).policy.arms
        if arm.length > LONGEST:
            said = f"speculative.policy={policy[:60]!r}: give drafts of at most {LONGEST} tokens"
            raise Refusal(said, param="speculative")
        return arm
