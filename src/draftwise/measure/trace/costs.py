"""Costs of the parts of a round in seconds: measured on live rounds, published, or assumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from math import isfinite
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ...core.drafts import Draft, Verdict
from ...core.loop import Loop
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import Drafter, GradeJob, Grader, Target, Waiter
from ...core.sampling import Sampling
from ...errors import UserError
from ...inputs import expanded, parse_json
from ...policies.catalogue import method
from ..machine import judge, split_load
from ..results import Progress

FORMAT, VERSION = "draftwise-costs", 1
MEASURED = "measured"  # the source of costs measured by `draftwise trace`
ROUNDS = 40  # plus PER_DRAFTER for each drafter, so that every length is tried several times
PER_DRAFTER = 24
TOKENS = 48  # of each prompt: prompts alternate, since catching up is one of the costs
KEY = (1 << 41) + 1  # the id of a request outside any loop
LOOKUPS = ("ngram", "suffix", "retrieval", "none")  # drafters that cost nothing unless they are listed
NOISE = 0.05  # of a pass: by how much a measured one may seem shorter than one over fewer tokens
OUTLIER = 5.0  # a time beyond so many median absolute deviations was disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCosts:
    """Seconds of one drafter: `first` per draft, plus `step` per drafted token.

    `catch_up` is per token of the text (prompt included) that it had not read before the draft, and `grade`
    per pass that grades committed text, in addition to reading it.
    """

    first: float = 0.0
    step: float = 0.0
    catch_up: float = 0.0
    grade: float = 0.0

    def draft(self, drafted: int) -> float:
        return self.first + self.step * drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a target pass over 1, 2, ... tokens (`passes`), of every drafter, and of learning.

    Longer passes are extrapolated linearly from the last two. An unlisted drafter costs nothing if it looks
    tokens up (a name of `lookups` before any `?` or `:`), otherwise `others`; if `others` is None it is
    rejected. `learn` is the cost of one update of a policy that learns from all arms. The time of a pass
    never falls with more tokens. For measured costs, `machine` describes the machine, and `load` its use by
    other processes meanwhile, as in a benchmark's results.
    """

    passes: Sequence[float]
    drafters: Mapping[str, DrafterCosts] = field(default_factory=dict)
    others: DrafterCosts | None = field(default_factory=DrafterCosts)
    lookups: Sequence[str] = LOOKUPS
    learn: float = 0.0
    name: str = ""
    source: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    load: Sequence[Mapping[str, Any]] = ()

    def target(self, tokens: int) -> float:
        """Return the seconds of a pass over `tokens` tokens, the last committed one included."""
        passes = self.passes
        if tokens <= len(passes):
            return passes[tokens - 1]
        slope = passes[-1] - passes[-2] if len(passes) > 1 else 0.0
        return passes[-1] + slope * (tokens - len(passes))

    def of(self, drafter: str) -> DrafterCosts:
        """Return the costs of one drafter."""
        if drafter in self.drafters:
            return self.drafters[drafter]
        if drafter.partition("?")[0].partition(":")[0] in self.lookups:
            return DrafterCosts()
        if self.others is None:
            raise UserError(
                f"these costs name {', '.join(self.drafters) or 'no drafter'} and not {drafter!r}: "
                "add it under `drafters`, or give `others`"
            )
        return self.others


def profiles() -> list[str]:
    folder = files(__package__) / "profiles"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))


