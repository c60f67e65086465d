"""Answers as JSON: whole ones, and the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any

from .calls import Found, Parser
from .refusal import Refusal
from .texts import Entry, Event, Text
from .tokens import TokenTexts
from .wishes import Asked

LEAST = -9999.0  # in place of minus infinity, which JSON has no number for
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
Json = dict[str, Any]


@dataclass
class Answer:
    """The answer to one request, in the shape of its route.

    `names` turns token ids into the texts of the log-probabilities.
    """

    asked: Asked
    model: str
    names: TokenTexts
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.parsers: dict[int, Parser] = {}
        self.called: dict[int, int] = {}  # calls of each text
        self.id = f"{'chatcmpl' if self.asked.chat else 'cmpl'}-{token_hex(12)}"

    # -- whole ----------------------------------------------------------------------------------------

    def whole(self, texts: Sequence[Text], events: Sequence[Sequence[Event]]) -> Json:
        """The answer once all texts are over; `events` has those of each text."""
        choices = []
        for text, mine in zip(texts, events, strict=True):
            said = "".join(event.text for event in mine)
            entries = [entry for event in mine for entry in event.entries]
            choices.append(self._choice(text, said, entries, mine[-1].reason))
        head = self._head("chat.completion" if self.asked.chat else "text_completion")
        return head | {"choices": choices, "usage": self.usage(texts), "metrics": metrics(texts)}

    def _choice(self, text: Text, said: str, entries: Sequence[Entry], reason: str) -> Json:
        ended = {"index": text.place, "finish_reason": REASONS.get(reason, reason)}
        if self.asked.chat:
            message = self._message(text, said)
            return (
                ended | self._reason(text, reason) | {"message": message, "logprobs": self._logprobs(entries)}
            )
        before, scores = self._echo(text)
        return ended | {"text": before + said, "logprobs": self._table([*scores, *entries], len(before))}

    def _message(self, text: Text, said: str) -> Json:
        """An assistant's message, with its calls told apart from its text."""
        message: Json = {"role": "assistant", "content": said, "refusal": None}
        if self.asked.parser is None:
            return message
        found = self._found(text, said, last=True)
        content = "".join(one.text for one in found)
        calls = [_call(one) for one in found if one.name]
        thought = "".join(one.reasoning for one in found)
        message["content"] = content if content.strip() or not calls else None
        return (
            message
            | ({"tool_calls": calls} if calls else {})
            | ({"reasoning_content": thought} if thought else {})
        )

    def _found(self, text: Text, said: str, *, last: bool) -> list[Found]:
        """What a piece of a text says, and calls."""
        assert self.asked.parser is not None
        if text.place not in self.parsers:
            self.parsers[text.place] = self.asked.parser()
        found = self.parsers[text.place].feed(said, last=last)
        self.called[text.place] = self.called.get(text.place, 0) + sum(bool(one.name) for one in found)
        return found

    def _reason(self, text: Text, reason: str) -> Json:
        """Why a chat ended: a text that calls tools ended for that."""
        told = REASONS.get(reason, reason) or None
        return {"finish_reason": "tool_calls" if told == "stop" and self.called.get(text.place) else told}

    def usage(self, texts: Sequence[Text]) -> Json:
        """Tokens of the prompts and of the texts."""
        written = sum(text.stats.tokens for text in texts)
        prompt = self.asked.prompt_tokens
        cached = sum(text.reused for text in texts if text.place % self.asked.n == 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    # -- in pieces ------------------------------------------------------------------------------------

    def openings(self, texts: Sequence[Text]) -> list[Json]:
        """The first chunks of a chat: who speaks."""
        if not self.asked.chat:
            return []
        return [
            self._chunk(
                {"index": t.place, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            )
            for t in texts
        ]

    def chunks(self, text: Text, event: Event, *, first: bool) -> list[Json]:
        """The chunks of one event, `first` if it is its text's first one."""
        found = self._pieces(text, event, first=first)
        if self.asked.continuous:
            prompt, written = len(text.wish.prompt), event.tokens
            total = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
            found = [chunk | {"usage": total} for chunk in found]
        return found

    def _pieces(self, text: Text, event: Event, *, first: bool) -> list[Json]:
        reason = REASONS.get(event.reason, event.reason) or None
        if self.asked.chat:
            found = []
            deltas = self._deltas(text, event)
            for place, delta in enumerate(deltas):
                logprobs = None if place else self._logprobs(event.entries)
                found.append(
                    {"index": text.place, "delta": delta, "logprobs": logprobs, "finish_reason": None}
                )
            if reason:
                ended = {"index": text.place, "delta": {}, "logprobs": None}
                found.append(ended | self._reason(text, event.reason))
            return [self._chunk(choice) for choice in found]
        before, scores = self._echo(text) if first else ("", [])
        offset = len(self._before(text))
        table = self._table([*scores, *event.entries], offset)
        ended = {"index": text.place, "finish_reason": reason}
        return [self._chunk(ended | {"text": before + event.text, "logprobs": table})]

    def _deltas(self, text: Text, event: Event) -> list[Json]:
        """What an event adds to a message; a call is told once it is whole."""
        if self.asked.parser is None:
            return [{"content": event.text}] if event.pieces or event.entries else []
        before = self.called.get(text.place, 0)
        deltas: list[Json] = []
        for one in self._found(text, event.text, last=event.last):
            if one.name:
                deltas.append({"tool_calls": [{"index": before} | _call(one)]})
                before += 1
            else:
                deltas.append({"content": one.text} if one.text else {"reasoning_content": one.reasoning})
        return deltas or ([{"content": ""}] if self.asked.logprobs and event.entries else [])

    def last(self, texts: Sequence[Text]) -> Json:
        """The chunk that ends a stream, with the usage."""
        head = self._head("chat.completion.chunk" if self.asked.chat else "text_completion")
        return head | {"choices": [], "usage": self.usage(texts), "metrics": metrics(texts)}

    def sent(self, chunk: Json) -> str:
        """One server-sent event."""
        return f"data: {json.dumps(chunk, allow_nan=False, separators=(',', ':'))}\n\n"

    def failed(self, refusal: Refusal) -> Json:
        """The chunk that tells of an error in mid-stream."""
        return refusal.body

    @property
    def end(self) -> str:
        """What follows the last chunk."""
        return "data: [DONE]\n\n"

    def _chunk(self, choice: Json) -> Json:
        head = self._head("chat.completion.chunk" if self.asked.chat else "text_completion")
        return head | {"choices": [choice], **({"usage": None} if self.asked.usage else {})}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    # -- log-probabilities ----------------------------------------------------------------------------

    def _echo(self, text: Text) -> tuple[str, list[Entry]]:
        """The prompt that the answer repeats, and the scores of its tokens; the first has none."""
        before = self._before(text)
        if not self.asked.begins:
            return before, []
        entries, begins = [], self.asked.begins[text.place // self.asked.n]
        for k, token in enumerate(text.wish.prompt):
            score = text.scores[k - 1] if k else None
            begin = begins[k] - len(before)
            entries.append(Entry(token, score and score.logprob, score.tops if score else (), begin))
        return before, entries

    def _before(self, text: Text) -> str:
        """The prompt that the answer repeats."""
        return self.asked.echoes[text.place // self.asked.n] if self.asked.echoes else ""

    def _logprobs(self, entries: Sequence[Entry]) -> Json | None:
        """As chat has them: an object for each token."""
        if not self.asked.logprobs:
            return None
        content = [
            self._named(entry.token, entry.logprob)
            | {"top_logprobs": [self._named(*top) for top in entry.tops]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float | None) -> Json:
        return {
            "token": self.names.text(token),
            "logprob": finite(logprob),
            "bytes": list(self.names.bytes(token)),
        }

    def _table(self, entries: Sequence[Entry], offset: int) -> Json | None:
        """As plain completions have them: a column for each number."""
        if not self.asked.logprobs:
            return None
        asks = any(entry.tops for entry in entries)
        return {
            "tokens": [self.names.text(entry.token) for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._tops(entry) for entry in entries] if asks else None,
            "text_offset": [offset + entry.begin for entry in entries],
        }

    def _tops(self, entry: Entry) -> dict[str, float | None] | None:
        """The most likely tokens by their text, and the token itself."""
        if entry.logprob is None:
            return None
        found: dict[str, float | None] = {}
        for token, logprob in entry.tops:
            found.setdefault(self.names.text(token), finite(logprob))
        found.setdefault(self.names.text(entry.token), finite(entry.logprob))
        return found


def _call(found: Found) -> Json:
    """A call as an answer has it."""
    return {
        "id": found.id,
        "type": "function",
        "function": {"name": found.name, "arguments": found.arguments},
    }


def finite(logprob: float | None) -> float | None:
    """A log-probability that JSON can hold."""
    return None if logprob is None else max(LEAST, logprob)


def metrics(texts: Sequence[Text]) -> Json | None:
    """How the text was drafted and how long it took, in vLLM's schema; None for several texts."""
    if len(texts) != 1:
        return None
    (text,) = texts
    stats, times = text.stats, text.times
    took = max(0.0, times.last - times.first)
    return {
        "time_to_first_token_ms": 1000 * max(0.0, times.first - times.joined),
        "generation_time_ms": 1000 * took,
        "queue_time_ms": 1000 * max(0.0, (times.joined or times.ended) - times.arrived),
        "mean_itl_ms": 1000 * took / (stats.tokens - 1) if stats.tokens > 1 else None,
        "tokens_per_second": stats.tokens / (times.last - times.joined) if stats.tokens else None,
        "speculative_decoding": speculation(text),
        "draftwise": {
            "rounds": stats.rounds,
            "tokens_by_drafter": {
                **stats.by_drafter,
                "target": stats.tokens - sum(stats.by_drafter.values()),
            },
            "rounds_by_arm": stats.pulls,
            "seconds_by_phase": stats.seconds_by_phase,
            "faults": stats.faults,
        },
    }


def speculation(text: Text) -> Json:
    """Steps with a draft: what was accepted, in the schema of vLLM 0.32."""
    by_length = {
        length: [steps.get(accepted, 0) for accepted in range(length + 1)]
        for length, steps in sorted(text.histogram.items())
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
