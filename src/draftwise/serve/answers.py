"""Answers as JSON: whole ones, and the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any

from .errors import APIError
from .generations import Event, Generation, TokenLogprob
from .requests import ParsedRequest
from .tokens import TokenTexts
from .tools import AnswerPart, Parser

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON has no number for
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
Json = dict[str, Any]


@dataclass
class Answer:
    """The answer to one request, in the shape of its route.

    `token_texts` has the texts of the tokens of log-probabilities.
    """

    parsed: ParsedRequest
    model: str
    token_texts: TokenTexts
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.parsers: dict[int, Parser] = {}
        self.calls: dict[int, int] = {}  # how many of each sequence
        self.id = f"{'chatcmpl' if self.parsed.is_chat else 'cmpl'}-{token_hex(12)}"

    # -- whole ----------------------------------------------------------------------------------------

    def whole(self, sequences: Sequence[Generation], events: Sequence[Sequence[Event]]) -> Json:
        """Return the answer once all sequences are over; `events` has those of each."""
        choices = []
        for sequence, own in zip(sequences, events, strict=True):
            text = "".join(event.text for event in own)
            logprobs = [entry for event in own for entry in event.logprobs]
            if self.parsed.is_chat:
                message = self._message(sequence, text)
                reason = self._finish_reason(sequence, own[-1].finish_reason)
                choice: Json = {"message": message, "logprobs": self._chat_logprobs(logprobs)}
            else:
                reason = REASONS.get(own[-1].finish_reason, own[-1].finish_reason)
                echo, scores = self._echo(sequence)
                table = self._logprob_table([*scores, *logprobs], len(echo))
                choice = {"text": echo + text, "logprobs": table}
            choices.append({"index": sequence.index, "finish_reason": reason} | choice)
        head = self._head("chat.completion" if self.parsed.is_chat else "text_completion")
        return head | {"choices": choices, "usage": self.usage(sequences), "metrics": metrics(sequences)}

    def _message(self, sequence: Generation, text: str) -> Json:
        """Return an assistant's message, with its calls separated from its text."""
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if self.parsed.make_parser is None:
            return message
        parts = self._parse(sequence, text, last=True)
        content = "".join(part.text for part in parts)
        calls = [_call(part) for part in parts if part.name]
        reasoning = "".join(part.reasoning for part in parts)
        message["content"] = content if content.strip() or not calls else None
        if calls:
            message["tool_calls"] = calls
        return message | ({"reasoning_content": reasoning} if reasoning else {})

    def _parse(self, sequence: Generation, text: str, *, last: bool) -> list[AnswerPart]:
        assert self.parsed.make_parser is not None
        at = sequence.index
        if at not in self.parsers:
            self.parsers[at] = self.parsed.make_parser()
        parts = self.parsers[at].feed(text, last=last)
        self.calls[at] = self.calls.get(at, 0) + sum(bool(part.name) for part in parts)
        return parts

    def _finish_reason(self, sequence: Generation, reason: str) -> str | None:
        """Return why a chat ended: a text that calls tools ended for that."""
        reason = REASONS.get(reason, reason)
        return "tool_calls" if reason == "stop" and self.calls.get(sequence.index) else reason or None

    def usage(self, sequences: Sequence[Generation]) -> Json:
        """Return the tokens of the prompts and of the texts."""
        prompts = [one for one in sequences if one.index % self.parsed.n == 0]
        usage = _usage(self.parsed.prompt_tokens, sum(one.stats.tokens for one in sequences))
        return usage | {"prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)}}

    # -- in pieces ------------------------------------------------------------------------------------

    def opening_chunks(self, sequences: Sequence[Generation]) -> list[Json]:
        """Return the first chunks of a chat, with the role."""
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": one.index, "delta": delta, "finish_reason": None} for one in sequences]
        return [self._chunk(choice) for choice in choices if self.parsed.is_chat]

    def chunks(self, sequence: Generation, event: Event, *, first: bool) -> list[Json]:
        """Return the chunks of one event, `first` if it is its sequence's first one."""
        choices: list[Json] = []
        if self.parsed.is_chat:
            for i, delta in enumerate(self._deltas(sequence, event)):
                logprobs = None if i else self._chat_logprobs(event.logprobs)
                choices.append({"delta": delta, "logprobs": logprobs, "finish_reason": None})
            if reason := self._finish_reason(sequence, event.finish_reason):
                choices.append({"delta": {}, "logprobs": None, "finish_reason": reason})
        else:
            finish_reason = REASONS.get(event.finish_reason, event.finish_reason) or None
            echo, scores = self._echo(sequence) if first else ("", [])
            table = self._logprob_table([*scores, *event.logprobs], len(self._echo_text(sequence)))
            choices.append({"finish_reason": finish_reason, "text": echo + event.text, "logprobs": table})
        chunks = [self._chunk({"index": sequence.index} | choice) for choice in choices]
        if self.parsed.repeats_usage:
            usage = _usage(len(sequence.spec.prompt), event.tokens)
            chunks = [chunk | {"usage": usage} for chunk in chunks]
        return chunks

    def _deltas(self, sequence: Generation, event: Event) -> list[Json]:
        """Return what an event adds to a message; a call is added once it is whole."""
        if self.parsed.make_parser is None:
            return [{"content": event.text}] if event.pieces or event.logprobs else []
        at = self.calls.get(sequence.index, 0)
        deltas: list[Json] = []
        for part in self._parse(sequence, event.text, last=event.is_last):
            if part.name:
                deltas.append({"tool_calls": [{"index": at} | _call(part)]})
                at += 1
            else:
                deltas.append({"content": part.text} if part.text else {"reasoning_content": part.reasoning})
        return deltas or ([{"content": ""}] if self.parsed.has_logprobs and event.logprobs else [])

    def last_chunk(self, sequences: Sequence[Generation]) -> Json:
        """Return the chunk that ends a stream, with the usage."""
        head = self._head("chat.completion.chunk" if self.parsed.is_chat else "text_completion")
        return head | {"choices": [], "usage": self.usage(sequences), "metrics": metrics(sequences)}

    def error_chunk(self, error: APIError) -> Json:
        """Return the chunk of an error in mid-stream."""
        return error.body

    def to_event(self, chunk: Json) -> str:
        """Return a chunk as a server-sent event."""
        return f"data: {json.dumps(chunk, allow_nan=False, separators=(',', ':'))}\n\n"

    @property
    def end(self) -> str:
        """What follows the last chunk."""
        return "data: [DONE]\n\n"

    def _chunk(self, choice: Json) -> Json:
        head = self._head("chat.completion.chunk" if self.parsed.is_chat else "text_completion")
        return head | {"choices": [choice], **({"usage": None} if self.parsed.has_usage else {})}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    # -- log-probabilities ----------------------------------------------------------------------------

    def _echo(self, sequence: Generation) -> tuple[str, list[TokenLogprob]]:
        """Return the prompt that the answer repeats, and the scores of its tokens; the first has none."""
        text = self._echo_text(sequence)
        if not self.parsed.offsets:
            return text, []
        logprobs, offsets = [], self.parsed.offsets[sequence.index // self.parsed.n]
        for k, token in enumerate(sequence.spec.prompt):
            score = sequence.scores[k - 1] if k else None
            logprob, tops = (score.logprob, score.tops) if score else (None, ())
            logprobs.append(TokenLogprob(token, logprob, tops, offsets[k] - len(text)))
        return text, logprobs

    def _echo_text(self, sequence: Generation) -> str:
        return self.parsed.echoes[sequence.index // self.parsed.n] if self.parsed.echoes else ""

    def _chat_logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        """Return log-probabilities as chat has them: an object for each token."""
        if not self.parsed.has_logprobs:
            return None
        content = [
            self._named(entry.token, entry.logprob)
            | {"top_logprobs": [self._named(*top) for top in entry.tops]}
            for entry in logprobs
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float | None) -> Json:
        text, content = self.token_texts.text(token), list(self.token_texts.bytes(token))
        return {"token": text, "logprob": finite(logprob), "bytes": content}

    def _logprob_table(self, logprobs: Sequence[TokenLogprob], offset: int) -> Json | None:
        """Return log-probabilities as plain completions have them: a column for each number."""
        if not self.parsed.has_logprobs:
            return None
        has_tops = any(entry.tops for entry in logprobs)
        return {
            "tokens": [self.token_texts.text(entry.token) for entry in logprobs],
            "token_logprobs": [finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [self._tops(entry) for entry in logprobs] if has_tops else None,
            "text_offset": [offset + entry.offset for entry in logprobs],
        }

    def _tops(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        """Return the most likely tokens by their text, and the token itself."""
        if entry.logprob is None:
            return None
        tops: dict[str, float | None] = {}
        for token, logprob in (*entry.tops, (entry.token, entry.logprob)):
            tops.setdefault(self.token_texts.text(token), finite(logprob))
        return tops


def _call(part: AnswerPart) -> Json:
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.id, "type": "function", "function": function}


def _usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def finite(logprob: float | None) -> float | None:
    """Return a log-probability that JSON can hold."""
    return None if logprob is None else max(MIN_LOGPROB, logprob)


def metrics(sequences: Sequence[Generation]) -> Json | None:
    """Return how a text was drafted and how long it took, in vLLM's schema; None for several texts."""
    if len(sequences) != 1:
        return None
    (sequence,) = sequences
    stats, times = sequence.stats, sequence.times
    seconds = max(0.0, times.last - times.first)
    own = {"target": stats.tokens - sum(stats.by_drafter.values())}
    return {
        "time_to_first_token_ms": 1000 * max(0.0, times.first - times.joined),
        "generation_time_ms": 1000 * seconds,
        "queue_time_ms": 1000 * max(0.0, (times.joined or times.ended) - times.arrived),
        "mean_itl_ms": 1000 * seconds / (stats.tokens - 1) if stats.tokens > 1 else None,
        "tokens_per_second": stats.tokens / (times.last - times.joined) if stats.tokens else None,
        "speculative_decoding": speculation(sequence),
        "draftwise": {
            "rounds": stats.rounds,
            "tokens_by_drafter": {**stats.by_drafter, **own},
            "rounds_by_arm": stats.pulls,
            "seconds_by_phase": stats.seconds_by_phase,
            "faults": stats.faults,
        },
    }


def speculation(sequence: Generation) -> Json:
    """Return what was accepted in steps with a draft, in the schema of vLLM 0.32."""
    by_length = {
        length: [steps.get(accepted, 0) for accepted in range(length + 1)]
        for length, steps in sorted(sequence.histogram.items())
    }
    longest = max(by_length, default=0)
    total = [sum(row[j] for row in by_length.values() if j < len(row)) for j in range(longest + 1)]
    steps, drafted = sum(total), sum(length * sum(row) for length, row in by_length.items())
    accepted = sum(j * count for j, count in enumerate(total))
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": total,
        "acceptance_histogram_by_draft_length": {str(length): row for length, row in by_length.items()},
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": longest,
    }
