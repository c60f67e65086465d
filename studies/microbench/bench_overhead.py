"""Time outside the models' forward passes, by phase: `zoo:target` with `zoo:general` and `ngram`.

A forward pass is the call of the Transformers model alone. Everything else counts as outside: choosing,
building inputs and masks, reading logits, acceptance, bookkeeping of the KV cache, learning, and this
benchmark's own loop. The parts are reported in microseconds of wall time per request and round, like the
phases of the loop.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from draftwise import Decoder, Sampling, Stats
from draftwise.data import spec_bench

NEW = 96


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("policy", ["static-4", "auto"])
def test_overhead(benchmark: Any, policy: str, batch: int) -> None:
    """All prompts once; the first time is not counted."""
    decoder = Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram"], policy=policy)
    encoded = [decoder.encode(q.text) for q in spec_bench()[::20]]
    prompts = [ids for ids in encoded if len(ids) < 600]
    figures = benchmark.pedantic(measure, args=(decoder, prompts, NEW, batch), rounds=1, warmup_rounds=1)
    benchmark.extra_info.update(figures)


def measure(decoder: Decoder, prompts: list[list[int]], n: int, batch: int) -> dict[str, float]:
    """One run over all prompts: microseconds per request and round, by phase, less the forwards' own."""
    target = decoder.loop.target.runner  # type: ignore[attr-defined]
    drafter = decoder.loop.pool.drafters["zoo:general"].runner  # type: ignore[attr-defined]
    before = target.seconds, drafter.seconds
    start = perf_counter()
    rounds = list(decoder.loop.run(prompts, Sampling(max_new_tokens=n), batch=batch))
    wall = perf_counter() - start
    verify, draft = target.seconds - before[0], drafter.seconds - before[1]
    spent = Stats.of(rounds).seconds_by_phase
    each = 1e6 / len(rounds)
    out = {phase: seconds * each for phase, seconds in spent.items()}
    out["verify"] -= verify * each
    out["draft"] -= draft * each
    return out | {
        "wall": wall * each,
        "rest": (wall - sum(spent.values())) * each,
        "outside": (wall - verify - draft) * each,
        "share": 1 - (verify + draft) / wall,
    }
