"""Greedy text in half precision: how many texts drafts and batches change, with `exact=True` and without.

    python -m studies.exactness.half --target zoo:smollm2 --dtype bfloat16 --prompts 40 --new-tokens 48

Texts are compared with those of plain decoding alone in the same kind of passes. The exit status is 1 if an
exact one differs.
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

from draftwise import Decoder, Loop, Sampling
from draftwise.policies.catalogue import method
from studies.common.command import command, numbers, start
from studies.common.texts import spread, write

PAGE = "docs/explanation/lossless.md"
POLICIES = ("none", "static-8?drafter=suffix", "static-4?drafter=ngram", "auto")


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", default="off")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--batches", type=numbers, default="1,4", help="batch sizes, with commas between")
    options = parser.parse_args()
    wrong = 0
    for exact in (False, True):
        decoder = Decoder.from_pretrained(
            options.target,
            drafters="ngram,suffix",
            dtype=options.dtype,
            device="auto",
            compile=options.compile,
            exact=exact,
            state="off",
        )
        prompts = [decoder.encode(text) for text in spread(options.prompts)]
        sampling = Sampling(max_new_tokens=options.new_tokens, eos=decoder.eos)
        own: list[list[int]] = []
        for policy in POLICIES:
            for batch in options.batches:
                drafters = decoder.loop.pool.drafters
                chosen = method(policy, list(drafters))
                loop = Loop(decoder.loop.target, drafters, chosen.policy, chosen.recorder)
                begin = perf_counter()
                texts, _ = write(loop, prompts, sampling, batch=batch)
                rate = sum(map(len, texts)) / (perf_counter() - begin)
                own = own or texts
                same = sum(one == other for one, other in zip(own, texts, strict=True))
                wrong += exact * (len(own) - same)
                row: dict[str, Any] = {"exact": exact, "policy": policy, "batch": batch, "texts": len(own)}
                print(json.dumps(row | {"same": same, "tokens_per_s": round(rate, 1)}), flush=True)
        print(json.dumps({"exact": exact} | decoder.compiled), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    start(main)
