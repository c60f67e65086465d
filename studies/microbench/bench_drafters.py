"""Cost of the drafters that need no model, in microseconds: per committed token, per hint, per draft of 8.

Three texts: *prose*, words with Zipf-distributed frequencies and repeated phrases; *loop*, a period of 12
tokens, the worst case of the suffix automaton; *random*, where nothing matches. Rounds commit 3 tokens each
after a prompt of a quarter of the text. The datastore is built from separate prose.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from time import thread_time
from typing import Any

import pytest

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup import indices
from draftwise.drafters.lookup.datastore import build
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.retrieval import RetrievalDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter

TOKENS, STORE, TEXTS = 4000, 1_000_000, 10
VOCAB = 32000
STEP = 3


def prose(rng: Random, size: int) -> list[int]:
    """Zipf-distributed tokens; a third of the text repeats an earlier phrase of 3 to 12 tokens."""
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


def measure(drafter: Drafter, text: list[int], stop: Stop) -> dict[str, float]:
    """Median microseconds per token, hint and draft over the rounds of one request, and tokens per draft."""
    request = Request(0, [], 0, Sampling(), Random(0), Random(0))
    start = len(text) // 4
    drafter.observe(request, text[:start])
    request.tokens += text[:start]
    seconds: list[tuple[float, float, float]] = []
    drafted = 0
    for at in range(start, len(text) - STEP, STEP):
        new = text[at : at + STEP]
        a = thread_time()
        drafter.hint(request)
        b = thread_time()
        (made,) = drafter.draft([Job(request, 8, (stop,))])
        c = thread_time()
        drafter.observe(request, new)
        d = thread_time()
        request.tokens += new
        seconds.append(((d - c) / STEP, b - a, c - b))
        drafted += len(made.tokens)
    drafter.close(request)
    token, hint, draft = (1e6 * median(column) for column in zip(*seconds, strict=True))
    return {"us a token": token, "us a hint": hint, "us a draft": draft, "drafted": drafted / len(seconds)}


def prompt(make: Callable[[], Drafter], text: list[int]) -> dict[str, float]:
    """Median microseconds a token to read a prompt in one piece."""
    drafter, seconds = make(), list[float]()
    for at in range(TEXTS):
        request = Request(at, [], 0, Sampling(), Random(0), Random(0))
        start = thread_time()
        drafter.observe(request, text)
        seconds.append(thread_time() - start)
    return {"us a token": 1e6 * median(seconds) / len(text)}


def make_store(folder: Path, size: int, rng: Random) -> str:
    """A datastore of prose, in documents of 500 tokens."""
    text = prose(rng, size)
    corpus, out = folder / "corpus.jsonl", folder / "store"
    with corpus.open("w") as file:
        for at in range(0, size, 500):
            file.write(json.dumps({"text": " ".join(map(str, text[at : at + 500]))}) + "\n")

    def encode(line: str) -> list[int]:
        return [int(word) for word in line.split()]

    build([corpus], out, encode=encode, vocab_size=VOCAB, fingerprint="bench")
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


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Drafter]]:
    """Drafters by name."""
    store = make_store(tmp_path_factory.mktemp("store"), STORE, Random(0))
    history = with_history(Random(0))
    return {
        "ngram": NgramDrafter,
        "suffix": SuffixDrafter,
        "suffix with history": lambda: history,
        "retrieval": lambda: RetrievalDrafter(store),
    }


@pytest.mark.parametrize("stop", [Stop(), Stop("svip", 0.6)], ids=["whole", "svip"])
@pytest.mark.parametrize("kind", ["prose", "loop", "random"])
@pytest.mark.parametrize("name", ["ngram", "suffix", "suffix with history", "retrieval"])
def test_draft(benchmark: Any, makers: dict[str, Any], name: str, kind: str, stop: Stop) -> None:
    """One request from its prompt to its end."""
    text = texts(Random(0), TOKENS)[kind]
    figures = benchmark.pedantic(measure, args=(makers[name](), text, stop), rounds=1)
    benchmark.extra_info.update(figures)


@pytest.mark.parametrize("language", ["C++", "Python"])
@pytest.mark.parametrize("size", [400, 4000, 32000])
@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_prompt(
    benchmark: Any,
    makers: dict[str, Any],
    name: str,
    size: int,
    language: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of `size` tokens, by what their index is written in."""
    if language == "Python":
        monkeypatch.setattr(indices, "library", lambda: None)
    figures = benchmark.pedantic(prompt, args=(makers[name], prose(Random(0), size)), rounds=1)
    benchmark.extra_info.update(figures)