def read_costs(text: str) -> Costs:
    """Read costs by the name of a profile, from a file, or as `c=0.05`.

    `c=0.05` means that a target pass takes 1 second whatever its length, and a model drafter's token 0.05:
    the cost coefficient of Leviathan et al. 2023, for any pair of models with a known ratio.

    Raises:
        UserError: no such profile or file, or a damaged file.
    """
    if text.startswith("c="):
        return Costs(
            passes=(1.0,), others=DrafterCosts(step=_seconds("c", text[2:])), name=text, source="supposed"
        )
    bundled = files(__package__) / "profiles" / f"{text}.json"
    path = bundled if text in profiles() else expanded(text)
    try:
        return _parse_costs(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or "not readable"
        raise UserError(
            f"cannot read the costs {text!r}: {reason.splitlines()[0]}; give a costs.json of a trace, "
            f"c=NUMBER, or choose from {', '.join(profiles())}"
        ) from None


def busy(costs: Costs) -> list[str] | None:
    """Return why the machine was not quiet while these costs were measured.

    None if that is unknown, or if they were not measured.
    """
    if costs.source != MEASURED or not costs.load:
        return None
    return judge(*split_load(costs.load), int(costs.machine.get("cores") or 1))


def costs_json(costs: Costs) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, **asdict(costs)}


