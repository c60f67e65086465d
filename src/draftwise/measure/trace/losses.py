"""The time that the best decisions would have saved, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core.round import Round
from ...registry import parse
from ...registry.cascades import parts_of, takes_over
from .costs import Costs
from .oracle import Remaining, confirmed
from .replay import Replay
from .stage import Stage

KINDS = ("no draft", "wrong drafter", "stopped early", "drafted too far", "watching")


def losses(loop: Replay, stage: Stage) -> tuple[float, dict[str, float]]:
    """Seconds of one text, and the seconds lost against the oracle, by kind.

    The loss of a round is its time plus the least remaining time after it, minus the least remaining time
    before it: losses add up to the total time minus the optimum. The part of a loss that another length of
    the same drafter would have saved is "stopped early" or "drafted too far"; the rest is "wrong drafter", or
    "no draft". A cascade counts as the drafter that begins its drafts, and may gain more than the oracle,
    which has none. "watching" is the time of grading and learning, less what it saved in catching up.
    """
    here = _Here(stage, loop.costs)
    total, found = 0.0, dict.fromkeys(KINDS, 0.0)
    at, read = 0, dict[str, int]()
    for round in loop.play(stage):
        total += round.seconds.total
        end, then = at + len(round.tokens), dict(read)
        if round.drafted and (name := _who(round)) in loop.pool.behind:
            then[name] = here.prompt + end
        after = dict(loop.pool.read)
        left = here.left(end, then)
        found["watching"] += round.seconds.grade + round.seconds.learn + here.left(end, after) - left
        mine = round.seconds.draft + round.seconds.verify + left
        _blame(found, here, round, at, read, mine)
        at, read = end, after
    return total, found


def _blame(
    found: dict[str, float], here: _Here, round: Round, at: int, read: Mapping[str, int], mine: float
) -> None:
    if not round.drafted:
        found["no draft"] += mine - here.left(at, read)
        return
    least, length = min(here.lengths(_who(round), at, read), default=(mine, round.drafted))
    least = min(least, mine)
    found["wrong drafter"] += least - here.left(at, read)
    found["stopped early" if length > round.drafted else "drafted too far"] += mine - least


def _who(round: Round) -> str:
    """The drafter that began the draft of a round."""
    spec = parse(round.arm.drafter)
    return parts_of(spec)[0] if takes_over(spec) else round.arm.drafter


class _Here:
    """The time of every choice at a position of one text, to the end of the text."""

    def __init__(self, stage: Stage, costs: Costs) -> None:
        self.stage, self.costs, self.left = stage, costs, Remaining(stage, costs)
        self.prompt = stage.recording.prompt.size
        self.right = {name: confirmed(stage, lines).tolist() for name, lines in stage.lines.items()}

    def lengths(self, name: str, at: int, read: Mapping[str, int]) -> Iterator[tuple[float, int]]:
        """Seconds to the end with a draft of `name`, for each possible length, and its number of tokens."""
        mine, one = self.costs.of(name), self.stage.recording
        late = mine.catch_up * (self.prompt + at - read.get(name, 0))
        for asked in range(1, min(len(self.right[name]), one.budget - at - 1) + 1):
            n = self.stage.lines[name].span(at, asked)[1]
            end = min(at + self.right[name][asked - 1][at] + 1, one.committed)
            then = {**read, name: self.prompt + end}
            yield mine.draft(n) + late + self.costs.target(1 + n) + self.left(end, then), n
