"""Times two layouts of the weights on this machine in turn, until it is clear which is faster.

Standard library only; the kernels and the clock are passed in.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import comb, inf
from pathlib import Path
from statistics import median

WIDTHS = (1, 5, 9, 17)  # tokens per pass: plain decoding, and drafts of 4, 8 and 16 tokens
PROMPT = 192  # tokens of a prompt in one pass
MANY = 12  # rounds after which an unclear answer is a draw
FEWEST = 6  # minimum number of rounds; each times one pass per width and layout
DOUBT = 0.02  # significance level of a sign test: the chance of as many wins by luck
SLOWER = 1.25  # slowdown at one width that no gain at another outweighs
STEADY = 0.2  # largest relative median absolute deviation of the ratio; above it, the machine counts as busy
BUDGET = 0.4  # seconds for one shape

Pass = Callable[[int], object]  # a pass through some layers, at a width


@dataclass(frozen=True, slots=True)
class Timing:
    """Rounds of timed passes in both layouts.

    `ratios` is the packed layout's time over the plain one's at each width (median over rounds); `wins`
    counts the rounds in which it was faster. `steady` is False if the machine was busy.
    """

    rounds: int
    wins: int
    ratios: tuple[float, ...]
    steady: bool

    @property
    def sure(self) -> bool:
        """Whether one layout was faster in significantly more rounds than chance."""
        return _luck(self.rounds, max(self.wins, self.rounds - self.wins)) < DOUBT

    @property
    def pays(self) -> bool:
        """Whether the packed layout is faster and much slower at no width; if unsure, faster at each."""
        return 2 * self.wins > self.rounds and max(self.ratios) < (SLOWER if self.sure else 1.0)

    @property
    def lasting(self) -> bool:
        """Whether to save the answer: clear, or a draw of many rounds, and no other process disturbed it."""
        return self.steady and (self.sure or self.rounds >= MANY)

    @property
    def rounded(self) -> list[float]:
        """The ratios as they are saved."""
        return [round(ratio, 3) for ratio in self.ratios]


def measure(
    plain: Pass,
    packed: Pass,
    *,
    clock: Callable[[], float] = time.perf_counter,
    budget: float = BUDGET,
    limit: float = inf,
    before: Callable[[], object] = int,
) -> Timing | None:
    """Time both layouts in turn until it is clear which is faster, or the time budget is used up.

    `before` is called before each timed pass. None if even one round would take more than `limit` seconds.
    """
    began = clock()
    for width in WIDTHS:  # the first pass compiles and allocates
        plain(width), packed(width)
        if (clock() - began) * 2 * len(WIDTHS) > limit:
            return None
        limit = inf  # the first width tells
    began, rounds = clock(), list[list[tuple[float, float]]]()
    while True:
        turned = len(rounds) % 2 == 1
        rounds.append([_pair(plain, packed, width, clock, before, turned=turned) for width in WIDTHS])
        found = _timing(rounds)
        if (len(rounds) >= FEWEST and found.sure) or clock() - began > budget:
            return found


def keeps_up(plain: Pass, packed: Pass, *, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Whether the packed layout is not much slower at reading a prompt, by the least of three passes each."""
    pairs = [_pair(plain, packed, PROMPT, clock, int, turned=turn % 2 == 1) for turn in range(3)]
    before, after = (min(times) for times in zip(*pairs, strict=True))
    return bool(after <= SLOWER * before)


def machine(torch_version: str, isa: str, threads: int) -> str:
    """The processor with its features, and PyTorch's view of it, as a short text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "cache size"))}
    facts |= {platform.machine(), platform.processor(), isa, os.environ.get("ONEDNN_MAX_CPU_ISA", "")}
    digest = sha256("\n".join(sorted(facts)).encode()).hexdigest()[:16]
    return f"{digest} torch {torch_version} threads {threads}"


def _pair(
    plain: Pass,
    packed: Pass,
    width: int,
    clock: Callable[[], float],
    before: Callable[[], object],
    *,
    turned: bool,
) -> tuple[float, float]:
    def timed(run: Pass) -> float:
        before()
        began = clock()
        run(width)
        return clock() - began

    first, second = (packed, plain) if turned else (plain, packed)
    one, other = timed(first), timed(second)
    return (other, one) if turned else (one, other)


def _timing(rounds: list[list[tuple[float, float]]]) -> Timing:
    before = [sum(plain for plain, _ in each) for each in rounds]
    after = [sum(packed for _, packed in each) for each in rounds]
    wins = sum(b < a for a, b in zip(before, after, strict=True))
    ratios = tuple(
        median(packed / max(plain, 1e-9) for plain, packed in width) for width in zip(*rounds, strict=True)
    )
    return Timing(
        len(rounds), wins, ratios, _steady([a / max(b, 1e-9) for a, b in zip(after, before, strict=True)])
    )


def _steady(ratios: list[float]) -> bool:
    middle = median(ratios)
    return median(abs(x - middle) for x in ratios) <= STEADY * middle


def _luck(rounds: int, wins: int) -> float:
    """The probability of at least so many wins with a fair coin."""
    return float(sum(comb(rounds, k) for k in range(wins, rounds + 1)) / 2**rounds)
