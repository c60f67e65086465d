"""Counts by drafter beside vLLM's own metrics at `/metrics`: a plug-in of `vllm.stat_logger_plugins`.

vLLM counts drafts and accepted tokens itself (`vllm:spec_decode_*`); these are the same counts by drafter,
read from the engine's report for each request of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import REGISTRY, CounterMetricFamily
from vllm.v1.metrics.loggers import StatLoggerBase

from .options import EXTENSION, HOME
from .report import path_of, read

COUNTS = {
    "num_drafts": "Drafts made.",
    "num_draft_tokens": "Tokens drafted.",
    "num_accepted_tokens": "Drafted tokens that the target accepted.",
    "num_faults": "Failures.",
}
OVERHEAD = "Seconds of deciding and learning, without the drafters' own."


class DrafterMetrics:
    """A Prometheus collector of one engine's totals, with vLLM's own labels and the drafter."""

    def __init__(self, path: Path, model: str, engine: int) -> None:
        self.path, self.labels = path, [model, str(engine)]

    def collect(self) -> Iterator[Any]:
        """The counters with the report's current values."""
        counts = read(self.path)
        if not counts:
            return
        for name, text in COUNTS.items():
            by_drafter = {(drafter,): numbers[name] for drafter, numbers in counts["drafters"].items()}
            yield self._counter(f"spec_decode_{name}", text, by_drafter, "drafter")
        by_arm = {(arm,): count for arm, count in counts["arms"].items()}
        yield self._counter("spec_decode_num_rounds", "Decisions played.", by_arm, "arm")
        seconds = {(): counts["overhead_seconds"]}
        yield self._counter("proposer_overhead_seconds", OVERHEAD, seconds)

    def _counter(self, name: str, text: str, values: Mapping[Any, float], *labels: str) -> Any:
        family = CounterMetricFamily(f"draftwise:{name}", text, labels=["model_name", "engine", *labels])
        for key, value in values.items():
            family.add_metric([*self.labels, *key], value)
        return family


class StatLogger(StatLoggerBase):  # type: ignore[misc,unused-ignore]
    """Installs the collector in vLLM's front-end process if the engine uses Draftwise."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        config, workers = vllm_config.speculative_config, vllm_config.parallel_config.worker_extension_cls
        if config is not None and (str(config.model).startswith(HOME) or workers.startswith(EXTENSION)):
            path, model = path_of(vllm_config.instance_id, engine_index), vllm_config.model_config
            REGISTRY.register(DrafterMetrics(path, str(model.served_model_name), engine_index))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing per step: the report is read on request."""

    def log_engine_initialized(self) -> None:
        """Nothing to log."""
