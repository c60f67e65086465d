"""Short runs of a drafter in a loop, which the checks of its suite look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.arms import Arm
from ...core.loop import Loop
from ...core.roles import Drafter, Recorder, Target
from ...core.round import Round
from ...core.sampling import Sampling
from ...policies.recorders.bandit import Bandit
from ...policies.recorders.full_information import Grading
from ...policies.recorders.rewards import reward
from ..world import PROMPTS, RULES, at_random, drafting, small_target
from .checks import Suite, takes_target
from .watch import Made, Watch

NAME = "drafter"  # the name of the drafter in the loops of the checks
LENGTHS = (1, 3, 5)
LONG = 40  # tokens of a text that is compared token for token

GREEDY = Sampling(max_new_tokens=LONG, repetition_penalty=1.2)
PLAIN = Sampling(max_new_tokens=24, temperature=1.0)
SHAPED = Sampling(max_new_tokens=24, temperature=0.8, top_k=3, presence_penalty=0.3, frequency_penalty=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a run is made: at most `batch` texts at once, by arms that are drawn each round."""

    sampling: Sampling
    batch: int = 1
    arms: tuple[Arm, ...] = drafting(NAME, LENGTHS)
    graded: bool = False  # full information: the drafter is graded on every round


SETTINGS: Mapping[str, Setting] = {
    "greedy": Setting(GREEDY),
    "greedy batch": Setting(GREEDY, batch=3),
    "graded": Setting(GREEDY, batch=2, graded=True),
    "wide": Setting(GREEDY, batch=2, arms=drafting(NAME, (1, 4), width=2)),
    "rules": Setting(GREEDY, batch=3, arms=drafting(NAME, (8,), rules=RULES)),
    "sampled": Setting(PLAIN, batch=2),
    "sampled rules": Setting(PLAIN, arms=drafting(NAME, (8,), rules=RULES)),
    "shaped": Setting(SHAPED, batch=3, graded=True),
}


@dataclass
class Play:
    """What came of a run: the texts by request, the rounds, and what the drafter was asked and said."""

    watch: Watch
    loop: Loop
    rounds: list[Round] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)

    def add(self, rounds: Sequence[Round]) -> None:
        """Keep some rounds."""
        for round in rounds:
            self.rounds.append(round)
            self.texts.setdefault(round.request, []).extend(round.tokens)


class Plays(Suite):
    """The options of a drafter's suite, and its runs.

    `make` makes a drafter, given the target if it has a parameter `target`. `target` makes the target,
    `prompts` are token ids. `learns` says that the drafter's drafts depend on more than the text before them,
    such as other texts: some checks then do not apply. `samples` is the number of texts that are drawn to see
    their distribution.
    """

    make: Callable[..., Any]
    target: Callable[[], Target] = staticmethod(small_target)
    prompts: Sequence[Sequence[int]] = PROMPTS
    learns: bool = False
    samples: int = 2000

    def fresh(self, target: Target) -> Drafter:
        """A new drafter for this target."""
        make = type(self).make
        drafter: Drafter = make(target=target) if takes_target(make) else make()
        return drafter

    def start(
        self,
        arms: Sequence[Arm],
        *,
        graded: bool = False,
        reverse: bool = False,
        faults: Mapping[str, int] | None = None,
        recorder: Recorder | None = None,
        seed: int = 0,
        compare: bool = True,
    ) -> Play:
        """A loop with a fresh target and a fresh drafter, and nothing in it yet."""
        target = type(self).target()
        watch = Watch(self.fresh(target), reverse, compare, faults or {})
        longest = max(arm.length for arm in arms)
        bandit = Bandit(reward("accepted"), longest, frozenset({"rows"}))
        policy = at_random(arms)
        policy.reads_hints = True
        recorder = recorder or (Grading(tuple(arms)) if graded else bandit)
        loop = Loop(target, {NAME: watch.stand_in()}, policy, recorder, seed=seed, slow_seconds=1e9)
        return Play(watch, loop)

    def run(self, setting: Setting, **options: Any) -> Play:
        """All prompts under one setting."""
        play = self.start(setting.arms, graded=setting.graded, **options)
        play.add(list(play.loop.run(self.prompts, setting.sampling, batch=setting.batch)))
        return play

    def play(self, name: str) -> Play:
        """The run of this name, made once."""
        found: Play = self.once(name, lambda: self.run(SETTINGS[name]))
        return found

    @property
    def plays(self) -> dict[str, Play]:
        """Every run, by name."""
        return {name: self.play(name) for name in SETTINGS}

    @property
    def drafts(self) -> list[Made]:
        """Every draft of every run."""
        return [made for play in self.plays.values() for made in play.watch.made]

    def plain(self, sampling: Sampling, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What the target writes alone."""
        play = self.start((Arm("none", 0),))
        play.add(list(play.loop.run(prompts, sampling)))
        return [play.texts[i] for i in range(len(prompts))]
