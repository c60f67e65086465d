"""From the body of a request to the sequences that it asks for."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ..core.arms import Arm
from ..core.request import ENDLESS
from ..core.roles import window_of
from ..core.sampling import Sampling
from ..errors import UserError, pluralize
from ..generation.decoder import Decoder
from ..generation.prompts import encode, render_messages
from ..generation.text import StopStrings, TokenTexts, stop_strings
from ..inputs import whole
from ..policies.catalogue import method
from .bodies import (
    Chat,
    Completion,
    GenerationBody,
    ItemText,
    Message,
    Part,
    SamplingBody,
    Speculative,
    StreamOptions,
    TemplateBody,
    Tokenize,
    Tool,
    ToolCall,
)
from .errors import APIError
from .generations import MAX_DRAFT, GenerationRequest, PromptScores
from .grammar import Grammars, MakeConstraint, requested_form
from .limits import Limits
from .sandbox import Form
from .tools import Parser, Template, ToolTokenizer, call_form, offered_tools

FIXED = re.compile(r"static(-\d+)?")
ANY_SEED = -1  # as vLLM and llama.cpp have it
SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
VARIABLES = ("reasoning_effort", "documents", "add_generation_prompt", "continue_final_message")  # of a body
COPIED = ("name", "tool_call_id", "reasoning_content")  # of a message, where they are given
WINDOWS = 4  # whose tokens `/tokenize` and `/detokenize` take
CHARACTERS = 4  # of a token, in most texts
# Tokens that the beginning of a text may have more than all of it: it ends within a word, or within the name
# of a special token.
MARGIN = 256


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The sequences that one request asks for, those of one prompt after each other.

    `echoes` are the texts of the prompts where the answer repeats them, and `offsets` the beginnings of the
    texts of their tokens, where these are scored; `make_parser` makes the parser of a text's calls of tools.
    """

    body: Completion | Chat
    sequences: list[GenerationRequest]
    echoes: Sequence[str] = ()
    offsets: Sequence[Sequence[int]] = ()
    make_parser: Callable[[], Parser] = Parser

    @property
    def stream(self) -> StreamOptions:
        """What a stream tells besides its texts."""
        return self.body.stream_options or StreamOptions()


