"""vLLM and its own ways of drafting, as a child process: python -m draftwise.measure.bench.vllm.

The protocol is the one of `child`. It loads `{"model", "context", "dtype", "threads", "speculative"}`, the
last as vLLM's own `speculative_config`, or null for plain decoding.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any, TextIO

DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"
Write = Callable[[Mapping[str, Any]], dict[str, Any]]


def serve(answers: TextIO) -> None:
    """Answer each line until the input ends."""
    write: Write | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if write is None:
                write = load(asked)
                told: dict[str, Any] = {"ready": {"vllm": import_module("vllm").__version__}}
            else:
                told = write(asked)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(told), file=answers, flush=True)


def load(asked: Mapping[str, Any]) -> Write:
    """Load a model; returns the function that writes one text with it."""
    # The engine stays in this process, so that no process remains when it ends.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{asked['threads'] - 1}")
    vllm = import_module("vllm")
    engine = vllm.LLM(
        asked["model"],
        dtype=asked["dtype"],
        max_model_len=asked["context"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=asked["speculative"],
    )
    names = iter(range(1 << 62))

    def write(asked: Mapping[str, Any]) -> dict[str, Any]:
        sampling = vllm.SamplingParams(
            temperature=asked["temperature"],
            seed=asked["seed"] % 2**32,
            max_tokens=asked["max_new_tokens"],
            stop_token_ids=asked["eos"],
        )
        drafted, accepted = _counted(engine, DRAFTED), _counted(engine, ACCEPTED)
        core, rounds = engine.llm_engine, 0
        tokens: list[int] = []
        start = perf_counter()
        core.add_request(str(next(names)), {"prompt_token_ids": asked["ids"]}, sampling)
        while core.has_unfinished_requests():
            outputs = core.step()
            rounds += 1
            tokens = list(outputs[0].outputs[0].token_ids) if outputs else tokens
        seconds = perf_counter() - start
        return {
            "tokens": tokens,
            "seconds": seconds,
            "rounds": rounds,
            "drafted": _counted(engine, DRAFTED) - drafted,
            "accepted": _counted(engine, ACCEPTED) - accepted,
        }

    return write


def _counted(engine: Any, name: str) -> int:
    """Tokens so far, as vLLM counts them."""
    return int(sum(metric.value for metric in engine.get_metrics() if metric.name == name))


if __name__ == "__main__":
    # What the library prints goes to stderr; only answers go to the parent process.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        serve(answers)
