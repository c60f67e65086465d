"""Peak memory of decoding beyond the models' weights and caches, at batch 1 (Linux).

    python -m studies.microbench.memory [--drafters zoo:general,ngram,suffix] [--prompt-tokens 1900]
        [--new-tokens 64]

A thread reads the kernel's count of anonymous memory while a prompt is read and answered; what there was
before and what the caches hold is taken off. The allocator is told to give freed blocks back at once, so
that the count is of what is in use. Exit status 1 above 10 % of the weights.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)

from draftwise import Decoder, Sampling  # noqa: E402 - after the allocator is set
from draftwise.models.packed import PackedLinear  # noqa: E402


class Peak(threading.Thread):
    """The largest anonymous memory seen, in bytes, sampled a few thousand times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = anonymous()

    def run(self) -> None:
        while True:
            self.most = max(self.most, anonymous())
            time.sleep(0.0002)


def anonymous() -> int:
    """Anonymous memory of this process, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def weights(model: Any) -> int:
    """Bytes of a model's weights, packed ones included."""
    packed: int = sum(m.in_features * m.out_features * 4 for m in model.modules() if isinstance(m, PackedLinear))
    return packed + sum(p.numel() * p.element_size() for p in model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drafters", default="zoo:general,ngram,suffix")
    parser.add_argument("--policy", default="random?arms=drafters*lengths&lengths=0,2,8")
    parser.add_argument("--prompt-tokens", type=int, default=1900)
    parser.add_argument("--new-tokens", type=int, default=64)
    options = parser.parse_args()
    decoder = Decoder.from_pretrained(
        "zoo:target", drafters=options.drafters.split(","), policy=options.policy
    )
    models = [decoder.loop.target, *decoder.loop.team.drafters.values()]
    rows = [m.rows for m in models if hasattr(m, "rows")]
    own = sum(weights(r.model) for r in rows)
    list(decoder.loop.run([[5, 6, 7] * 10], Sampling(max_new_tokens=16)))  # first calls load libraries
    gc.collect()
    text = decoder.encode("The quick brown fox jumps over the lazy dog, again and again. ") * 200
    peak = Peak()
    peak.start()
    decoder.loop.add(text[: options.prompt_tokens], Sampling(max_new_tokens=options.new_tokens))
    caches = 0
    while decoder.loop.open:
        decoder.loop.step()
        caches = max(caches, sum(r.cache.bytes for r in rows))
    beyond = peak.most - peak.before - caches
    print(f"weights {own / 1e6:.1f} MB, caches {caches / 1e6:.1f} MB")
    print(f"peak beyond weights and caches {beyond / 1e6:.1f} MB: {beyond / own:.1%} of the weights")
    return int(beyond > 0.1 * own)


if __name__ == "__main__":
    sys.exit(main())
