"""Short runs of a policy over a small team, which the checks of its suite look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ...core.loop import Loop
from ...core.roles import Drafter
from ...core.sampling import Sampling
from ...drafters.lookup.ngram import NgramDrafter
from ...drafters.together import TogetherDrafter
from ...policies.arms import TOGETHER
from ...policies.catalogue import Method
from ..drafter import SimDrafter
from ..world import PROMPTS, second_order, small_target
from .checks import Suite
from .tape import Tape
from .watch import Watch

NAMES = ("near", "far", "ngram")
FIRST = 987_654_001  # request ids that are no other number


@dataclass
class Game:
    """A run: what the policy was asked and told, and the texts in the order of their requests."""

    tape: Tape
    loop: Loop
    texts: dict[int, list[int]]

    def run(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, batch: int, leave: int = 0
    ) -> None:
        """Decode all prompts; with `leave`, one request is closed early every so many steps."""
        waiting, steps = list(prompts), 0
        while waiting or self.loop.open:
            while waiting and len(self.loop.open) < batch:
                self.loop.add(waiting.pop(0), sampling)
            for round in self.loop.step():
                self.texts.setdefault(round.request - FIRST, []).extend(round.tokens)
            steps += 1
            if leave and steps % leave == 0 and self.loop.open:
                self.loop.close(next(iter(self.loop.open.values())))


class Games(Suite):
    """The options of a policy's suite, and its runs.

    `make` makes a `Method` over the names of drafters, as the function behind an entry point does. `samples`
    is the number of texts that are drawn to see their distribution. `measures` says that the policy also goes
    by what it measures of the machine now, such as its load, which no state file keeps.
    """

    make: Callable[[Sequence[str]], Method]
    measures: bool = False
    samples: int = 1500

    def fresh(self) -> Any:
        """A new policy and its recorder."""
        return type(self).make(list(NAMES))

    def start(self, *, faults: Mapping[str, int] | None = None, faulty: bool = False) -> Game:
        """A loop with a fresh policy; with `faulty` one of the drafters fails after a while."""
        chosen = self.fresh()
        tape = Tape(chosen.policy, faults or {})
        drafters = team(chosen, faulty=faulty)
        loop = Loop(small_target(), drafters, tape.stand_in(), chosen.recorder, slow_seconds=1e9)
        loop._ids = count(FIRST)
        return Game(tape, loop, {})

    @property
    def game(self) -> Game:
        """Many texts: greedy and sampled, in batches, some closed early, with a drafter that fails."""
        found: Game = self.once("game", self._play)
        return found

    def _play(self) -> Game:
        game = self.start(faulty=True)
        prompts = PROMPTS * 2
        game.run(prompts, Sampling(max_new_tokens=40), batch=1)
        game.run(prompts, Sampling(max_new_tokens=30, temperature=1.0), batch=3, leave=9)
        game.run(prompts, Sampling(max_new_tokens=30, temperature=0.7, eos=frozenset({3})), batch=4)
        return game


def team(chosen: Method, *, faulty: bool = False) -> dict[str, Drafter]:
    """The drafters of a run, and the one that asks all others where an arm names it."""
    faults = {"hint": 40, "draft": 20} if faulty else {}
    near, far = SimDrafter(second_order(seed=8)), SimDrafter(second_order(seed=9), sampled=False)
    made: dict[str, Any] = {
        "near": near,
        "far": Watch(far, faults=faults).stand_in(),
        "ngram": NgramDrafter(),
    }
    if any(arm.drafter == TOGETHER for arm in chosen.policy.arms):
        made[TOGETHER] = TogetherDrafter()
    return made
