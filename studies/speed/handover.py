"""What it is worth to hand a draft over to a lookup as soon as the model's tokens make one match.

    python -m studies.speed.handover TRACE [TRACE ...] [--costs NAME,...]

First how often: at places where no lookup of at least so many tokens matches, the share at which one does
after 1, 2, ... greedy tokens of the model, whether these are right, and how many of the lookup's next eight
tokens are. Then the time of "lookup, else model, which stops at a confidence", best in hindsight, over that
of the same rule with hand-over (gate, tail), all best in hindsight for these prompts: an upper bound for a
simple rule, with the middle 95 % over resampled prompts. Last the clairvoyant bound: the optimum without
composite drafts over the optimum in which a lookup that matches so many tokens may add to a model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from draftwise.core.arms import NEVER
from draftwise.core.drafts import Job
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.measure.trace import Costs, Trace, read_costs
from draftwise.measure.trace.oracle import Sets, _Move, _moves, reach
from draftwise.measure.trace.stage import Stage
from studies.common.command import command, listed, start
from studies.common.paired import Real, cell, ratio
from studies.speed.baselines import least

PAGE = "docs/explanation/context.md"
GATES, TAILS, DRAFTED, SURE = (2, 3, 4), (4, 8, 12), (1, 2, 3, 4, 6, 8), (0.0, 0.3, 0.5, 0.7)
LOOKED = (4, 8, 16)
HEAD, TAIL = 8, 12
Rule: TypeAlias = tuple[int, int, int, float, int, int]
"""Shortest match and length of the first lookup; the model's tokens and confidence; gate and tail or 0."""


@dataclass
class Text:
    """One text: what the model drafts at each place, and what a lookup adds after each of its tokens."""

    stage: Stage
    model: str
    drafts: list[list[int]] = field(init=False)
    sure: list[list[float]] = field(init=False)
    right: list[int] = field(init=False)
    matched: list[list[int]] = field(init=False)
    added: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        stage, one = self.stage, self.stage.recording
        lines, text, prompt = stage.lines[self.model], stage.text, one.prompt.tolist()
        self.drafts, self.sure, self.right, self.matched, self.added = [], [], [], [], []
        drafter = NgramDrafter(max=4)
        request = Request(
            id=0,
            tokens=[*prompt],
            prompt_length=len(prompt),
            sampling=Sampling(),
            rng=Random(0),
            uniforms=Random(0),
        )
        drafter.observe(request, prompt)
        for at in range(one.committed):
            first, n = lines.span(at, HEAD)
            tokens = lines.tokens[first : first + n]
            self.drafts.append(tokens)
            self.sure.append(lines.answers.signals[first : first + n, 3].tolist())
            self.right.append(_agree(tokens, text[at:]))
            matched, added = [int(drafter.hint(request))], [0]
            (tail,) = drafter.draft([Job(request, TAIL, (NEVER,))])
            added[0] = _agree(tail.tokens, text[at:])
            for k in range(1, n + 1):
                matched.append(drafter.match_after(request, tokens[:k]))
                (tail,) = drafter.draft_after([Job(request, TAIL, (NEVER,))], [tokens[:k]])
                added.append(_agree(tail.tokens, text[at + k :]) if self.right[at] >= k else 0)
            self.matched.append(matched)
            self.added.append(added)
            drafter.observe(request, text[at : at + 1])

    def seconds(self, costs: Costs, rule: Rule, lookup: str = "ngram") -> float:
        """Seconds by a rule."""
        match, looked, most, sure, gate, tail = rule
        one, mine, its = self.stage.recording, costs.of(self.model), costs.of(lookup)
        span, at, read, total = self.stage.lines[lookup], 0, 0, 0.0
        while at < one.committed:
            room = one.budget - at - 1
            if self.matched[at][0] >= match and room > 0:
                n = span.span(at, min(looked, room))[1]
                first = span.span(at, min(looked, room))[0]
                taken = _agree(span.tokens[first : first + n], self.stage.text[at:])
                total += its.draft(n) + costs.target(1 + n)
            else:
                k, more = self._model(at, min(most, room), sure, gate)
                n = min(tail, room - k) if more else 0
                head = min(self.right[at], k)
                taken = head + (min(n, self.added[at][k]) if head == k else 0)
                total += costs.target(1 + k + n) + (its.draft(n) if n else 0.0)
                if k:
                    total += mine.draft(k) + mine.catch_up * (one.prompt.size + at - read)
                    read = one.prompt.size + at + taken + 1
            at += taken + 1
        return total

    def _model(self, at: int, most: int, sure: float, gate: int) -> tuple[int, bool]:
        """The model's tokens, and whether a lookup takes over after them."""
        for k in range(1, min(most, len(self.drafts[at])) + 1):
            if gate and self.matched[at][k] >= gate:
                return k, True
            if self.sure[at][k - 1] < sure:
                return k, False
        return min(most, len(self.drafts[at])), False

    def optimum(self, costs: Costs, gate: int) -> float:
        """The least seconds where a lookup may add to the model's tokens, once it matches `gate` tokens."""
        stage, one = self.stage, self.stage.recording
        sets = Sets([name for name in stage.lines if costs.of(name).catch_up], costs)
        far = {name: reach(stage, lines) for name, lines in stage.lines.items()}
        end, mine = one.committed, costs.of(self.model)
        values = np.zeros((end + 1, sets.size))
        for at in range(end - 1, -1, -1):
            moves, known = list(_moves(at, end, far, costs)), set()
            for k in range(1, min(self.right[at], len(self.drafts[at])) + 1) if gate else ():
                if self.matched[at][k] < gate:
                    continue
                for n in range(k + 1, min(k + self.added[at][k], end - at - 1, one.budget - at - 1) + 1):
                    if n not in known:  # fewer tokens of the model are cheaper
                        known.add(n)
                        spent = mine.draft(k) + costs.of("ngram").draft(n - k) + costs.target(1 + n)
                        moves.append(_Move(self.model, n, n + 1, spent))
            values[at] = np.min([sets.worth(move, values[at + move.far]) for move in moves], 0)
        return float((values[0] + sets.backlog(one.prompt.size, {})).min())


