"""Peak memory of decoding beyond the models' weights and caches, at batch 1, and that of lookups (Linux).

A thread reads the kernel's count of anonymous memory during prefill and decoding; the memory used before and
the KV caches are subtracted. The benchmark fails above 10 % of the weights.
"""

from __future__ import annotations

import gc
import os
import threading
from random import Random
from time import sleep
from typing import Any

import pytest

from draftwise import Decoder, Sampling
from draftwise.core.request import Request
from draftwise.drafters.lookup import indices
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.models.weights.layouts import PackedLinear
from studies.common.memory import anonymous

from .bench_drafters import prose

DRAFTERS = ["zoo:general", "ngram", "suffix"]
POLICY = "random?arms=drafters*lengths&lengths=0,2,8"
PROMPT, NEW, LONG = 1900, 64, 32000
KEPT: list[Any] = []


class Peak(threading.Thread):
    """The largest anonymous memory seen, in bytes, sampled a few thousand times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = anonymous()

    def run(self) -> None:
        while True:
            self.most = max(self.most, anonymous())
            sleep(0.0002)


def weights(model: Any) -> int:
    """Bytes of a model's weights, packed ones included."""
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    sizes += [m.in_features * m.out_features * 4 for m in model.modules() if isinstance(m, PackedLinear)]
    return sum(sizes)


def beyond(decoder: Decoder) -> dict[str, float]:
    """MB of the weights, of the caches, and of the peak beyond both."""
    models = [decoder.loop.target, *decoder.loop.pool.drafters.values()]
    rows = [m.runner for m in models if hasattr(m, "runner")]
    list(decoder.loop.run([[5, 6, 7] * 10], Sampling(max_new_tokens=16)))  # first calls load libraries
    gc.collect()
    text = decoder.encode("The quick brown fox jumps over the lazy dog, again and again. ") * 200
    peak = Peak()
    peak.start()
    decoder.loop.add(text[:PROMPT], Sampling(max_new_tokens=NEW))
    caches = 0
    while decoder.loop.open:
        decoder.loop.step()
        caches = max(caches, sum(r.cache.bytes for r in rows))
    own = sum(weights(r.model) for r in rows)
    more = peak.most - peak.before - caches
    return {"MB of weights": own / 1e6, "MB of caches": caches / 1e6, "MB beyond": more / 1e6}


def test_memory(benchmark: Any) -> None:
    """One prompt of 1,900 tokens, eager passes; the allocator gives freed blocks back at once."""
    assert os.environ.get("MALLOC_TRIM_THRESHOLD_") == "0", "run it with python -m studies.microbench memory"
    decoder = Decoder.from_pretrained("zoo:target", drafters=DRAFTERS, policy=POLICY, compile="off")
    figures = benchmark.pedantic(beyond, args=(decoder,), rounds=1)
    benchmark.extra_info.update(figures)
    assert figures["MB beyond"] <= 0.1 * figures["MB of weights"]


@pytest.mark.parametrize("language", ["C++", "Python"])
@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
def test_lookups(
    benchmark: Any, kind: type[NgramDrafter | SuffixDrafter], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that a lookup holds for each token of a text, by what its index is written in."""
    if language == "Python":
        monkeypatch.setattr(indices, "library", lambda: None)
    figures = benchmark.pedantic(held, args=(kind(), prose(Random(0), LONG)), rounds=1)
    benchmark.extra_info["bytes a token"] = figures


def held(drafter: NgramDrafter | SuffixDrafter, text: list[int]) -> float:
    """Bytes a token; the drafter is kept, so that the next one gets memory of its own."""
    KEPT.append(drafter)
    gc.collect()
    before = anonymous()
    drafter.observe(Request(0, [], 0, Sampling(), Random(0), Random(0)), text)
    return (anonymous() - before) / len(text)
