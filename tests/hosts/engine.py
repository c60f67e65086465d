"""A small engine that writes and verifies by itself, as vLLM does: rows move, requests are put off."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.hosts.follow import Row
from draftwise.hosts.vllm.runner import Step
from draftwise.models.load import resolve
from draftwise.testing.distributions import Distribution, softmax

LONGEST = 256
VOCAB = 4096  # of vLLM's target here


@dataclass(eq=False)
class Job:
    """One request of the engine."""

    key: str
    prompt: list[int]
    budget: int
    tokens: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    offered: int = 0

    @property
    def text(self) -> list[int]:
        return self.prompt + self.tokens

    def end(self, eos: int) -> int | None:
        """The number of tokens up to the end of the text, if it has one."""
        return self.tokens.index(eos) + 1 if eos in self.tokens else None


class Engine:
    """Serves jobs, at most `seats` at a time; `room` is the longest draft that it has room to verify."""

    def __init__(
        self, distribution: Distribution, *, seats: int = 4, eos: int = -1, room: int = 99, seed: int = 0
    ) -> None:
        self.distribution, self.seats, self.eos, self.room = distribution, seats, eos, room
        self.rng = random.Random(seed)
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.away: list[Job] = []
        self.done: list[Job] = []
        self.greedy = True

    def add(self, key: str, prompt: Sequence[int], budget: int) -> Job:
        job = Job(key, list(prompt), budget)
        self.waiting.append(job)
        return job

    def alive(self, key: object) -> bool:
        return any(job.key == key for job in self.running + self.away)

    def abort(self, job: Job) -> None:
        for place in (self.waiting, self.running, self.away):
            if job in place:
                place.remove(job)
        self.done.append(job)

    def put_off(self, job: Job) -> None:
        self.running.remove(job)
        job.draft = []
        self.away.append(job)

    def step(self, ask: Callable[[list[Job], list[list[int]]], list[list[int]]]) -> None:
        """One pass for all, then ask for drafts."""
        while len(self.running) < self.seats and (self.away or self.waiting):
            self.running.append(self.away.pop(0) if self.away else self.waiting.pop(0))
        if len(self.running) > 1 and self.rng.random() < 0.3:
            self.rng.shuffle(self.running)
        sampled = [self._verify(job) for job in self.running]
        drafts = ask(list(self.running), sampled)
        for job, draft in zip(self.running, drafts, strict=True):
            job.offered, job.draft = len(draft), list(draft)
        for job in list(self.running):
            if len(job.tokens) >= job.budget or job.end(self.eos) is not None:
                self._finish(job)

    def _verify(self, job: Job) -> list[int]:
        job.draft = job.draft[: self.room]
        new: list[int] = []
        for guess in [*job.draft, None]:
            token = self._next([*job.text, *new])
            new.append(token)
            if token != guess:
                break
        job.tokens += new
        return new

    def _next(self, text: list[int]) -> int:
        p = softmax(self.distribution(text))
        if self.greedy:
            return int(p.argmax())
        return self.rng.choices(range(len(p)), weights=p.tolist())[0]

    def _finish(self, job: Job) -> None:
        end = job.end(self.eos)
        del job.tokens[min(job.budget, len(job.tokens) if end is None else end) :]
        self.running.remove(job)
        self.done.append(job)


def rows(engine: Engine, jobs: Sequence[Job], sampled: Sequence[Sequence[int]]) -> list[Row]:
    """What the engine tells of its step."""

    def text(job: Job) -> Callable[[int], list[int]]:
        return lambda start: job.text[start:]

    ends = frozenset({engine.eos}) if engine.eos >= 0 else frozenset()
    return [
        Row(
            job.key,
            len(job.text),
            new,
            text(job),
            len(job.prompt),
            job.budget - len(job.tokens),
            len(job.draft),
            ends,
        )
        for job, new in zip(jobs, sampled, strict=True)
    ]


def arrays(jobs: Sequence[Job]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The lengths and tokens of a batch, as vLLM has them; what lies behind a text is anything."""
    tokens = np.full((len(jobs), LONGEST), 7, dtype=np.int32)
    for i, job in enumerate(jobs):
        tokens[i, : len(job.text)] = job.text
    return np.array([len(job.text) for job in jobs], dtype=np.int32), tokens


def circle(history: Sequence[int]) -> NDArray[np.float64]:
    """The logits of a text that goes round in circles of twelve tokens, 10 to 21."""
    row = np.full(VOCAB, -20.0)
    row[10 + (history[-1] - 9) % 12] = 0.0
    return row


def configuration(*, most: int = 16, rank: int = 0) -> Any:
    """What a proposer reads of vLLM's configuration."""
    name = resolve("zoo:target")
    model = {"model": name, "tokenizer": name, "trust_remote_code": False, "max_model_len": 128}
    return SimpleNamespace(
        model_config=SimpleNamespace(**model, get_vocab_size=lambda: VOCAB),
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_index=rank),
        instance_id="test",
    )


def step(jobs: Sequence[Job], **runner: Any) -> Step:
    """A step of vLLM as its model runner sees it, with more attributes of the `runner`."""
    lengths, tokens = arrays(jobs)
    asked = [
        SimpleNamespace(max_tokens=job.budget, stop_token_ids=(), eos_token_id=None, ignore_eos=True)
        for job in jobs
    ]
    batch = SimpleNamespace(
        req_ids=[job.key for job in jobs],
        num_prompt_tokens=np.array([len(job.prompt) for job in jobs]),
        num_tokens_no_spec=lengths,
        token_ids_cpu=tokens,
    )
    requests = {job.key: SimpleNamespace(sampling_params=one) for job, one in zip(jobs, asked, strict=True)}
    drafted = {job.key: job.draft for job in jobs if job.draft}
    return Step(
        SimpleNamespace(input_batch=batch, requests=requests, **runner),
        SimpleNamespace(scheduled_spec_decode_tokens=drafted),
    )
