"""The time of `bench_vllm.py` by part, one policy in one engine: drafts, grading, overhead, and the rest.

Run it in an environment with vLLM, with OMP_NUM_THREADS=1: it counts this process's own CPU seconds, which
depend little on other work on the machine. A new policy decodes the same texts `--passes` times, so that the
cost of learning is the difference between the first pass and the later ones.
"""

from __future__ import annotations

from time import process_time
from typing import Any

from studies.common import vllm
from studies.common.command import command, listed, start
from studies.common.prompts import spread

PAGE = "docs/archive/vllm.md"


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--drafters", type=listed, default=vllm.DRAFTERS, help="with commas between them")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=26)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    vllm.in_this_process()

    import draftwise

    config = draftwise.vllm_config(drafters=options.drafters, policy=options.policy)
    llm = vllm.engine("zoo:target", config, batch=16)
    host = vllm.proposer(llm)
    ids = vllm.prompts(llm, spread(options.prompts), options.max_new_tokens)
    vllm.write(llm, ids[:8], options.concurrency, options.max_new_tokens)  # the engine's own first steps
    seconds = -process_time()
    vllm.write(llm, ids, options.concurrency, 1)
    print(f"prompts alone {seconds + process_time():.2f} s")
    host.follower.close()
    host.follower = host._keeper.follower = host.follow(host.options)
    for number in range(options.passes):
        before, seconds = told(host.follower), -process_time()
        texts = vllm.write(llm, ids, options.concurrency, options.max_new_tokens)
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
    seconds = (follower._drafting, follower.pool.graded_seconds, tally.overhead)
    return {"steps": tally.steps, "rounds": tally.rounds} | dict(zip(SECONDS, seconds, strict=True))


if __name__ == "__main__":
    start(main)