def _agree(tokens: Sequence[int], text: Sequence[int]) -> int:
    n = 0
    for mine, true in zip(tokens, text, strict=False):
        if mine != true:
            break
        n += 1
    return n


def often(texts: Sequence[Text]) -> None:
    """Print how often a lookup matches again, by gate and tokens of the model."""
    print("| gate | tokens of the model | of places without a match | model right | of 8 right, then |")
    print("|---|---|---|---|---|")
    for gate, k in product(GATES, (1, 2, 4, 8)):
        places = [(t, at) for t in texts for at, m in enumerate(t.matched) if m[0] < gate and len(m) > k]
        new = [(t, at) for t, at in places if t.matched[at][k] >= gate and max(t.matched[at][:k]) < gate]
        good = [min(8, t.added[at][k]) for t, at in new if t.right[at] >= k]
        shares = (
            f"{100 * len(new) / max(1, len(places)):.1f} %",
            f"{100 * len(good) / max(1, len(new)):.0f} %",
        )
        print(f"| {gate} | {k} | {shares[0]} | {shares[1]} | {np.mean(good or [0]):.1f} |", flush=True)


def main() -> None:
    """Print the three tables."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", type=listed, default="measured,llama-8b-eagle,llama-8b-1b")
    asked = parser.parse_args()
    rows = []
    for folder in asked.traces:
        trace = Trace(folder)
        (model,) = (name for name, grades in trace.header.drafters.items() if grades)
        texts = [Text(Stage(one), model) for one in trace]
        print(f"\n{folder.name}, {len(texts)} prompts\n")
        often(texts)
        for name in asked.costs:
            costs = read_costs(str(folder / "costs.json") if name == "measured" else name)
            plain = _tried(texts, costs, product(GATES, LOOKED, DRAFTED, SURE, (0,), (0,)))
            (match, looked, *_), alone = least(plain)
            ours = _tried(texts, costs, product((match,), (looked,), DRAFTED, SURE, GATES, TAILS))
            rule, mine = least(ours)
            bounds = [np.array([t.optimum(costs, gate) for t in texts]) for gate in (0, 1, 2, 3)]
            cells = [folder.name, name, cell(*ratio(mine, alone)), cell(*ratio(_odd(ours), _odd(plain)))]
            cells += [f"{bounds[0].sum() / bound.sum():.3f}" for bound in bounds[1:]]
            print(f"<!-- {folder.name}, {name}: {rule} -->", flush=True)
            rows.append("| " + " | ".join(cells) + " |")
    heads = ["prompts", "costs", "in hindsight", "fitted to the even, on the odd prompts"]
    heads += [f"clairvoyant, match of {gate}" for gate in (1, 2, 3)]
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    print("\n".join(rows))


def _tried(texts: Sequence[Text], costs: Costs, rules: Iterable[Rule]) -> dict[Rule, Real]:
    """Seconds of each text by each rule."""
    return {rule: np.array([text.seconds(costs, rule) for text in texts]) for rule in rules}


def _odd(tried: Mapping[Rule, Real]) -> Real:
    """The odd prompts by the rule that is best on the even ones."""
    return tried[least({rule: seconds[::2] for rule, seconds in tried.items()})[0]][1::2]


if __name__ == "__main__":
    start(main)
