"""`auto` against every fixed arm on traces of drawn texts, where replays are unbiased and not exact.

    python -m studies.speed.drawn TRACE [TRACE ...] [--costs NAME,...]

A trace of drawn texts does not hold where a stop rule would end a model's draft, so `auto` plays without that
part. The fixed arm is the best in hindsight for these prompts. "Taught" is a second pass over the same
prompts, with all that the first one learned of them. Ratios are the time of the fixed arm over that of
`auto`, with the middle 95 % over resampled prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.stage import Stage
from draftwise.policies.catalogue import Method, method
from studies.common.command import command, listed, start
from studies.common.paired import Real, cell, ratio
from studies.speed.baselines import least
from studies.speed.without import without

PAGE = "docs/explanation/auto-measured.md"
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def _seconds(trace: Trace, costs: Costs, stages: Sequence[Stage], made: Method) -> Real:
    """Seconds of each text; a method that played before keeps what it learned."""
    loop = Replay(trace, made, costs)
    return np.array([sum(round.seconds.total for round in loop.play(stage)) for stage in stages])


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", type=listed, default="measured,llama-8b-eagle,llama-8b-1b")
    asked = parser.parse_args()
    heads = ["temperature", "prompts", "costs", "`auto` against plain", "against the best fixed arm"]
    heads.append("taught")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for folder in asked.traces:
        trace = Trace(folder)
        stages = [Stage(one) for one in trace]
        for name in asked.costs:
            costs = read_costs(str(folder / "costs.json") if name == "measured" else name)
            seconds = partial(_seconds, trace, costs, stages)
            made = without("stop", trace.drafters)
            mine, taught = seconds(made), seconds(made)
            names = [f"static?length={n}&drafter={d}" for d in trace.drafters for n in LENGTHS]
            arm, alone = least({one: seconds(method(one, trace.drafters)) for one in names})
            plain = seconds(method("none", trace.drafters))
            cells = [str(trace.header.temperature), str(len(stages)), name]
            cells += [cell(*ratio(mine, plain), 2), f"{cell(*ratio(mine, alone))} `{arm}`"]
            cells.append(cell(*ratio(taught, alone)))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    start(main)
