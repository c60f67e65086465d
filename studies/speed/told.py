"""What `auto` would gain if it knew more before the first token of a text: priced replays.

    python -m studies.speed.told TRACE [TRACE ...] [--costs NAME,...]

`length`: how long this answer becomes, over which the reading of a model is paid off. `prompt`: how far its
lookups were right on the last tokens of the prompt, as the first counts of the text's own. The table has the
time of `auto` over that of `auto` told so, above 1 it gains: the mean of the logarithms over several orders
of the prompts, the same for both, with its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from draftwise.core.arms import NEVER, Context, Decision
from draftwise.core.drafts import Job
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.measure.trace import Replay, Trace, read_costs
from draftwise.measure.trace.files import Recording
from draftwise.measure.trace.stage import Stage
from draftwise.policies.auto.parts import LENGTHS, match_length
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.catalogue import Method
from draftwise.policies.catalogue.auto import team
from studies.common.command import command, listed, start
from studies.common.paired import Real
from studies.speed.orders import table
from studies.speed.without import never_stop

PAGE = "docs/explanation/auto-tried.md"
LAST, LONGEST = 64, 8  # tokens of a prompt that lookups are tested on, and of their drafts there
LOOKUPS: Mapping[str, Callable[[], NgramDrafter | SuffixDrafter]] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}
Tests: TypeAlias = Mapping[str, Sequence[tuple[int, tuple[float, ...]]]]
"""By lookup: the context of each of its drafts, and how far that was right."""


def on_prompt(
    prompt: Sequence[int], drafter: NgramDrafter | SuffixDrafter
) -> list[tuple[int, tuple[float, ...]]]:
    """A lookup's drafts at the last tokens of a prompt, compared with what follows there."""
    first, found = max(1, len(prompt) - LAST), []
    request = Request(0, [*prompt[:first]], first, Sampling(), Random(0), Random(0))
    drafter.observe(request, request.tokens)
    for at in range(first, len(prompt)):
        if hint := drafter.hint(request):
            (draft,) = drafter.draft([Job(request, LONGEST, (NEVER,))])
            right = 0
            for token, follows in zip(draft.tokens, prompt[at:], strict=False):
                if token != follows:
                    break
                right += 1
            missed = right < min(len(draft.tokens), len(prompt) - at)
            found.append((match_length(hint), (1.0,) * right + ((0.0,) if missed else ())))
        request.tokens.append(prompt[at])
        drafter.observe(request, prompt[at : at + 1])
    return found


@dataclass(slots=True)
class Told(AutoPolicy):
    """`auto`, told the length of the answer or how its lookups did on the prompt; `None` leaves it out."""

    length: float | None = None
    shown: Tests = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Before the first choice of a text, take in what is told."""
        if context.request not in self.places:
            if self.length is not None:
                self.answer = self.length
            self._count_tests(context.request)
        return AutoPolicy.choose(self, context, rng)

    def _count_tests(self, request: int) -> None:
        """As tests of this text alone: what is known of all texts stays as it is."""
        for name, tests in self.shown.items():
            skill = self.skills[self.drafters.index(name)]
            for context, accepts in tests:
                tested, accepted = [[*row] for row in (skill.tested[context], skill.accepted[context])]
                skill.learn(request, context, accepts)
                skill.tested[context], skill.accepted[context] = tested, accepted
            skill.sums, skill.leaned = [], []
            skill.curves.pop(request, None)


Telling: TypeAlias = Callable[[Told, Recording, Tests], None]


def _length(policy: Told, one: Recording, tests: Tests) -> None:
    policy.length = float(one.committed)


def _prompt(policy: Told, one: Recording, tests: Tests) -> None:
    policy.shown = tests


def _nothing(policy: Told, one: Recording, tests: Tests) -> None:
    pass


TOLD: Mapping[str, Telling] = {"length": _length, "prompt": _prompt}


def seconds(trace: Trace, costs: str, tell: Telling, orders: int, most: int) -> Real:
    """Seconds of so many prompts in each order."""
    prices = read_costs(str(trace.folder / "costs.json") if costs == "measured" else costs)
    stages = [Stage(one) for one in trace]
    known = [
        {
            name: on_prompt(stage.recording.prompt.tolist(), made())
            for name, made in LOOKUPS.items()
            if name in stage.lines
        }
        for stage in stages
    ]
    found = []
    for seed in range(orders):
        policy = Told(*team(trace.team("auto"), LENGTHS))
        if trace.header.temperature > 0.0:  # a trace of drawn texts does not hold where a model would stop
            policy.stopping = never_stop
        replay, total = Replay(trace, Method(policy, AutoRecorder(policy)), prices), 0.0
        order = list(range(len(stages)))
        Random(seed).shuffle(order)
        for at in order[:most]:
            tell(policy, stages[at].recording, known[at])
            total += sum(round.seconds.total for round in replay.play(stages[at]))
        found.append(total)
    return np.array(found)


def main() -> None:
    """Print a table for each thing that is told."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", type=listed, default=["measured", "llama-8b-1b"])
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=160, help="prompts of an order at most")
    asked = parser.parse_args()
    rows: dict[str, dict[str, Real]] = {name: {} for name in TOLD}
    for folder in asked.traces:
        trace = Trace(folder)
        for costs in asked.costs:
            plain = seconds(trace, costs, _nothing, asked.orders, asked.prompts)
            for name, tell in TOLD.items():
                its = seconds(trace, costs, tell, asked.orders, asked.prompts)
                rows[name][f"{folder.name} | {costs}"] = np.log(plain / its)
    for name, found in rows.items():
        table(f"told: {name}", found)


if __name__ == "__main__":
    start(main)
