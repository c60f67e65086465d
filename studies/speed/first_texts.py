"""What the first texts of a process gain from what `auto` kept of earlier ones: prices, acceptance, or both.

    python -m studies.speed.first_texts TRACE [TRACE ...]

Half of the prompts teach (or one category of them), and the other half (or another category) are played in
random orders by an `auto` that begins with nothing, or with a part of what was learned, as a state file
brings it. The table has the time without it over the time with it, for the first 1, 2, 4 and 6 texts
together: the mean of the logarithms over orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.catalogue import Method, method
from draftwise.state.learned import restart
from studies.common.command import command, listed, start
from studies.common.tables import Real, heading, row
from studies.common.traces import costs_of, seconds

PAGE = "docs/explanation/auto-measured.md"
PARTS = {
    "prices": ("draft_prices", "pass_prices"),
    "acceptance": ("acceptance", "calibrations", "answer"),
    "both": ("draft_prices", "pass_prices", "acceptance", "calibrations", "answer", "rates"),
}
TEXTS = (1, 2, 4, 6)


def fresh(trace: Trace, kept: Any = None, part: str = "") -> Method:
    """Return a new `auto`, with a part of what another one has learned."""
    new = method(f"auto?length={min(LENGTHS[-1], trace.header.length)}", trace.team("auto"))
    for name in PARTS.get(part, ()):
        setattr(new.policy, name, deepcopy(getattr(kept, name)))
    if part:
        restart(new.policy)
    return new


def teams(
    states: Sequence[ReplayState], categories: Sequence[str], *, strangers: bool
) -> list[tuple[list[ReplayState], list[ReplayState]]]:
    """Return prompts that teach and prompts that are played: two halves, or a category and another one."""
    if not strangers:
        halves = [list(states[half::2]) for half in (0, 1)]
        return [(halves[0], halves[1]), (halves[1], halves[0])]
    kinds = {kind: [s for s, at in zip(states, categories, strict=True) if at == kind] for kind in categories}
    return [(kinds[one], kinds[other]) for one, other in permutations(sorted(kinds), 2)]


def play(trace: Trace, costs: Any, orders: int, *, strangers: bool) -> dict[str, Real]:
    """Return the seconds of the first texts in each order, by the part that is kept."""
    categories = [one.category for one in trace]
    pairs = teams([ReplayState(one) for one in trace], categories, strangers=strangers)
    texts: dict[str, list[list[float]]] = {part: [] for part in ("", *PARTS)}
    for seed in range(orders):
        random = Random(seed)
        lessons, order = pairs[seed % 2] if not strangers else random.choice(pairs)
        teacher, lessons, order = fresh(trace), list(lessons), list(order)
        for states in (lessons, order):
            random.shuffle(states)
        seconds(Replay(trace, teacher, costs), lessons)
        for part, times in texts.items():
            replay = Replay(trace, fresh(trace, teacher.policy, part), costs)
            times.append(seconds(replay, order[: TEXTS[-1]]))
    return {part: np.cumsum(times, axis=1) for part, times in texts.items()}


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path, help="folders of traces")
    parser.add_argument("--costs", type=listed, default=["measured"])
    parser.add_argument("--orders", type=int, default=24)
    parser.add_argument("--strangers", action="store_true", help="one category teaches, another is played")
    args = parser.parse_args()
    print(heading("prompts", "costs", "kept", *TEXTS))
    for folder, name in product(args.traces, args.costs):
        times = play(Trace(folder), costs_of(folder, name), args.orders, strangers=args.strangers)
        for part in PARTS:
            logs = np.log(times[""] / times[part])[:, [n - 1 for n in TEXTS]]
            error = logs.std(axis=0, ddof=1) / len(logs) ** 0.5
            cells = [f"{np.exp(m):.3f} ({e:.3f})" for m, e in zip(logs.mean(0), error, strict=True)]
            print(row(folder.name, name, part, *cells), flush=True)


if __name__ == "__main__":
    start(main)
