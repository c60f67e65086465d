"""vLLM and its own ways of drafting, as a child process: python -m draftwise.measure.bench.vllm.

The protocol is the one of `child`. It loads `{"model", "context", "dtype", "threads", "memory",
"speculative"}`, the last as vLLM's own `speculative_config`, or null for plain decoding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

from .child import Write, serve

DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"


def load(options: Mapping[str, Any]) -> tuple[Write, dict[str, Any]]:
    """Load a model; returns the function that writes one text with it, and vLLM's version."""
    # The engine stays in this process, so that no process remains when it ends.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{options['threads'] - 1}")
    vllm = import_module("vllm")
    engine = vllm.LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=options["context"],
        max_num_seqs=1,
        gpu_memory_utilization=options["memory"],
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=options["speculative"],
    )
    names = iter(range(1 << 62))

    def write(request: Mapping[str, Any]) -> dict[str, Any]:
        sampling = vllm.SamplingParams(
            temperature=request["temperature"],
            seed=request["seed"] % 2**32,
            max_tokens=request["max_new_tokens"],
            stop_token_ids=request["eos"],
        )
        drafted, accepted = _counted(engine, DRAFTED), _counted(engine, ACCEPTED)
        core, rounds, first = engine.llm_engine, 0, 0.0
        tokens: list[int] = []
        start = perf_counter()
        core.add_request(str(next(names)), {"prompt_token_ids": request["ids"]}, sampling)
        while core.has_unfinished_requests():
            outputs = core.step()
            rounds += 1
            tokens = list(outputs[0].outputs[0].token_ids) if outputs else tokens
            first = first or (perf_counter() if tokens else 0.0)
        seconds = perf_counter() - start
        return {
            "tokens": tokens,
            "seconds": seconds,
            "ttft_s": first - start,
            "rounds": rounds,
            "drafted": _counted(engine, DRAFTED) - drafted,
            "accepted": _counted(engine, ACCEPTED) - accepted,
        }

    return write, {"vllm": vllm.__version__}


def _counted(engine: Any, name: str) -> int:
    return int(sum(metric.value for metric in engine.get_metrics() if metric.name == name))


if __name__ == "__main__":
    serve(load)
