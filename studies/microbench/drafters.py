"""What the drafters that need no model cost, in microseconds: per committed token, per hint, per draft of 8.

    python -m studies.microbench.drafters [--tokens 4000] [--store-tokens 1000000] [--seed 0]

Three texts: *prose*, words drawn by Zipf's law with phrases that return; *loop*, a period of 12 tokens, the
worst case of the suffix automaton; *random*, where nothing matches. Rounds commit 3 tokens each after a
prompt of a quarter of the text. The datastore is built from prose of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.datastore import build
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.retrieval import RetrievalDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter

VOCAB = 32000
STEP = 3


def prose(rng: Random, size: int) -> list[int]:
    """Tokens by Zipf's law; a third of the text repeats an earlier phrase of 3 to 12 tokens."""
    text: list[int] = []
    while len(text) < size:
        if len(text) > 100 and rng.random() < 0.1:
            at = rng.randrange(len(text) - 12)
            text += text[at : at + rng.randint(3, 12)]
        else:
            text += (min(VOCAB - 1, int(10 * rng.paretovariate(0.8))) for _ in range(2))
    return text[:size]


def texts(rng: Random, size: int) -> dict[str, list[int]]:
    """The three kinds of text."""
    return {
        "prose": prose(rng, size),
        "loop": [rng.randrange(VOCAB)] + [100 + i % 12 for i in range(size - 1)],
        "random": [rng.randrange(VOCAB) for _ in range(size)],
    }


def measure(drafter: Drafter, text: list[int], stop: Stop) -> list[float]:
    """Median microseconds per token, hint and draft over the rounds of one request, and tokens per draft."""
    request = Request(0, [], 0, Sampling(), Random(0), Random(0))
    start = len(text) // 4
    drafter.observe(request, text[:start])
    request.tokens += text[:start]
    seconds: list[tuple[float, float, float]] = []
    drafted = 0
    for at in range(start, len(text) - STEP, STEP):
        new = text[at : at + STEP]
        a = perf_counter()
        drafter.hint(request)
        b = perf_counter()
        (made,) = drafter.draft([Job(request, 8, (stop,))])
        c = perf_counter()
        drafter.observe(request, new)
        d = perf_counter()
        request.tokens += new
        seconds.append(((d - c) / STEP, b - a, c - b))
        drafted += len(made.tokens)
    drafter.close(request)
    return [1e6 * median(column) for column in zip(*seconds, strict=True)] + [drafted / len(seconds)]


def memory(make: Callable[[], Drafter], text: list[int]) -> float:
    """Bytes that a drafter holds per token of one request."""
    drafter = make()
    request = Request(0, [], 0, Sampling(), Random(0), Random(0))
    tracemalloc.start()
    drafter.observe(request, text)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(text)


def make_store(folder: Path, size: int, rng: Random) -> str:
    """A datastore of prose, in documents of 500 tokens; says what it took."""
    text = prose(rng, size)
    corpus, out = folder / "corpus.jsonl", folder / "store"
    with corpus.open("w") as file:
        for at in range(0, size, 500):
            file.write(json.dumps({"text": " ".join(map(str, text[at : at + 500]))}) + "\n")

    def encode(line: str) -> list[int]:
        return [int(word) for word in line.split()]

    start = perf_counter()
    build([corpus], out, encode=encode, vocab_size=VOCAB, fingerprint="bench")
    print(f"datastore of {size:,} tokens built in {perf_counter() - start:.2f} s")
    return str(out)


def with_history(rng: Random) -> SuffixDrafter:
    """A suffix drafter that holds 100,000 tokens of earlier outputs."""
    drafter = SuffixDrafter(history=100_000)
    for at in range(1, 201):
        request = Request(-at, [], 0, Sampling(), Random(0), Random(0))
        drafter.observe(request, [])
        drafter.observe(request, prose(rng, 500))
        drafter.close(request)
    return drafter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--store-tokens", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), asked.store_tokens, rng)
        history = with_history(rng)
        makers: dict[str, Callable[[], Drafter]] = {
            "ngram": NgramDrafter,
            "suffix": SuffixDrafter,
            "suffix?history=100000": lambda: history,
            "retrieval": lambda: RetrievalDrafter(store),
        }
        print(
            f"{'drafter':24}{'text':8}{'stop':8}"
            + "".join(f"{c:>9}" for c in ("token", "hint", "draft", "drafted"))
        )
        for name, make in makers.items():
            for kind, text in texts(rng, asked.tokens).items():
                for stop in (Stop(), Stop("svip", 0.6)):
                    row = measure(make(), text, stop)
                    print(f"{name:24}{kind:8}{stop.rule:8}" + "".join(f"{value:9.2f}" for value in row))
        for name in ("ngram", "suffix"):
            print(f"{name}: {memory(makers[name], prose(rng, asked.tokens)):.0f} bytes a token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
