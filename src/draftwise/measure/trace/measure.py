"""Measures the costs of a round's parts on live rounds: passes, drafts, catching up, grading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter

import numpy as np

from ...core.loop import Loop
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import Drafter, GradeJob, Grader, Target
from ...core.round import Round
from ...core.sampling import Sampling
from ...policies.catalogue import method
from .costs import MEASURED, Costs, DrafterCosts, rising

ROUNDS = 40  # plus PER_DRAFTER for each drafter, so that every length is tried several times
PER_DRAFTER = 24
TOKENS = 48  # of each prompt: prompts alternate, since catching up is one of the costs
KEY = (1 << 41) + 1  # the id of a request outside any loop
OUTLIER = 5.0  # a time beyond so many median absolute deviations was disturbed


@dataclass(slots=True)
class Samples:
    """Seconds measured: passes by number of tokens, drafts by drafter as (drafted, caught up, seconds)."""

    passes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    drafts: dict[str, list[tuple[int, int, float]]] = field(default_factory=lambda: defaultdict(list))
    rounds: int = 0

    def add(self, round: Round, first: bool, behind: int) -> None:
        """Add one round; the first round of a text includes the prefill."""
        self.rounds += 1
        if not first:
            self.passes[1 + round.drafted].append(round.seconds.verify)
        if round.arm.length:
            self.drafts[round.arm.drafter].append((round.drafted, behind, round.seconds.draft))


def measure(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    length: int,
    seed: int = 0,
) -> Costs:
    """Costs from live rounds on these prompts, with random drafters and lengths."""
    lengths = sorted({0, 1, length, *(1 << k for k in range(1, length.bit_length()) if 1 << k < length)})
    names = [name for name in drafters if name != "none"]
    options = f"?arms=drafters*lengths&lengths={','.join(map(str, lengths))}" if names else ""
    made = method(f"random{options}" if names else "none", names)
    loop = Loop(target, drafters, made.policy, made.recorder, seed=seed)
    settings = Sampling(
        max_new_tokens=min(TOKENS, sampling.max_new_tokens),
        eos=sampling.eos,
        temperature=sampling.temperature,
    )
    samples, wanted = Samples(), ROUNDS + PER_DRAFTER * len(names)
    _play(loop, prompts[0], settings, Samples())  # the first text is a warm-up
    at = 0
    while samples.rounds < wanted:
        _play(loop, prompts[at % len(prompts)], settings, samples)
        at += 1
    found = {}
    for name in names:
        grade = _grading(drafters[name], max(prompts, key=len), sampling)
        found[name] = fit(samples.drafts[name], grade=grade, reads=isinstance(drafters[name], Grader))
    return Costs(passes=passes(samples.passes, length + 1), drafters=found, others=None, source=MEASURED)


def _play(loop: Loop, prompt: Sequence[int], settings: Sampling, samples: Samples) -> None:
    request = loop.add(prompt, settings)
    read: dict[str, int] = {}
    while loop.open:
        first, before = request.rounds == 0, len(request.tokens)
        (round,) = unfailed(loop.step())
        samples.add(round, first, before - read.get(round.arm.drafter, 0))
        read[round.arm.drafter] = len(request.tokens)


def _grading(drafter: Drafter, prompt: Sequence[int], sampling: Sampling) -> float:
    """The median seconds of a pass that grades three tokens of a prompt; 0 for drafters without grades."""
    if not isinstance(drafter, Grader):
        return 0.0
    times = []
    for end in range(max(4, len(prompt) - 24), len(prompt) + 1, 3):
        request = Request(KEY, list(prompt[:end]), 1, sampling, Random(0), Random(0))
        start = perf_counter()
        drafter.grade([GradeJob(request, end - 3, [1.0] * 3)])
        times.append(perf_counter() - start)
    drafter.close(Request(KEY, [], 0, sampling, Random(0), Random(0)))
    return median(times[1:] or times) if times else 0.0


def passes(samples: Mapping[int, Sequence[float]], most: int) -> list[float]:
    """Seconds of a pass over 1 to `most` tokens: medians, made non-decreasing, interpolated linearly."""
    known = sorted(samples)
    medians = rising([median(samples[n]) for n in known])
    return [float(x) for x in np.interp(np.arange(1, most + 1), known, medians)]


def fit(samples: Sequence[tuple[int, int, float]], *, grade: float, reads: bool) -> DrafterCosts:
    """Least-squares fit of a drafter's seconds to drafted and caught-up tokens, without outliers."""
    if not samples:
        return DrafterCosts(grade=grade)
    table = np.array(samples)
    columns = [np.ones(len(table)), table[:, 0], *([table[:, 1]] if reads else [])]
    inputs, seconds = np.stack(columns, 1), table[:, 2]
    keep = np.ones(len(table), bool)
    for _ in range(3):
        found = np.linalg.lstsq(inputs[keep], seconds[keep], rcond=None)[0]
        rest = np.abs(seconds - inputs @ found)
        keep = rest <= OUTLIER * max(float(np.median(rest)), 1e-9)
    first, step, catch_up = (max(0.0, float(x)) for x in (*found, 0.0)[:3])
    return DrafterCosts(first=first, step=step, catch_up=catch_up, grade=grade)
