"""Microbenchmarks of single parts on this machine: the least of several passes.

    python -m studies.microbench [PART ...] [--passes 5] [--trace TRACE]

- `drafters`: microseconds of lookups to read a prompt, by what their index is written in, and in rounds that
  commit three tokens each, of which a token, a hint and a draft of eight.
- `memory`: the bytes that a lookup holds for each token of a text (Linux).
- `replay`: microseconds a round of a policy, over a given trace or a simulated one.
- `state`: what a shared state file costs the thread in which `auto` learns: milliseconds to take its numbers
  once before a save, and to add others' once after it.

Three texts: *prose*, words with Zipf-distributed frequencies and repeated phrases; *loop*, a period of 12
tokens, the worst case of the suffix automaton; *random*, where nothing matches. A time is CPU seconds of the
thread. The range is that of the passes.
"""

from __future__ import annotations

import ctypes
import gc
import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any
from unittest.mock import patch

from draftwise.core.drafts import Job
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup import indices
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from draftwise.state.file import StateFile
from studies.common.command import command, start
from studies.common.memory import anonymous
from studies.common.tables import heading, row
from studies.common.traces import costs_of

PAGE = "docs/explanation/lookups.md"
VOCAB, STEP, TEXTS, LONG = 32000, 3, 10, 32000
LOOKUPS: dict[str, Any] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
DRAFTERS = ["ngram", "suffix", "zoo:general"]
POLICIES = (
    *("none", "static-4", "ucb1", "ucb1?arms=drafters*lengths", "metasd-ucb?reward=block-efficiency"),
    *("ucbspec", "exp3spec", "tapout-seq-ucb1?length=16", "tapout-seq-ts?length=16", "linucb", "hedgespec"),
    *("tapout-token-ucb1?length=16", "tapout-token-ts?length=16", "hedgespec?every=16", "draft-all", "auto"),
)
KEPT: list[Any] = []
Figures = Iterator[tuple[str, float]]


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


def request_of(id: int) -> Request:
    """A request without a text."""
    return Request(id, [], 0, Sampling(), Random(0), Random(0))


def by_language() -> Iterator[str]:
    """What indices are written in, within each step."""
    yield "C++"
    with patch.object(indices, "library", lambda: None):
        yield "Python"


def timed(run: Callable[..., object], *given: object) -> float:
    """Seconds of a call."""
    begin = thread_time()
    run(*given)
    return thread_time() - begin


def drafters(options: Namespace) -> Figures:
    """Rounds after a prompt of a quarter of a text, then prompts."""
    for name, make in LOOKUPS.items():
        for kind, text in texts(Random(0), 4000).items():
            for what, value in rounds_of(make(), text).items():
                yield f"{name}, {kind}: {what}", value
    for language in by_language():
        for name, make in LOOKUPS.items():
            for size in (400, 4000, 32000):
                text, drafter = prose(Random(0), size), make()
                seconds = [timed(drafter.observe, request_of(at), text) for at in range(TEXTS)]
                yield f"{name}, {language}, prompt of {size}: us a token", 1e6 * median(seconds) / size


def rounds_of(drafter: Drafter, text: list[int]) -> dict[str, float]:
    """Median microseconds per token, hint and draft over the rounds of one request, and tokens per draft."""
    request, begin, drafted = request_of(0), len(text) // 4, list[int]()
    drafter.observe(request, text[:begin])
    request.tokens += text[:begin]
    seconds: list[tuple[float, float, float]] = []
    for at in range(begin, len(text) - STEP, STEP):
        new = text[at : at + STEP]
        a = thread_time()
        drafter.hint(request)
        b = thread_time()
        (draft,) = drafter.draft([Job(request, 8)])
        c = thread_time()
        drafter.observe(request, new)
        d = thread_time()
        request.tokens += new
        seconds.append(((d - c) / STEP, b - a, c - b))
        drafted.append(len(draft.tokens))
    drafter.close(request)
    token, hint, call = (1e6 * median(column) for column in zip(*seconds, strict=True))
    each = sum(drafted) / len(drafted)
    return {"us a token": token, "us a hint": hint, "us a draft": call, "tokens a draft": each}


