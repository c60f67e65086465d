"""Compare texts decoded with Draftwise inside vLLM with vLLM's own, token by token.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one): for each drafter alone, and for a random
drafter in every step, the prompts of Spec-Bench at every concurrency, greedy, in float32.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from argparse import SUPPRESS, Namespace
from pathlib import Path
from time import perf_counter
from typing import Any

from studies.common import vllm
from studies.common.command import again, command, listed, numbers, start
from studies.common.prompts import spread

PAGE = "docs/how-to/vllm.md"

DRAFTERS = "ngram,suffix,zoo:general,zoo:code"


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default=DRAFTERS, help="with commas between them")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default="1,8", help="with commas between them")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--one", help=SUPPRESS)
    options = parser.parse_args()
    cores = "|".join(map(str, range(options.tensor_parallel))) if options.tensor_parallel > 1 else None
    os.environ.update(vllm.settings(level="WARNING", cores=cores))
    if options.one is not None:
        way = json.loads(options.one)
        Path(way["out"]).write_text(json.dumps(write(options, way)))
        return 0
    return compare(options)


def compare(options: Namespace) -> int:
    """Every way of drafting against none, each in a process of its own; 1 if any text differs."""
    names = options.drafters
    ways: list[dict[str, Any]] = [{"drafters": [name], "policy": "static-5"} for name in names]
    ways.append({"drafters": names, "policy": "random"})
    worst = 0
    for concurrency in options.concurrency:
        plain = child({"concurrency": concurrency})["texts"]
        for way in ways:
            start = perf_counter()
            result = child(way | {"concurrency": concurrency})
            same = sum(a == b for a, b in zip(plain, result["texts"], strict=True))
            worst |= same < len(plain)
            name = ",".join(way["drafters"]) + " " + way["policy"]
            took = perf_counter() - start
            drafted = result["totals"].get("arms", {})
            print(
                f"concurrency {concurrency}  {name:45} {same}/{len(plain)} identical  {took:.0f} s  {drafted}"
            )
    return worst


def child(way: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of one engine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        settings = json.dumps(way | {"out": str(out)})
        subprocess.run(again("--one", settings), check=True)
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def write(options: Namespace, way: dict[str, Any]) -> dict[str, Any]:
    """All texts by one engine."""
    from vllm import SamplingParams

    import draftwise
    from draftwise.hosts.vllm import totals

    config = None
    if "drafters" in way:
        config = draftwise.vllm_config(drafters=way["drafters"], policy=way["policy"])
    more = {"tensor_parallel_size": options.tensor_parallel, "enable_prefix_caching": True}
    llm = vllm.engine(options.target, config, batch=way["concurrency"], **more)
    ids = vllm.prompts(llm, spread(options.prompts), options.max_new_tokens)
    greedy = SamplingParams(temperature=0.0, max_tokens=options.max_new_tokens)
    outputs = llm.generate([{"prompt_token_ids": i} for i in ids], greedy, use_tqdm=False)
    return {
        "texts": [list(o.outputs[0].token_ids) for o in outputs],
        "totals": totals(llm) if config else {},
    }


if __name__ == "__main__":
    start(main)
