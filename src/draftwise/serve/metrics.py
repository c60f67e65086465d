"""Metrics for Prometheus: under vLLM's names where vLLM has them, and by drafter and arm under our own."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..core.round import Round, Seconds
from .engine import Engine
from .texts import Event, Text

LABELS = ("model_name", "engine")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "abort": "abort"}


class Metrics:
    """Counts what the engine does; a watcher of the engine."""

    def __init__(self, engine: Engine, model: str, window: int) -> None:
        self.room = engine.limits.batch * window
        self.registry, self.labels, self.engine = CollectorRegistry(), (model, "0"), engine
        self._gauge("vllm:num_requests_running", "Texts that are decoded now.", lambda: len(engine.running))
        self._gauge("vllm:num_requests_waiting", "Texts that wait for a place.", lambda: len(engine.waiting))
        count, histogram = self._counter, self._histogram
        self.prompt = count("vllm:prompt_tokens", "Tokens of the prompts read.")
        self.queried = count("vllm:prefix_cache_queries", "Tokens of the prompts of texts that began.")
        self.hits = count("vllm:prefix_cache_hits", "Those of them that were taken over from other texts.")
        self.written = count("vllm:generation_tokens", "Tokens written.")
        self.ended = count("vllm:request_success", "Texts by the reason of their end.", "finished_reason")
        self.first = histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", SECONDS
        )
        self.gaps = histogram("vllm:inter_token_latency_seconds", "Between two writings of a text.", SECONDS)
        self.whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", SECONDS)
        self.queued = histogram("vllm:request_queue_time_seconds", "Waiting for a place.", SECONDS)
        # As vLLM splits a request after its wait: for boards that are made for it.
        self.prefill = histogram(
            "vllm:request_prefill_time_seconds", "From a place to the first token.", SECONDS
        )
        self.decode = histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last.", SECONDS
        )
        self.inference = histogram(
            "vllm:request_inference_time_seconds", "From a place to the last token.", SECONDS
        )
        self._gauge(
            "vllm:kv_cache_usage_perc", "Tokens in all places of those they may hold; 1 is all.", self._usage
        )
        self.prompts = histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.lengths = histogram("vllm:request_generation_tokens", "Tokens of a text.", TOKENS)
        self.drafts = count("vllm:spec_decode_num_drafts", "Drafts made.")
        self.drafted = count("vllm:spec_decode_num_draft_tokens", "Tokens drafted.")
        self.accepted = count("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        self.places = count(name, "Accepted tokens by their place in the draft.", "position")
        own = "draftwise:spec_decode_num"
        self.own_drafts = count(f"{own}_drafts", "Drafts made.", "drafter")
        self.own_drafted = count(f"{own}_draft_tokens", "Tokens drafted.", "drafter")
        self.own_accepted = count(f"{own}_accepted_tokens", "Drafted tokens that were accepted.", "drafter")
        self.rounds = count(f"{own}_rounds", "Decisions played.", "arm")
        self.requests = count(
            "draftwise:http_requests", "Requests by what became of them.", "route", "status", "reason"
        )
        self.phases = count("draftwise:phase_seconds", "Where the time of rounds went.", "phase")
        faults = Gauge(
            "draftwise:spec_decode_num_faults", "Failures.", (*LABELS, "drafter"), registry=self.registry
        )
        for who in engine.decoder.loop.faults:
            faults.labels(*self.labels, who).set_function(partial(self._faults, who))

    def round(self, text: Text, round: Round, gap: float) -> None:
        """Count a round."""
        add = self.labels
        if text.stats.rounds == 1:
            self.prompt.labels(*add).inc(len(text.wish.prompt))
            self.queried.labels(*add).inc(len(text.wish.prompt))
            self.hits.labels(*add).inc(text.reused)
            self.first.labels(*add).observe(text.times.first - text.times.arrived)
            self.queued.labels(*add).observe(text.times.joined - text.times.arrived)
        elif gap:
            self.gaps.labels(*add).observe(gap)
        self.written.labels(*add).inc(len(round.tokens))
        self.rounds.labels(*add, round.arm.name).inc()
        for phase in fields(Seconds):
            self.phases.labels(*add, phase.name).inc(getattr(round.seconds, phase.name))
        if round.drafted:
            self._drafted(round)

    def _drafted(self, round: Round) -> None:
        add, drafter = self.labels, round.arm.drafter
        self.drafts.labels(*add).inc()
        self.drafted.labels(*add).inc(round.drafted)
        self.accepted.labels(*add).inc(round.accepted)
        self.own_drafts.labels(*add, drafter).inc()
        self.own_drafted.labels(*add, drafter).inc(round.drafted)
        self.own_accepted.labels(*add, drafter).inc(round.accepted)
        for place in range(round.accepted):
            self.places.labels(*add, str(place)).inc()

    def end(self, text: Text, event: Event) -> None:
        """Count a text."""
        reason, times = REASONS.get(event.reason, "error"), text.times
        self.ended.labels(*self.labels, reason).inc()
        self.whole.labels(*self.labels).observe(times.ended - times.arrived)
        if times.first:
            self.prefill.labels(*self.labels).observe(times.first - times.joined)
            self.decode.labels(*self.labels).observe(times.last - times.first)
            self.inference.labels(*self.labels).observe(times.last - times.joined)
        self.prompts.labels(*self.labels).observe(len(text.wish.prompt))
        self.lengths.labels(*self.labels).observe(text.stats.tokens)

    def request(self, route: str, status: int, reason: str) -> None:
        """Count a request."""
        self.requests.labels(*self.labels, route, str(status), reason).inc()

    def _usage(self) -> float:
        held = sum(
            len(text.wish.prompt) + text.stats.tokens
            for text in list(self.engine.running)
            if text.request is not None
        )
        return min(1.0, held / self.room)

    def _faults(self, who: str) -> float:
        return self.engine.decoder.loop.faults.get(who, 0)

    def page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, value: Any) -> None:
        Gauge(name, text, LABELS, registry=self.registry).labels(*self.labels).set_function(value)

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(name, text, (*LABELS, *more), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, LABELS, registry=self.registry, buckets=buckets)
