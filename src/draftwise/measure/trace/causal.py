"""The best causal rule in hindsight: a drafter and a threshold on its calibrated acceptance probability.

It is what tuning would find with access to the test texts. Each decision uses only what a policy knows before
the round; only the drafter and the threshold are fitted to the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from .costs import Costs, rising
from .files import FIELDS
from .fixed import walk
from .oracle import confirmed
from .stage import Lines, Stage

Real = NDArray[np.floating[Any]]
Whole = NDArray[np.int64]
THRESHOLDS = (0.0, *(float(x) for x in np.geomspace(0.02, 0.9, 16)))
LENGTHS = (1, 2, 4, 8, 16)
BINS = 200  # number of confidence bins in the calibration
CHOSEN = FIELDS.index("chosen")


@dataclass(frozen=True, slots=True)
class Rule:
    """Draft up to `length` tokens while the probability that all are accepted is at least `threshold`.

    `seconds` are those of each text.
    """

    drafter: str
    length: int
    threshold: float
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        """Seconds of all texts together."""
        return sum(self.seconds)


def causal(stages: Sequence[Stage], costs: Costs) -> Rule:
    """The rule with the least total time for these texts; plain decoding is one of the candidates.

    A drafter's confidence is calibrated on the tokens of these texts (isotonic regression of acceptance). A
    model keeps the token whose probability falls below the threshold, since it has been computed; a lookup,
    whose tokens cost almost nothing, does not.

    Raises:
        UserError: a text was sampled, so that acceptance would be random.
    """
    if any(stage.recording.probs.size for stage in stages):
        raise UserError("the trace's text was drawn: record it at --temperature 0 for a rule in hindsight")
    best = Rule("none", 0, 1.0, tuple(s.recording.committed * costs.target(1) for s in stages))
    for name in stages[0].lines:
        lines = [stage.lines[name] for stage in stages]
        right = [confirmed(stage, one) for stage, one in zip(stages, lines, strict=True)]
        said = [_confidences(one) for one in lines]
        curve = _calibrated(said, [known[-1] for known in right])
        keeps = int(bool(costs.of(name).step * 100 > costs.target(1)))
        joint = [np.cumprod(curve[_bin(s)], 1) * (s >= 0.0) for s in said]
        for length, threshold in product(LENGTHS, THRESHOLDS):
            drafted = partial(_drafted, length, threshold, keeps)
            counts = [drafted(*pair) for pair in zip(stages, joint, strict=True)]
            seconds = tuple(map(partial(_seconds, name, costs), stages, counts, right))
            best = min(best, Rule(name, length, threshold, seconds), key=lambda rule: rule.total)
    return best


def _confidences(lines: Lines) -> Real:
    """The drafter's probability of each token of its longest draft at each position; -1 beyond its end."""
    a = lines.answers
    length = a.start.shape[1]
    steps = np.arange(length)
    if not len(a.tokens):
        return np.full((len(a.start), length), -1.0)
    where = np.minimum(a.start[:, -1, None] + steps, len(a.tokens) - 1)
    return np.where(steps < a.count[:, -1, None], a.signals[where, CHOSEN], -1.0)


def _calibrated(said: Sequence[Real], right: Sequence[Whole]) -> Real:
    """The acceptance probability by confidence bin: isotonic over all tested tokens."""
    tested, accepted = np.zeros(BINS + 1), np.zeros(BINS + 1)
    for one, n in zip(said, right, strict=True):
        steps = np.arange(one.shape[1])
        judged = (one >= 0.0) & (steps <= n[:, None])
        np.add.at(tested, _bin(one[judged]), 1.0)
        np.add.at(accepted, _bin(one[judged]), (steps < n[:, None])[judged])
    chances = [a / t for a, t in zip(accepted, tested, strict=True) if t]
    weights = [int(t) for t in tested if t]
    spread = rising([c for c, n in zip(chances, weights, strict=True) for _ in range(n)])
    ends = np.cumsum(weights) - 1
    return (
        np.interp(np.arange(BINS + 1), np.flatnonzero(tested), np.array(spread)[ends])
        if ends.size
        else tested
    )


def _bin(confidence: Real) -> Whole:
    return (np.clip(confidence, 0.0, 1.0) * BINS).astype(np.int64)


def _drafted(length: int, threshold: float, keeps: int, stage: Stage, chances: Real) -> Whole:
    """How many tokens the rule drafts at each position."""
    most = np.minimum((chances > 0.0).sum(1), length)
    room = stage.recording.budget - np.arange(len(chances)) - 1
    wanted: Whole = (chances >= max(threshold, 1e-12)).sum(1) + keeps
    drafted: Whole = np.minimum(np.minimum(wanted, most), np.maximum(room, 0))
    return drafted


def _seconds(name: str, costs: Costs, stage: Stage, drafted: Whole, right: Whole) -> float:
    accepted = np.minimum(drafted, right[-1])
    pairs = [(d or -1, a) for d, a in zip(drafted.tolist(), accepted.tolist(), strict=True)]
    return walk(stage, name, pairs.__getitem__, costs)