def rising(values: Sequence[float]) -> list[float]:
    """Return the closest non-decreasing numbers to `values` in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pool = (value, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1])
        pools.append(pool)
    return [total / n for total, n in pools for _ in range(n)]


def _parse_costs(content: Any) -> Costs:
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"it is no {FORMAT} of version {VERSION}")
    names = {f.name for f in fields(Costs)}
    if unknown := content.keys() - names - {"format", "version"}:
        raise ValueError(f"{sorted(unknown)[0]!r} is not known")
    values = {key: value for key, value in content.items() if key in names}
    passes = tuple(_seconds("passes", x) for x in values.get("passes") or ())
    if not passes or passes[0] <= 0.0:
        raise ValueError("passes: give the seconds of a target pass over 1, 2, ... tokens")
    smooth = tuple(rising(passes))
    if any(abs(a - b) > NOISE * a for a, b in zip(passes, smooth, strict=True)):
        raise ValueError(f"passes: one over more tokens is never shorter by {100 * NOISE:g} %")
    others = values.get("others")
    parsed = {
        "passes": smooth,
        "drafters": {name: _parse_drafter(costs) for name, costs in values.get("drafters", {}).items()},
        "lookups": tuple(values.get("lookups", LOOKUPS)),
        "machine": dict(values.get("machine", {})),
        "load": tuple(
            {key: None if value is None else _seconds(key, value) for key, value in sample.items()}
            for sample in values.get("load", ())
        ),
        "others": None if others is None else _parse_drafter(others),
        "learn": _seconds("learn", values.get("learn", 0.0)),
    }
    return Costs(**values | parsed)


def _parse_drafter(costs: Mapping[str, Any]) -> DrafterCosts:
    return DrafterCosts(**{key: _seconds(key, value) for key, value in costs.items()})


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name}={value!r}: give seconds") from None
    if not (isfinite(seconds) and seconds >= 0.0):
        raise UserError(f"{name}={value!r}: give seconds, 0 or more")
    return seconds


# -- measuring --------------------------------------------------------------------------------------------


def measure_costs(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    length: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Costs:
    """Measure costs on live rounds after these prompts, with random drafters and lengths."""
    lengths = sorted({0, 1, length, *(1 << k for k in range(1, length.bit_length()) if 1 << k < length)})
    names = [name for name in drafters if name != "none"]
    options = f"?arms=drafters*lengths&lengths={','.join(map(str, lengths))}" if names else ""
    policy = method(f"random{options}" if names else "none", names)
    loop = Loop(target, drafters, policy.policy, policy.recorder, seed=seed)
    # Texts continue after their end: those of a token or two would have no pass but the prefill.
    settings = Sampling(max_new_tokens=TOKENS, temperature=sampling.temperature)
    samples, rounds = Samples(), ROUNDS + PER_DRAFTER * len(names)
    if progress:
        progress(0, rounds)
    samples.add_text(loop, prompts[0], settings)  # the first text is a warm-up
    samples, at = Samples(), 0
    while samples.rounds < rounds:
        samples.add_text(loop, prompts[at % len(prompts)], settings)
        at += 1
        if progress:
            progress(min(samples.rounds, rounds), rounds)
    costs = {}
    for name in names:
        grade = _time_grading(target, drafters[name], max(prompts, key=len), sampling)
        costs[name] = fit(samples.drafts[name], grade=grade, reads=isinstance(drafters[name], Grader))
    passes = interpolate(samples.passes, length + 1)
    return Costs(passes=passes, drafters=costs, others=None, source=MEASURED)


@dataclass(slots=True)
class Samples:
    """Seconds measured: passes by number of tokens, drafts by drafter as (drafted, caught up, seconds)."""

    passes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    drafts: dict[str, list[tuple[int, int, float]]] = field(default_factory=lambda: defaultdict(list))
    rounds: int = 0

    def add_text(self, loop: Loop, prompt: Sequence[int], settings: Sampling) -> None:
        """Add the rounds of one text; the pass of the first one includes the prefill."""
        request = loop.add(prompt, settings)
        read: dict[str, int] = {}
        while loop.open:
            is_first, length = request.rounds == 0, len(request.tokens)
            (round,) = unfailed(loop.step())
            drafter, seconds = round.arm.drafter, round.seconds
            self.rounds += 1
            if not is_first:
                self.passes[1 + round.drafted].append(seconds.verify)
            if round.arm.length:
                unread = length - read.get(drafter, 0)
                self.drafts[drafter].append((round.drafted, unread, seconds.draft))
            read[drafter] = len(request.tokens)


def _time_grading(target: Target, drafter: Drafter, prompt: Sequence[int], sampling: Sampling) -> float:
    """Return the median seconds of a pass that grades three tokens of a prompt; 0 for ungraded drafters."""
    if not isinstance(drafter, Grader):
        return 0.0
    times = list[float]()
    whole = Request(KEY, list(prompt), len(prompt), sampling, Random(0), Random(0))
    if waits := isinstance(drafter, Waiter):  # a head grades from what the target has read
        target.open(whole)
        target.verify([(whole, Draft())])
        target.commit([(whole, Draft(), Verdict((), 0))])
    for end in range(max(4, len(prompt) - 24), len(prompt) + 1, 3):
        request = Request(KEY, list(prompt[:end]), 1, sampling, Random(0), Random(0))
        start = perf_counter()
        drafter.grade([GradeJob(request, end - 3, [1.0] * 3)])
        times.append(perf_counter() - start)
    drafter.close(whole)
    if waits:
        target.close(whole)
    return median(times[1:] or times) if times else 0.0


def interpolate(samples: Mapping[int, Sequence[float]], most: int) -> list[float]:
    """Return seconds of a pass over 1 to `most` tokens: medians, non-decreasing, interpolated linearly."""
    widths = sorted(samples)
    medians = rising([median(samples[n]) for n in widths])
    return [float(x) for x in np.interp(np.arange(1, most + 1), widths, medians)]


def fit(samples: Sequence[tuple[int, int, float]], *, grade: float, reads: bool) -> DrafterCosts:
    """Fit a drafter's seconds to drafted and caught-up tokens by least squares, without outliers."""
    if not samples:
        return DrafterCosts(grade=grade)
    table = np.array(samples)
    columns = [np.ones(len(table)), table[:, 0], *([table[:, 1]] if reads else [])]
    inputs, seconds = np.stack(columns, 1), table[:, 2]
    keep = np.ones(len(table), bool)
    for _ in range(3):
        weights = np.linalg.lstsq(inputs[keep], seconds[keep], rcond=None)[0]
        rest = np.abs(seconds - inputs @ weights)
        keep = rest <= OUTLIER * max(float(np.median(rest)), 1e-9)
    first, step, catch_up = (max(0.0, float(x)) for x in (*weights, 0.0)[:3])
    return DrafterCosts(first=first, step=step, catch_up=catch_up, grade=grade)