class RequestParser:
    """Parses bodies for one decoder. Its methods raise `APIError` or `UserError` for what cannot be done."""

    def __init__(self, decoder: Decoder, limits: Limits | None = None) -> None:
        self.decoder, self.limits = decoder, limits or Limits()
        self.window = min(self.limits.window or ENDLESS, window_of(decoder.loop.target))
        self.vocab_size = decoder.loop.target.vocab_size
        self.grammars, self.template = Grammars(decoder), Template(decoder.tokenizer)
        self.token_texts = TokenTexts(decoder.tokenizer)

    def parse_form(self, body: GenerationBody) -> Form | None:
        """Return the form of the answer; its grammar is to be compiled before the body is parsed."""
        calls = None
        if isinstance(body, Chat):
            calls = call_form(body, self._check_tools(body), self.template)
        return requested_form(body, calls)

    def parse_completion(self, body: Completion, grammar: MakeConstraint | None = None) -> ParsedRequest:
        """Return the sequences of `/v1/completions`."""
        if body.best_of not in (None, body.samples):
            raise APIError(f"best_of={body.best_of}: give the same as n, or leave it out", param="best_of")
        if body.max_tokens == 0 and not body.echo:
            raise APIError("max_tokens=0: give 1 or more, or set echo", param="max_tokens")
        prompts = split_prompts(body.prompt)
        self._check_samples(len(prompts) * body.samples, "prompt")
        encoded = [self.encode(prompt, tokenizer_options(body)) for prompt in prompts]
        sequences, echoes, offsets = self._sequences(body, encoded, grammar), list[str](), list[list[int]]()
        if body.echo:
            echoes = [self.decode(prompt, ids) for prompt, ids in zip(prompts, encoded, strict=True)]
        if body.echo and body.logprobs is not None:
            pairs = zip(encoded, echoes, strict=True)
            offsets = [self.token_texts.offsets(ids, text) for ids, text in pairs]
            scores = [PromptScores(body.logprobs) for _ in prompts]
            sequences = [replace(s, prompt_scores=scores[i // body.samples]) for i, s in enumerate(sequences)]
        return ParsedRequest(body, sequences, echoes, offsets)

    def parse_chat(self, body: Chat, grammar: MakeConstraint | None = None) -> ParsedRequest:
        """Return the sequences of `/v1/chat/completions`."""
        if body.top_logprobs and not body.logprobs:
            message = f"top_logprobs={body.top_logprobs}: set logprobs to true as well"
            raise APIError(message, param="top_logprobs")
        if body.max_tokens == 0:
            raise APIError("max_tokens=0: give 1 or more", param="max_tokens")
        self._check_samples(body.samples, "n")
        tools = [tool.model_dump(exclude_none=True) for tool in self._check_tools(body)]
        messages = template_messages(body.messages, as_text=self.template.as_text)
        if any(message["role"] == "tool" for message in messages) and not self.template.takes_results:
            raise APIError("the chat template takes no messages of role 'tool'", param="messages")
        ids = self.encode(messages, template_options(body, tools, self.decoder.tokenizer))
        sequences = self._sequences(body, [ids], grammar, self.template.marks if tools else ())
        make_parser = self.template.call_parser(ids, tools) if tools else Parser
        return ParsedRequest(body, sequences, make_parser=make_parser)

    def _check_tools(self, body: Chat) -> list[Tool]:
        """Return the tools that the model is told of; it must take them, and its calls be understood."""
        tools = offered_tools(body)
        if tools and not self.template.takes_tools:
            raise APIError("tools: the chat template of this model takes none; leave them out", param="tools")
        if tools and self.template.format is None and self.template.shipped is None:
            message = "tools: the form of this model's calls is not known; put them into a message instead"
            raise APIError(message, param="tools")
        return tools

    def tokenize(self, body: Tokenize) -> list[int]:
        """Return the tokens of `/tokenize`: those that a prompt or messages would have."""
        if body.messages is None:
            return self.encode(body.prompt, tokenizer_options(body), windows=WINDOWS)
        if body.add_special_tokens:
            raise APIError("add_special_tokens: a chat template adds its own", param="add_special_tokens")
        messages = template_messages(body.messages, as_text=self.template.as_text)
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        options = template_options(body, tools, self.decoder.tokenizer)
        return self.encode(messages, options, windows=WINDOWS)

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of `/detokenize`."""
        return self.decode(tokens, self.encode(tokens, windows=WINDOWS))

    def encode(self, prompt: Any, options: Mapping[str, Any] | None = None, *, windows: int = 1) -> list[int]:
        """Return the tokens of a prompt of at most so many windows; for `options` see `encode`."""
        tokenizer = self.decoder.tokenizer
        check_length(tokenizer, prompt, windows * self.window, options)
        return encode(tokenizer, prompt, vocab_size=self.vocab_size, chat=False, options=options)

    def decode(self, prompt: Any, ids: Sequence[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self.decoder.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _check_samples(self, count: int, param: str) -> None:
        """Reject more sequences than there is room for, before anything is made of them."""
        room = self.limits.one_client
        if count > room:
            raise APIError(
                f"{count} texts in one request: this server takes at most {room} at once", param=param
            )

    def _sequences(
        self,
        body: Completion | Chat,
        prompts: list[list[int]],
        grammar: MakeConstraint | None,
        marks: Collection[str] = (),
    ) -> list[GenerationRequest]:
        """Return the sequences of a body; for `marks` see `output_tokenizer`."""
        if body.stream_options is not None and not body.stream:
            raise APIError("stream_options: set stream to true as well", param="stream_options")
        settings = sampling_settings(body, self.decoder, grammar)
        is_deterministic = "seed" in settings
        stop = stop_strings(() if body.stop is None else body.stop)
        tokenizer, drafts = output_tokenizer(body, self.decoder, marks), self._speculation(body.speculative)
        sequences = []
        for ids in prompts:
            room = self._room(len(ids), body.length)
            settings["max_new_tokens"] = max(1, room)
            settings["processors"] = self._processors(body, grammar, len(ids), room)
            for sample in range(body.samples):
                sampling: Sampling = self.decoder.settings(stop, len(ids), sample, alone=False, **settings)
                if stop and tokenizer is not None:
                    sampling = replace(sampling, ends=StopStrings(tokenizer, stop, len(ids)))
                sequence = GenerationRequest(
                    ids,
                    sampling,
                    stop,
                    is_deterministic=is_deterministic,
                    has_output=room > 0,
                    tokenizer=tokenizer,
                    keeps_stop=bool(body.include_stop_str_in_output),
                    **drafts,
                )
                sequences.append(sequence)
        return sequences

    def _processors(
        self, body: SamplingBody, grammar: MakeConstraint | None, length: int, room: int
    ) -> list[Any]:
        """Return the processors of a sequence of up to `room` tokens after a prompt of so many."""
        least, processors = body.min_tokens or 0, list[Any]()
        if least > room:
            message = f"min_tokens={least}: the text has {pluralize(room, 'token')} at most"
            raise APIError(message, param="min_tokens")
        if least and body.stop:
            message = "min_tokens and stop exclude each other here: give stop_token_ids"
            raise APIError(message, param="min_tokens")
        exclusive = {  # each forbids tokens that another may demand
            "an answer in a given form": grammar is not None,
            "allowed_token_ids": bool(body.allowed_token_ids),
            "min_tokens or bad_words": bool(least or body.bad_words),
        }
        if len(names := [name for name, is_set in exclusive.items() if is_set]) > 1:
            raise APIError(f"{names[0]} excludes {names[1]}: give one", param=names[1].partition(" ")[0])
        if body.logit_bias:
            processors.append(bias_tokens(body.logit_bias, self.vocab_size))
        if body.bad_words:
            processors.append(bar_words(body.bad_words, self.decoder.tokenizer))
        if body.allowed_token_ids:
            check_tokens(body.allowed_token_ids, self.vocab_size, "allowed_token_ids")
            processors.append(allow_tokens(body.allowed_token_ids))
        if least:
            processors.append(bar_until(length + least, {*self.decoder.eos, *(body.stop_token_ids or ())}))
        if grammar is not None:
            processors.append(grammar)
        return processors

    def _room(self, length: int, max_tokens: int | None) -> int:
        """Return how many tokens to write at most; prompt and answer must fit into the window."""
        least = 1 if max_tokens is None else max_tokens
        if length + least > self.window:
            message = (
                f"the prompt has {pluralize(length, 'token')} and the answer up to {least}, but the "
                f"window has {self.window}: shorten the prompt, or ask for fewer tokens"
            )
            param = "messages" if max_tokens is None else None
            raise APIError(message, code="context_length_exceeded", param=param)
        return self.window - length if max_tokens is None else max_tokens

    def _speculation(self, settings: bool | Speculative | None) -> dict[str, Any]:
        """Return the fields of a `GenerationRequest` for what a client chooses of its drafts."""
        drafters = frozenset(self.decoder.loop.pool.drafters)
        if settings is None or settings is True:
            return {}
        if self.limits.clients_choose == "nothing":
            message = "speculative: clients choose nothing of it here (--clients-choose); leave it out"
            raise APIError(message, param="speculative")
        if settings is False or settings.policy == "none":
            return {"excluded": drafters, "max_draft": 0}
        max_draft = ENDLESS if settings.max_length is None else settings.max_length
        chosen = drafters if settings.drafters is None else frozenset(settings.drafters)
        if unknown := sorted(chosen - drafters):
            choices = ", ".join(sorted(drafters))
            message = f"speculative.drafters has {unknown[0][:80]!r}: choose from {choices}"
            raise APIError(message, param="speculative")
        arm = None if settings.policy is None else self._fixed_arm(settings.policy, chosen)
        return {"excluded": drafters - chosen, "max_draft": max_draft, "arm": arm}

    def _fixed_arm(self, policy: str, drafters: frozenset[str]) -> Arm:
        """Return the arm of a policy that plays one; others learn from all requests together, and may read
        files."""

        def refuse(remedy: str) -> APIError:
            return APIError(f"speculative.policy={policy[:60]!r}: {remedy}", param="speculative")

        if self.limits.clients_choose != "everything":
            raise refuse(
                "clients choose max_length and drafters, or false, and no policy, unless the server is "
                "started with --clients-choose everything"
            )
        if not FIXED.fullmatch(policy.partition("?")[0]):
            raise refuse(
                "a policy that learns is the server's; give none, or a fixed one such as "
                "static-4?drafter=ngram"
            )
        names = [name for name in self.decoder.loop.pool.drafters if name in drafters]
        (arm,) = method(policy, names).policy.arms
        if arm.length > MAX_DRAFT:
            raise refuse(f"give drafts of at most {MAX_DRAFT} tokens")
        return arm


def sampling_settings(
    body: Completion | Chat, decoder: Decoder, grammar: MakeConstraint | None
) -> dict[str, Any]:
    """Return arguments of `Decoder.settings` that hold for all sequences; the temperature is 1 unless set."""
    settings: dict[str, Any] = {
        name: value for name in SAMPLING if (value := getattr(body, name)) is not None
    }
    settings.setdefault("temperature", decoder.defaults.get("temperature", 1.0))
    settings |= {"logprobs": body.tops is not None, "top_logprobs": body.tops or 0}
    if body.top_k is not None:
        settings["top_k"] = max(0, body.top_k)
    if body.seed not in (None, ANY_SEED):
        settings["seed"] = body.seed
    if body.stop_token_ids or body.ignore_eos:
        ends = body.stop_token_ids or ()
        check_tokens(ends, decoder.loop.target.vocab_size, "stop_token_ids")
        # A text under a grammar ends where its form does.
        settings["eos"] = {*ends, *(() if body.ignore_eos and grammar is None else decoder.eos)}
    return settings


def output_tokenizer(body: SamplingBody, decoder: Decoder, marks: Collection[str] = ()) -> Any:
    """Return the tokenizer that decodes an answer; None if it is the decoder's.

    It shows the special tokens `marks`, or all if the request wants them, and no token that ends the text,
    unless the request wants that one too.
    """
    tokenizer, shows_all = decoder.tokenizer, body.skip_special_tokens is False
    hidden = set() if body.include_stop_str_in_output else set(body.stop_token_ids or ())
    if not (hidden or shows_all or marks):
        return None
    special = list(getattr(tokenizer, "all_special_ids", ()))
    names = tokenizer.convert_ids_to_tokens(special) if special else ()
    if not shows_all:
        hidden |= {token for token, name in zip(special, names, strict=True) if name not in marks}
    elif not (body.include_stop_str_in_output or body.ignore_eos):
        hidden |= decoder.eos
    return ToolTokenizer(tokenizer, hidden)


def tokenizer_options(body: Completion | Tokenize) -> dict[str, Any]:
    return {} if body.add_special_tokens is None else {"add_special_tokens": body.add_special_tokens}


def split_prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a completion, each a text or token ids."""
    if not prompt:
        raise UserError("the prompt is empty: give some text")
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


def check_length(
    tokenizer: Any, prompt: Any, max_tokens: int, options: Mapping[str, Any] | None = None
) -> None:
    """Reject a prompt, text, messages or token ids, of more than about `max_tokens` tokens.

    Megabytes take a tokenizer seconds, so longer and longer beginnings of a text are read until one has too
    many tokens. Its bytes would not tell: one token may stand for any number of spaces, or of characters
    that a tokenizer does not know.
    """
    text, param, length = prompt, "prompt", CHARACTERS * (max_tokens + MARGIN)
    if not isinstance(prompt, str) and prompt and isinstance(prompt[0], dict):
        if sum(len(str(part)) for part in (prompt, options)) <= length:
            return
        text, param = render_messages(tokenizer, prompt, options), "messages"
    is_long = not isinstance(text, str) and len(text) > max_tokens
    while isinstance(text, str) and not is_long and length < len(text):
        is_long = len(tokenizer(whole(text[:length], "the prompt"))["input_ids"]) > max_tokens + MARGIN
        length *= 2
    if is_long:
        message = f"the prompt has more than {max_tokens} tokens, the most that are read here: shorten it"
        raise APIError(message, code="context_length_exceeded", param=param)


def template_messages(messages: Sequence[Message], *, as_text: bool = False) -> list[dict[str, Any]]:
    """Return messages as the chat template takes them, arguments of calls as objects or `as_text`."""
    result = []
    for i, message in enumerate(messages):
        content, calls = message.content, message.tool_calls
        if content is None and not calls:
            raise APIError(f"messages.{i}.content is missing: give it", param="messages")
        role = "system" if message.role == "developer" else message.role
        fields: dict[str, Any] = {"role": role, "content": join_content(content)}
        fields |= {key: value for key in COPIED if (value := getattr(message, key))}
        if calls:
            if message.role != "assistant":
                raise APIError(f"messages.{i}.tool_calls: only an assistant calls tools", param="messages")
            fields["tool_calls"] = [_template_call(call, as_text) for call in calls]
        result.append(fields)
    return result


def _template_call(call: ToolCall, as_text: bool) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        shown = ascii(call.function.arguments[:40])
        raise APIError(f"tool_calls: the arguments {shown} are no JSON", param="messages") from None
    arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def template_options(body: TemplateBody, tools: Sequence[Any], tokenizer: Any) -> dict[str, Any]:
    """Return the tools and the variables of the chat template, as vLLM sets them."""
    variables = {name: value for name in VARIABLES if (value := getattr(body, name)) is not None}
    if body.reasoning_effort is not None:
        variables["enable_thinking"] = body.reasoning_effort != "none"
    own = body.chat_template_kwargs or {}
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters, *VARIABLES[1:]}
    if wrong := sorted({*reserved, "messages", "chat_template"} & own.keys()):
        message = f"chat_template_kwargs: {wrong[0]!r} is no variable of the template; leave it out"
        raise APIError(message, param="chat_template_kwargs")
    return variables | own | ({"tools": list(tools)} if tools else {})


def join_content(content: str | Sequence[Part | ItemText] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


# -- logits processors ---------------------------------------------------------------------------------


Processor = Callable[[Any, Any], Any]


def bias_tokens(bias: Mapping[str, float], vocab_size: int) -> Processor:
    """Add a bias to the logits of some tokens, given by their ids as text."""
    for token in bias:
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocab_size):
            message = f"logit_bias has {token[:20]!r}: give token ids from 0 to {vocab_size - 1}"
            raise APIError(message, param="logit_bias")
    tokens, values = [int(token) for token in bias], list(bias.values())

    def process(input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, tokens] += scores.new_tensor(values)
        return scores

    return process


def allow_tokens(tokens: Collection[int]) -> Processor:
    """Bar all tokens but these."""
    allowed = sorted(set(tokens))

    def process(input_ids: Any, scores: Any) -> Any:
        masked = scores.new_full(scores.shape, -inf)
        masked[:, allowed] = scores[:, allowed]
        return masked

    return process


def bar_words(words: Sequence[str], tokenizer: Any) -> Processor:
    """Bar words at the beginning of a text and after a space."""
    forms = sorted({form for word in words for form in (word, f" {word.lstrip()}")})
    return bar_sequences([tokenizer(form, add_special_tokens=False)["input_ids"] for form in forms])


def bar_sequences(sequences: Sequence[Sequence[int]]) -> Processor:
    """Bar the last token of each of some sequences where the text ends with the others."""
    sequences = [list(sequence) for sequence in sequences if sequence]
    longest = max(map(len, sequences), default=1)

    def barred(input_ids: Any) -> list[int]:
        end = input_ids[0, max(0, input_ids.shape[-1] - longest + 1) :].tolist()
        return [one[-1] for one in sequences if end[len(end) - len(one) + 1 :] == one[:-1]]

    return _bar(barred)


def bar_until(length: int, ends: Collection[int]) -> Processor:
    """Bar the tokens that end a text before it has `length` tokens with its prompt."""
    tokens = sorted(ends)
    return _bar(lambda input_ids: tokens if input_ids.shape[-1] < length else [])


def _bar(barred: Callable[[Any], list[int]]) -> Processor:
    def process(input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, barred(input_ids)] = -inf
        return scores

    return process


def check_tokens(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Reject token ids of a field outside the vocabulary."""
    if max(tokens, default=0) >= vocab_size:
        message = f"{param} has {max(tokens)}: give token ids from 0 to {vocab_size - 1}"
        raise APIError(message, param=param)
