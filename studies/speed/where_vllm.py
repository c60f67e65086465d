"""Where the time of `bench_vllm.py` goes, one policy in one engine: drafts, grading, overhead, and the rest.

Run it in an environment with vLLM, with OMP_NUM_THREADS=1: what it counts is this process's own CPU seconds,
which other work on the machine changes little. The same texts are written `--passes` times by a policy that
knew nothing at first, so that what learning costs is the difference of the first pass from the later ones.
"""

from __future__ import annotations

import argparse
import os
from time import process_time
from typing import Any

from bench_vllm import DRAFTERS, encode, write  # type: ignore[import-not-found,unused-ignore]

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--drafters", default=",".join(DRAFTERS), help="with commas between them")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=26)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()

    from draftwise.data import spec_bench

    llm, every = engine(options), spec_bench()
    host = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter
    room = llm.llm_engine.vllm_config.model_config.max_model_len - options.max_new_tokens - 16
    ids = [encode(llm, p.text)[-room:] for p in every[:: len(every) // options.prompts][: options.prompts]]
    write(llm, ids[:8], options.concurrency, options.max_new_tokens)  # the engine's own first steps
    seconds = -process_time()
    write(llm, ids, options.concurrency, 1)
    print(f"prompts alone {seconds + process_time():.2f} s")
    host.follower.close()
    host.follower = host._keeper.follower = host.follow(host.options)
    for number in range(options.passes):
        before, seconds = told(host.follower), -process_time()
        texts = write(llm, ids, options.concurrency, options.max_new_tokens)
        seconds += process_time()
        spent = {key: value - before[key] for key, value in told(host.follower).items()}
        parts = ", ".join(
            f"{key} {value:.2f}" if key in SECONDS else f"{key} {value}" for key, value in spent.items()
        )
        print(f"pass {number}: {sum(map(len, texts))} tokens in {seconds:.2f} s; {parts}", flush=True)
    print(host.follower.totals()["arms"])


SECONDS = ("drafting", "grading", "overhead")


def told(follower: Any) -> dict[str, Any]:
    """Counts and seconds so far."""
    tally = follower.tally
    seconds = (follower._drafting, follower.team.graded_seconds, tally.overhead)
    return {"steps": tally.steps, "rounds": tally.rounds} | dict(zip(SECONDS, seconds, strict=True))


def engine(options: argparse.Namespace) -> Any:
    """A vLLM with Draftwise inside."""
    from vllm import LLM

    import draftwise
    from draftwise.models.load import resolve

    return LLM(
        resolve("zoo:target"),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=16,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.3,
        speculative_config=draftwise.vllm_config(drafters=options.drafters.split(","), policy=options.policy),
    )


if __name__ == "__main__":
    main()
