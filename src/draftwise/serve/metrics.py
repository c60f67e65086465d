"""Metrics for Prometheus: under vLLM's names where vLLM has them, and by drafter and arm under our own."""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from dataclasses import fields
from functools import partial
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..core.fault_barrier import PLAIN
from ..core.round import Round, Seconds
from .engine import Engine
from .generations import Event, Generation

LABELS = ("model_name", "engine")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
OTHER_ARM = "other"  # the label of arms that clients make up: there is no end of them
RECENT, SLICE = 300, 10  # seconds over which acceptance is counted, and by how many at once
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "abort": "abort"}
# By name the text, and the labels besides `LABELS`.
COUNTERS = {
    "vllm:prompt_tokens": ("Tokens of the prompts read.", ""),
    "vllm:prefix_cache_queries": ("Tokens of the prompts of texts that began.", ""),
    "vllm:prefix_cache_hits": ("Those of them that were taken over from other texts.", ""),
    "vllm:generation_tokens": ("Tokens written.", ""),
    "vllm:request_success": ("Texts by the reason of their end.", "finished_reason"),
    "vllm:spec_decode_num_drafts": ("Drafts made.", ""),
    "vllm:spec_decode_num_draft_tokens": ("Tokens drafted.", ""),
    "vllm:spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", ""),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "Accepted tokens by their place in the draft.",
        "position",
    ),
    "draftwise:spec_decode_num_drafts": ("Drafts made.", "drafter"),
    "draftwise:spec_decode_num_draft_tokens": ("Tokens drafted.", "drafter"),
    "draftwise:spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", "drafter"),
    "draftwise:spec_decode_num_rounds": ("Decisions played.", "arm"),
    "draftwise:http_requests": ("Requests by what became of them.", "route status reason"),
    "draftwise:phase_seconds": ("Where the time of rounds went.", "phase"),
}
# The times of a request after its wait are split as vLLM does, for boards that are made for it.
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From arrival to the first token.", SECONDS),
    "vllm:inter_token_latency_seconds": ("Between two writings of a text.", SECONDS),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end.", SECONDS),
    "vllm:request_queue_time_seconds": ("Waiting for a place.", SECONDS),
    "vllm:request_prefill_time_seconds": ("From a place to the first token.", SECONDS),
    "vllm:request_decode_time_seconds": ("From the first token to the last.", SECONDS),
    "vllm:request_inference_time_seconds": ("From a place to the last token.", SECONDS),
    "vllm:request_prompt_tokens": ("Tokens of a prompt.", TOKENS),
    "vllm:request_generation_tokens": ("Tokens of a text.", TOKENS),
}


class RecentDrafts:
    """Counts the tokens that each drafter drafted lately, and those of them that were accepted."""

    def __init__(self) -> None:
        self.slices: deque[tuple[int, Tally[tuple[str, str]]]] = deque(maxlen=RECENT // SLICE)

    def add(self, round: Round) -> None:
        now = int(monotonic() // SLICE)
        if not self.slices or self.slices[-1][0] != now:
            self.slices.append((now, Tally()))
        counts, name = self.slices[-1][1], round.arm.drafter
        counts[name, "drafted"] += round.drafted
        counts[name, "accepted"] += round.accepted

    def counts(self, name: str) -> dict[str, int]:
        oldest = monotonic() // SLICE - RECENT // SLICE
        recent = [counts for at, counts in list(self.slices) if at > oldest]
        return {key: sum(counts[name, key] for counts in recent) for key in ("drafted", "accepted")}


class Metrics:
    """Counts what the engine does; an observer of the engine."""

    def __init__(self, engine: Engine, model: str, window: int) -> None:
        self.capacity = engine.limits.batch * window
        self.registry, self.labels, self.engine = CollectorRegistry(), (model, "0"), engine
        self.recent = RecentDrafts()
        self.arms = {PLAIN.name, *(arm.name for arm in engine.decoder.loop.policy.arms)}
        own: dict[str, Any] = {"registry": self.registry}
        self.counters = {
            name: Counter(name, text, (*LABELS, *more.split()), **own)
            for name, (text, more) in COUNTERS.items()
        }
        self.histograms = {
            name: Histogram(name, text, LABELS, buckets=buckets, **own)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        for name, text, value in (
            ("num_requests_running", "Texts that are decoded now.", lambda: len(engine.running)),
            ("num_requests_waiting", "Texts that wait for a place.", lambda: len(engine.waiting)),
            ("kv_cache_usage_perc", "Tokens in all places of those they may hold; 1 is all.", self._usage),
        ):
            Gauge(f"vllm:{name}", text, LABELS, **own).labels(*self.labels).set_function(value)
        faults = Gauge("draftwise:spec_decode_num_faults", "Failures.", (*LABELS, "drafter"), **own)
        for name in (counts := engine.decoder.loop.faults):
            faults.labels(*self.labels, name).set_function(partial(counts.__getitem__, name))

    def _count(self, name: str, amount: float = 1, *labels: str) -> None:
        self.counters[name].labels(*self.labels, *labels).inc(amount)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].labels(*self.labels).observe(value)

    def add_round(self, sequence: Generation, round: Round, gap: float) -> None:
        if sequence.stats.rounds == 1:
            prompt, times = len(sequence.spec.prompt), sequence.times
            self._count("vllm:prompt_tokens", prompt)
            self._count("vllm:prefix_cache_queries", prompt)
            self._count("vllm:prefix_cache_hits", sequence.cached_tokens)
            self._observe("vllm:time_to_first_token_seconds", times.first - times.arrived)
            self._observe("vllm:request_queue_time_seconds", times.joined - times.arrived)
        elif gap:
            self._observe("vllm:inter_token_latency_seconds", gap)
        self._count("vllm:generation_tokens", len(round.tokens))
        arm = round.arm.name if round.arm.name in self.arms else OTHER_ARM
        self._count("draftwise:spec_decode_num_rounds", 1, arm)
        for phase in fields(Seconds):
            self._count("draftwise:phase_seconds", getattr(round.seconds, phase.name), phase.name)
        if not round.drafted:
            return
        self.recent.add(round)
        for name, amount in (
            ("drafts", 1),
            ("draft_tokens", round.drafted),
            ("accepted_tokens", round.accepted),
        ):
            self._count(f"vllm:spec_decode_num_{name}", amount)
            self._count(f"draftwise:spec_decode_num_{name}", amount, round.arm.drafter)
        for position in range(round.accepted):
            self._count("vllm:spec_decode_num_accepted_tokens_per_pos", 1, str(position))

    def add_end(self, sequence: Generation, event: Event) -> None:
        times = sequence.times
        self._count("vllm:request_success", 1, REASONS.get(event.finish_reason, "error"))
        self._observe("vllm:e2e_request_latency_seconds", times.ended - times.arrived)
        if times.first:
            self._observe("vllm:request_prefill_time_seconds", times.first - times.joined)
            self._observe("vllm:request_decode_time_seconds", times.last - times.first)
            self._observe("vllm:request_inference_time_seconds", times.last - times.joined)
        self._observe("vllm:request_prompt_tokens", len(sequence.spec.prompt))
        self._observe("vllm:request_generation_tokens", sequence.stats.tokens)

    def add_request(self, route: str, status: int, reason: str) -> None:
        self._count("draftwise:http_requests", 1, route, str(status), reason)

    def _usage(self) -> float:
        tokens = sum(
            len(sequence.spec.prompt) + sequence.stats.tokens
            for sequence in list(self.engine.running)
            if sequence.request is not None
        )
        return min(1.0, tokens / self.capacity)
