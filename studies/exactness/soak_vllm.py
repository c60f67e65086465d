"""Many requests through one vLLM with Draftwise inside: memory growth, state left behind, overhead.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one). Some requests are aborted half-way. The
exit status is 1 if anonymous memory grows by more than 2 % over the last quarter, or if a drafter keeps state
of finished requests. Earlier growth is expected: PyTorch and oneDNN reserve memory for every new pass size.
"""

from __future__ import annotations

import random
from argparse import Namespace
from time import perf_counter
from typing import Any

from studies.common import vllm
from studies.common.command import command, listed, start
from studies.common.memory import anonymous

PAGE = "docs/how-to/vllm.md"


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--drafters", type=listed, default=vllm.DRAFTERS, help="with commas between them")
    parser.add_argument("--policy", default="random")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    options = parser.parse_args()
    vllm.in_this_process()

    import draftwise

    config = draftwise.vllm_config(drafters=options.drafters, policy=options.policy)
    few = {"num_gpu_blocks_override": 64}  # all of them are in memory soon
    llm = vllm.engine("zoo:target", config, batch=options.in_flight, **few)
    marks = serve(llm, options)
    follower = vllm.proposer(llm).follower
    told = follower.totals()
    steps, rounds, spent = told["num_steps"], told["num_rounds"], told["overhead_seconds"]
    print(f"{rounds} rounds in {steps} steps; deciding, learning and keeping texts took")
    print(f"{spent / steps * 1e6:.0f} us a step, {spent / rounds * 1e6:.0f} us a request and step")
    settled, last = marks[3 * len(marks) // 4], marks[-1]
    left = len(follower.open) + sum(
        len(getattr(d, "places", ()) or getattr(d, "_texts", ())) for d in follower.pool.drafters.values()
    )
    print(f"memory {settled:.0f} MB after three quarters, {last:.0f} MB at the end; {left} texts left")
    return int(last > 1.02 * settled or left > 0)


def serve(llm: Any, options: Namespace) -> list[float]:
    """All requests, one in ten aborted; memory in MB after every twentieth part of them."""
    from vllm import SamplingParams

    from draftwise.data import spec_bench

    core, rng, tokenizer = llm.llm_engine, random.Random(0), llm.get_tokenizer()
    prompts = [tokenizer(p.text)["input_ids"][:200] for p in spec_bench()]
    greedy = SamplingParams(temperature=0.0, max_tokens=options.max_new_tokens)
    marks, asked, flying, start = list[float](), 0, dict[str, None](), perf_counter()
    every = max(1, options.requests // 20)
    while asked < options.requests or flying:
        while asked < options.requests and len(flying) < options.in_flight:
            core.add_request(f"r{asked}", {"prompt_token_ids": prompts[asked % len(prompts)]}, greedy)
            flying[f"r{asked}"] = None
            asked += 1
            if asked % every == 0:
                marks.append(anonymous() / 2**20)
                left = (perf_counter() - start) / asked * (options.requests - asked)
                print(f"{asked} requests, {marks[-1]:.0f} MB, about {left:.0f} s left", flush=True)
        for output in core.step():
            if output.finished:
                flying.pop(output.request_id, None)
        if flying and rng.random() < 0.02:
            gone = rng.choice(list(flying))
            core.abort_request([gone])
            del flying[gone]
    llm.generate([{"prompt_token_ids": prompts[0]}], greedy, use_tqdm=False)  # the engine's news of the last
    marks.append(anonymous() / 2**20)
    return marks


if __name__ == "__main__":
    start(main)