def memory(options: Namespace) -> Figures:
    """Each lookup is kept, so that the next one gets memory of its own."""
    allocator = ctypes.CDLL(None)
    for setting, value in ((-3, 16384), (-2, 0), (-1, 0)):  # M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD:
        allocator.mallopt(setting, value)  # freed blocks go back at once: the count is of what is in use
    for language in by_language():
        for name, make in LOOKUPS.items():
            text = prose(Random(0), LONG)
            KEPT.append(make())
            gc.collect()
            before = anonymous()
            KEPT[-1].observe(request_of(0), text)
            yield f"{name}, {language}: bytes a token", (anonymous() - before) / LONG


def replay(options: Namespace) -> Figures:
    """A hundred texts at most, with a new policy each time."""
    from tests.measure.trace.sims import COSTS, recorded

    with TemporaryDirectory() as folder:
        if options.trace:
            trace, costs = Trace(options.trace), costs_of(options.trace, "measured")
        else:
            trace, costs = recorded(Path(folder), n=12, length=16), COSTS
        states = [ReplayState(one) for one in islice(trace, 0, None, max(1, len(trace) // 100))]
    for policy in POLICIES:
        loop, begin = Replay(trace, method(policy, trace.team(policy)), costs), thread_time()
        rounds = sum(1 for state in states for _ in loop.replay(state))
        yield f"{policy}: us a round", 1e6 * (thread_time() - begin) / rounds


def state(options: Namespace) -> Figures:
    """Two replicas that have learned from some hundred rounds, and share a file."""
    with TemporaryDirectory() as folder:
        one, other = (replica(Path(folder) / "state.json", seed) for seed in range(2))
        one.save()
        yield "bytes", one.path.stat().st_size
        yield "take: ms", 1e3 * min(timed(one.taken) for _ in range(20))
        seconds = []
        for _ in range(20):
            learn(one.policy, Random(2), 20)
            one.save()
            seconds.append(timed(other.adopt, other.exchange(other.taken())))
        yield "adopt: ms", 1e3 * min(seconds)


def replica(path: Path, seed: int) -> StateFile:
    """A state file of a policy that has learned."""
    policy: Any = method("auto", DRAFTERS).policy
    file = StateFile(path, policy, name="auto", target="t", drafters=dict.fromkeys(DRAFTERS, "d"))
    file.load()
    learn(policy, Random(seed), 500)
    return file


def learn(policy: Any, rng: Random, rounds: int) -> None:
    """Let `auto` learn made-up rounds."""
    for _ in range(rounds):
        policy.acceptance[rng.randrange(len(DRAFTERS))].learn(rng.randrange(4), [1.0, 0.0])
        policy.pass_prices[rng.randrange(4)].add(rng.randrange(1, 17), 0.01 + 0.001 * rng.random())


PARTS: dict[str, Callable[[Namespace], Figures]] = {
    "drafters": drafters,
    "memory": memory,
    "replay": replay,
    "state": state,
}


def main() -> None:
    """Print one table; parts take turns, so that load on the machine affects all of them alike."""
    parser = command(__doc__, PAGE)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--trace", type=Path, help="for replay: a trace in place of a simulated one")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"{min(unknown)}: choose from {', '.join(PARTS)}")
    figures: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.passes):
        for part in args.parts or PARTS:
            for name, value in PARTS[part](args):
                figures[f"{part}: {name}"].append(value)
    print(heading("benchmark", "least", "most"))
    for name, values in figures.items():
        print(row(name, f"{min(values):,.2f}", f"{max(values):,.2f}"))
    print(f"\nload {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    start(main)
