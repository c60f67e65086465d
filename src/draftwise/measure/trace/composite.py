"""The minimum time for a text if one draft may have parts of several drafters.

The same shortest path as in `oracle`, with one more number in its state: how many tokens the draft of this
round has so far. From each state one may end the draft, which costs the target pass, or add as many tokens of
any drafter as match the text. So every chain of drafters is covered: lookup, then model; model, then lookup;
and any longer one.
"""

from __future__ import annotations

import numpy as np

from .costs import Costs
from .oracle import Real, Sets, reach
from .stage import Stage


def best_composite(stage: Stage, costs: Costs) -> float:
    """The minimum seconds for one text over all composite drafts of at most the trace's length.

    A part that continues a draft costs what it costs alone; a drafter that must catch up reads what the parts
    before it drafted, at its price per token of the text.

    Raises:
        UserError: more than 12 drafters have costs for catching up.
    """
    lines, end = stage.lines, stage.recording.committed
    longest = max((one.answers.start.shape[1] for one in lines.values()), default=0)
    sets = Sets([name for name in lines if costs.of(name).catch_up], costs)
    far = {name: reach(stage, one) for name, one in lines.items()}
    passes = np.array([costs.target(1 + k) for k in range(longest + 1)])
    values: Real = np.full((end + 1, longest + 1, sets.size), np.inf)
    values[end, 0] = 0.0
    for at in range(end - 1, -1, -1):
        here = passes[:, None] + sets.catch_up + values[at + 1, 0]  # the draft ends here
        for name, (most, least) in far.items():
            mine = costs.of(name)
            for n in range(1, min(most[at], end - at - 1, longest) + 1):
                worth = mine.draft(n) + sets.passed(name, n, values[at + n, n:])
                here[: longest + 1 - n] = np.minimum(here[: longest + 1 - n], worth)
            if mine.catch_up and (wrong := least[at]) >= 0:  # so that the drafter catches up
                useless = mine.draft(wrong) + costs.target(1 + wrong)
                here[0] = np.minimum(here[0], useless + sets.passed(name, 1, values[at + 1, :1])[0])
        values[at] = here
    return float((values[0, 0] + sets.backlog(stage.recording.prompt.size, {})).min())
