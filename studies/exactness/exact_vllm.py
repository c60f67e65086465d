"""Hold texts written with Draftwise inside vLLM against vLLM's own, token by token.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one): for each drafter alone, and for drafters
drawn at random in every step, the prompts of Spec-Bench at every concurrency, greedy, in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

DRAFTERS = ("ngram", "suffix", "zoo:general", "zoo:code")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", default=",".join(DRAFTERS), help="with commas between them")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", default="1,8", help="with commas between them")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if options.tensor_parallel > 1:
        cores = "|".join(str(core) for core in range(options.tensor_parallel))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)
    if options.one is not None:
        way = json.loads(options.one)
        Path(way["out"]).write_text(json.dumps(write(options, way)))
        return
    sys.exit(compare(options))


def compare(options: argparse.Namespace) -> int:
    """Every way of drafting against none, each in a process of its own; 1 if any text differs."""
    names = options.drafters.split(",")
    ways = [{"drafters": [name], "policy": "static-5"} for name in names]
    ways.append({"drafters": names, "policy": "random"})
    worst = 0
    for concurrency in map(int, options.concurrency.split(",")):
        plain = child({"concurrency": concurrency})["texts"]
        for way in ways:
            start = perf_counter()
            told = child(way | {"concurrency": concurrency})
            same = sum(a == b for a, b in zip(plain, told["texts"], strict=True))
            worst |= same < len(plain)
            name = ",".join(way["drafters"]) + " " + way["policy"]
            took = perf_counter() - start
            drafted = told["totals"].get("arms", {})
            print(
                f"concurrency {concurrency}  {name:45} {same}/{len(plain)} identical  {took:.0f} s  {drafted}"
            )
    return worst


def child(way: dict[str, Any]) -> dict[str, Any]:
    """What one engine wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        asked = json.dumps(way | {"out": str(out)})
        subprocess.run([sys.executable, *sys.argv, "--one", asked], check=True)
        told: dict[str, Any] = json.loads(out.read_text())
    return told


def write(options: argparse.Namespace, way: dict[str, Any]) -> dict[str, Any]:
    """All texts by one engine."""
    from vllm import LLM, SamplingParams

    import draftwise
    from draftwise.data import spec_bench
    from draftwise.hosts.vllm import totals
    from draftwise.models.load import resolve

    config = None
    if "drafters" in way:
        config = draftwise.vllm_config(drafters=way["drafters"], policy=way["policy"])
    llm = LLM(
        resolve(options.target),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=way["concurrency"],
        tensor_parallel_size=options.tensor_parallel,
        gpu_memory_utilization=0.3,  # on a CPU: of all memory, to be free when it starts
        speculative_config=config,
    )
    tokenizer, every = llm.get_tokenizer(), spec_bench()
    prompts = [p.text for p in every[:: max(1, len(every) // options.prompts)][: options.prompts]]
    window = llm.llm_engine.vllm_config.model_config.max_model_len - options.max_new_tokens
    ids = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        for text in prompts
    ]
    ids = [list(i["input_ids"] if hasattr(i, "keys") else i)[-window:] for i in ids]
    greedy = SamplingParams(temperature=0.0, max_tokens=options.max_new_tokens)
    outputs = llm.generate([{"prompt_token_ids": i} for i in ids], greedy, use_tqdm=False)
    return {
        "texts": [list(o.outputs[0].token_ids) for o in outputs],
        "totals": totals(llm) if config else {},
    }


if __name__ == "__main__":
    main()
