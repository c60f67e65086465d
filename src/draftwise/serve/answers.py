"""Answers as JSON: whole ones, and the chunks of a stream."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from secrets import token_hex
from time import time
from typing import Any

from ..generation.text import TokenTexts
from .bodies import Chat
from .errors import APIError
from .generations import Event, Generation, TokenLogprob
from .requests import ParsedRequest
from .tools import AnswerPart, Parser

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON has no number for
REASONS = {"eos": "stop"}  # of an end, by OpenAI's names where those are others
Json = dict[str, Any]


class Answer:
    """The answer to one request to `/v1/completions`; the other routes' are made of it.

    `token_texts` has the texts of the tokens of log-probabilities.
    """

    prefix = "cmpl-"
    kind = chunk_kind = "text_completion"
    end = "data: [DONE]\n\n"  # follows the last chunk

    def __init__(
        self, parsed: ParsedRequest, sequences: Sequence[Generation], model: str, token_texts: TokenTexts
    ) -> None:
        self.parsed, self.sequences, self.model, self.token_texts = parsed, sequences, model, token_texts
        self.id, self.created = f"{self.prefix}{token_hex(12)}", int(time())
        self.echoed = set[int]()  # sequences whose prompt has been repeated
        self.parsers: defaultdict[int, Parser] = defaultdict(parsed.make_parser)  # by sequence
        self.calls = Counter[int]()

    def whole(self, events: Sequence[Event]) -> Json:
        """Return the answer once all sequences are over; `events` has the additions to each in one."""
        choices = [{"index": event.index} | self._choice(event) for event in events]
        return self._head(self.kind) | {"choices": choices} | self._numbers()

    def opening_chunks(self) -> list[Json]:
        """Return the chunks that begin a stream."""
        return []

    def chunks(self, event: Event) -> list[Json]:
        chunks = [self._chunk({"index": event.index} | choice) for choice in self._deltas(event)]
        if self.parsed.stream.include_usage and self.parsed.stream.continuous_usage_stats:
            usage = _usage(len(self.sequences[event.index].spec.prompt), event.tokens)
            chunks = [chunk | {"usage": usage} for chunk in chunks]
        return chunks

    def closing_chunks(self) -> list[Json]:
        """Return the chunks that end a stream: the usage, if it is wanted."""
        last = self._head(self.chunk_kind) | {"choices": []} | self._numbers()
        return [last] if self.parsed.stream.include_usage else []

    def error_chunk(self, error: APIError) -> Json:
        """Return the chunk of an error in mid-stream."""
        return error.body

    def to_event(self, chunk: Json) -> str:
        return f"data: {json.dumps(chunk, allow_nan=False, separators=(',', ':'))}\n\n"

    def usage(self) -> Json:
        """Return the tokens of the prompts and of the texts."""
        prompts = self.sequences[:: self.parsed.body.samples]
        read = sum(len(one.spec.prompt) for one in prompts)
        cached = sum(one.cached_tokens for one in prompts)
        written = sum(one.stats.tokens for one in self.sequences)
        return _usage(read, written) | {"prompt_tokens_details": {"cached_tokens": cached}}

    def _numbers(self) -> Json:
        return {"usage": self.usage(), "metrics": metrics(self.sequences)}

    def _chunk(self, choice: Json) -> Json:
        usage = {"usage": None} if self.parsed.stream.include_usage else {}
        return self._head(self.chunk_kind) | {"choices": [choice], **usage}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    # -- choices --------------------------------------------------------------------------------------

    def _deltas(self, event: Event) -> list[Json]:
        """Return what an event adds to the choice of its sequence, in one piece or several."""
        return [self._choice(event)]

    def _choice(self, event: Event) -> Json:
        """Return the choice of a sequence; an echoed prompt comes with its first event."""
        at, text, logprobs = event.index // self.parsed.body.samples, event.text, event.logprobs
        echo = self.parsed.echoes[at] if self.parsed.echoes else ""
        if event.index not in self.echoed:
            self.echoed.add(event.index)
            offsets = [begin - len(echo) for begin in self.parsed.offsets[at]] if self.parsed.offsets else ()
            text, logprobs = echo + text, [*_prompt_logprobs(self.sequences[event.index], offsets), *logprobs]
        table = None if self.parsed.body.tops is None else self._logprob_table(logprobs, len(echo))
        reason = REASONS.get(event.finish_reason, event.finish_reason) or None
        return {"text": text, "logprobs": table, "finish_reason": reason}

    def _logprob_table(self, logprobs: Sequence[TokenLogprob], offset: int) -> Json:
        """Return log-probabilities as plain completions have them: a column for each number."""
        has_tops = any(entry.tops for entry in logprobs)
        return {
            "tokens": [self.token_texts.text(entry.token) for entry in logprobs],
            "token_logprobs": [_finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [self._tops(entry) for entry in logprobs] if has_tops else None,
            "text_offset": [offset + entry.offset for entry in logprobs],
        }

    def _tops(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        """Return the most likely tokens by their text, and the token itself."""
        if entry.logprob is None:
            return None
        tops: dict[str, float | None] = {}
        for token, logprob in (*entry.tops, (entry.token, entry.logprob)):
            tops.setdefault(self.token_texts.text(token), _finite(logprob))
        return tops


class ChatAnswer(Answer):
    """The answer to one request to `/v1/chat/completions`."""

    prefix = "chatcmpl-"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def opening_chunks(self) -> list[Json]:
        """Return a chunk with the role for each sequence."""
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": one.index, "delta": delta, "finish_reason": None} for one in self.sequences]
        return [self._chunk(choice) for choice in choices]

    def _parse(self, event: Event) -> list[AnswerPart]:
        parts, body = self.parsers[event.index].feed(event.text, last=event.is_last), self.parsed.body
        calls = [part for part in parts if part.name]
        if isinstance(body, Chat) and body.parallel_tool_calls is False:  # the model may write several
            calls = calls[: 1 - self.calls[event.index]]
            parts = [part for part in parts if not part.name or part in calls]
        self.calls[event.index] += len(calls)
        return parts

    def _choice(self, event: Event) -> Json:
        """Return the choice of a whole text, with its calls separated from it."""
        parts = self._parse(event)
        content, reasoning = ("".join(getattr(part, key) for part in parts) for key in ("text", "reasoning"))
        calls = [_call(part) for part in parts if part.name]
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content if content.strip() else None, "tool_calls": calls}
        if reasoning:
            message["reasoning_content"] = reasoning
        reason = self._finish_reason(event)
        return {"message": message, "logprobs": self._logprobs(event), "finish_reason": reason}

    def _deltas(self, event: Event) -> list[Json]:
        """Return what an event adds to a message; a call is added once it is whole."""
        index, deltas = self.calls[event.index], list[Json]()
        for part in self._parse(event):
            if part.name:
                deltas.append({"tool_calls": [{"index": index} | _call(part)]})
                index += 1
            else:
                deltas.append({"content": part.text} if part.text else {"reasoning_content": part.reasoning})
        if event.logprobs and not deltas:
            deltas.append({"content": ""})
        choices: list[Json] = [
            {"delta": delta, "logprobs": None if i else self._logprobs(event), "finish_reason": None}
            for i, delta in enumerate(deltas)
        ]
        if reason := self._finish_reason(event):
            choices.append({"delta": {}, "logprobs": None, "finish_reason": reason})
        return choices

    def _finish_reason(self, event: Event) -> str | None:
        """Return why a chat ended: a text that calls tools ended for that."""
        reason = REASONS.get(event.finish_reason, event.finish_reason)
        return "tool_calls" if reason == "stop" and self.calls[event.index] else reason or None

    def _logprobs(self, event: Event) -> Json | None:
        """Return log-probabilities as chat has them: an object for each token."""
        if self.parsed.body.tops is None:
            return None
        content = [
            self._named(entry.token, entry.logprob)
            | {"top_logprobs": [self._named(*top) for top in entry.tops]}
            for entry in event.logprobs
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float | None) -> Json:
        text, content = self.token_texts.text(token), list(self.token_texts.bytes(token))
        return {"token": text, "logprob": _finite(logprob), "bytes": content}


def _prompt_logprobs(sequence: Generation, offsets: Sequence[int]) -> list[TokenLogprob]:
    """Return the scores of a prompt's tokens, of which the first has none; nothing without `offsets`."""
    read = sequence.spec.prompt_scores.scores if sequence.spec.prompt_scores else ()
    scores = [(None, ()), *((score.logprob, score.tops) for score in read)]
    return [
        TokenLogprob(token, logprob, tops, offset)
        for token, (logprob, tops), offset in zip(sequence.spec.prompt, scores, offsets, strict=False)
    ]


def _call(part: AnswerPart) -> Json:
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.id, "type": "function", "function": function}


def _usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finite(logprob: float | None) -> float | None:
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
    histogram = sequence.histogram.copy()  # the engine may still write to it, if the client has left
    by_length = {
        length: [histogram[length, accepted] for accepted in range(length + 1)]
        for length in sorted({length for length, _ in histogram})
    }
    longest, steps = max(by_length, default=0), histogram.total()
    total = [sum(histogram[length, accepted] for length in by_length) for accepted in range(longest + 1)]
    drafted, accepted = (sum(pair[k] * count for pair, count in histogram.items()) for k in (0, 1))
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
