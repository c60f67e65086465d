"""What the papers' orderings are tested on: a trace under a table of costs, with whatever plays there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import numpy as np
from sklearn.linear_model import LogisticRegression

from draftwise.core.arms import Arm, Stop
from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.oracle import exactly, fixed, walk
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.adaptive import AdaEDL
from draftwise.policies.arms import tapout_rules
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.compose import bandit
from draftwise.policies.learners.ucb import UCB1
from studies.common.tables import Real, resampled
from studies.speed.baselines import Text, least, rules

THRESHOLDS = (0.75, 1.0, 1.25)
"""Factors on the threshold of each of TapOut's rules: three arms a rule, around its own."""
APPENDIX = {rule.rule: (rule.threshold,) for rule in tapout_rules()} | {"svip": (0.2, 0.4, 0.6)}
"""TapOut's five rules with the thresholds of its appendix A.2, which has several for SVIP alone."""
PUBLISHED = {
    "max-confidence": (0.4, 0.6, 0.8),
    "svip": (0.3, 0.6, 0.775),
    "adaedl": (0.3, 0.6, 0.9),
} | dict.fromkeys(("svip-difference", "logit-margin"), (0.2,))
"""Thresholds in print: TapOut's own (0.8, 0.6, 0.2, 0.2), Transformers' and Kangaroo's confidence, SVIP's
paper and code, and both ends and the middle of the range that AdaEDL sweeps its first lambda over."""

TOPICS = {"coding": "code", "math_reasoning": "math"}
"""Topics of Spec-Bench's categories that are not named after them."""
UNLEARNED = ("static", "max-confidence", "svip", "logit-margin")


@dataclass(frozen=True)
class Ran:
    """The results of a method in each order on each prompt, shape (orders, prompts)."""

    seconds: Real
    rounds: Real
    accepted: Real
    value: Real

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens a round."""
        return float(self.accepted.sum() / self.rounds.sum())

    @property
    def mean_value(self) -> float:
        """The mean of TapOut's blended reward over all rounds."""
        return float(self.value.sum() / self.rounds.sum())


@dataclass
class World:
    """A trace under one table of costs."""

    trace: Trace
    costs: Costs
    label: str
    orders: int = 5

    def __post_init__(self) -> None:
        self.stages = [ReplayState(recording) for recording in self.trace]
        models = [name for name, grades in self.trace.header.drafters.items() if grades]
        self.models, self.model = models, models[0]
        self.categories = [recording.category for recording in self.trace]
        self.costs = replace(self.costs, others=self.costs.of(self.model))  # all models are of one size
        self.known: dict[tuple[str, tuple[str, ...]], Ran] = {}

    def run(self, name: str, drafters: Sequence[str] = ()) -> Ran:
        """A policy that `made` knows, over some of the drafters."""
        key = name, tuple(drafters or self.trace.drafters)
        if key not in self.known:
            once = name.startswith(UNLEARNED)
            self.known[key] = self.play(lambda: made(name, key[1], self.trace.header.length), once=once)
        return self.known[key]

    def play(self, make: Callable[[], Method], *, once: bool = False) -> Ran:
        """Every order with a seed and a policy of its own, or one for what neither learns nor draws."""
        orders = 1 if once else self.orders
        sums = np.zeros((4, orders, len(self.stages)))
        longest = self.trace.header.length
        for order in range(orders):
            loop = Replay(self.trace, make(), self.costs, seed=order)
            places = list(range(len(self.stages)))
            if order:
                Random(order).shuffle(places)
            for at in places:
                for round in loop.replay(self.stages[at]):
                    value = 0.5 * round.accepted * (1 / longest + 1 / max(round.drafted, 1))
                    sums[:, order, at] += round.seconds.total, 1.0, round.accepted, value
        return Ran(*sums)

    @cached_property
    def fixed(self) -> dict[tuple[str, int], Real]:
        """Seconds of each prompt with each drafter and length."""
        texts = [fixed(stage, self.costs) for stage in self.stages]
        return {arm: np.array([one[arm] for one in texts]) for arm in texts[0]}

    @cached_property
    def otherwise(self) -> tuple[str, Real]:
        """Seconds of each prompt by "lookup, else model", tuned."""
        texts = [Text(stage) for stage in self.stages]
        seconds = {r: np.array([text.otherwise(self.costs, r) for text in texts]) for r in rules(self.trace)}
        return tuned({str(rule): own for rule, own in seconds.items()})

    def best_fixed(self, drafters: Sequence[str], lengths: Sequence[int]) -> tuple[str, Real]:
        """The drafter and length with the least total time in hindsight, with the seconds of each prompt."""
        (drafter, length), seconds = least(
            {arm: seconds for arm, seconds in self.fixed.items() if arm[0] in drafters and arm[1] in lengths}
        )
        return f"{drafter} {length}", seconds

    @cached_property
    def classified(self) -> Classified:
        """A classifier of DISCO's kind for the first model."""
        return Classified(self.stages, self.model)

    def exact(self, drafter: str) -> Real:
        """Seconds of DISCO's oracle, which drafts exactly what will be accepted."""
        return np.array([exactly(stage, self.costs)[drafter] for stage in self.stages])

    def team(self, who: str) -> list[str]:
        """Drafters: `everyone`, `model` (the first), `specialists` (all models but it), or so many models."""
        teams = {"everyone": self.trace.drafters, "model": [self.model], "specialists": self.models[1:]}
        return teams[who] if who in teams else self.models[: int(who)]

    def specialist(self, category: str) -> str:
        """The model that is named after a category's topic, else that for text, else the generalist."""
        topics = TOPICS.get(category, category), "text"
        names = [name for topic in topics for name in self.models if name.endswith(topic)]
        return (*names, self.model)[0]

    def rewards(self, name: str) -> list[Real]:
        """MetaSD's rewards of a model's full drafts at all places of each text, for each N_max.

        Block efficiency, and block divergence if the trace has overlaps, shape (2, places, N_max).
        """
        n, texts = self.trace.header.length, []
        for stage in self.stages:
            drafter, text = stage.drafters[name], np.array(stage.text)
            spans = [
                (at, *drafter.span(at, n)) for at in range(min(len(text) - n, stage.recording.committed))
            ]
            full = np.array([span[:2] for span in spans if span[2] == n], np.intp).reshape(-1, 2)
            at, first = full.T[..., None] + np.arange(n)
            right = (np.array(drafter.tokens)[first] == text[at]).cumprod(1)
            shared = np.array(drafter.overlap or [0.0] * len(drafter.tokens))[first]
            texts.append(np.array([right, shared]).cumsum(2) / np.arange(1, n + 1))
        return texts


class Classified:
    """A classifier of DISCO's kind: whether a drafted token will be accepted, by logistic regression.

    It reads what a trace holds of a token: the two largest probabilities (of DISCO's ten), the entropy, the
    token's own probability, and its positions in the draft and in the text. It learns from all drafts of the
    prompts of one half, up to the first rejected token, and is applied to the other half.
    """

    def __init__(self, stages: Sequence[ReplayState], model: str) -> None:
        self.model, self.stages = model, stages
        self.drafts = [self._read(stage) for stage in stages]
        known = [each[2] for each in self.drafts]
        self.chances: list[Real] = [np.zeros(0)] * len(stages)
        for half in (0, 1):
            there = [i for i in range(len(stages)) if i % 2 != half and known[i].any()]
            features = np.concatenate([self.drafts[i][0][known[i]] for i in there])
            labels = np.concatenate([self.drafts[i][1][known[i]] for i in there])
            mean, spread = features.mean(0), features.std(0) + 1e-9
            fitted = LogisticRegression(max_iter=1000).fit((features - mean) / spread, labels)
            for i in range(half, len(stages), 2):
                rows = (self.drafts[i][0] - mean) / spread
                chances = fitted.predict_proba(rows.reshape(-1, rows.shape[-1]))[:, 1]
                self.chances[i] = chances.reshape(rows.shape[:2])

    def _read(self, stage: ReplayState) -> tuple[Real, Real, Real]:
        """Return features (places, length, 6), whether tokens are right, and where that is known."""
        drafts, n = stage.drafters[self.model].drafts, stage.recording.committed
        lengths = np.arange(drafts.start.shape[1])
        where = np.minimum(drafts.start[:, -1, None] + lengths, max(len(drafts.tokens) - 1, 0))
        inside = lengths < drafts.count[:, -1, None]
        if not len(drafts.tokens):
            empty = np.zeros(inside.shape, bool)
            return np.zeros((*inside.shape, 6)), empty, empty
        text = np.array([*stage.text, *[-1] * len(lengths)])
        right = np.logical_and.accumulate(
            (drafts.tokens[where] == text[np.arange(n)[:, None] + lengths]) & inside, 1
        )
        known = inside & np.pad(right, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
        places = np.broadcast_to(lengths, inside.shape), np.broadcast_to(np.arange(n)[:, None], inside.shape)
        return np.concatenate([drafts.signals[where], np.stack(places, -1)], -1), right, known

    def seconds(self, costs: Costs, threshold: float) -> Real:
        """Return seconds of each prompt if a draft ends with the first token that is less sure."""
        return np.array([self._walk(i, costs, threshold) for i in range(len(self.stages))])

    def _walk(self, i: int, costs: Costs, threshold: float) -> float:
        stage, right = self.stages[i], self.drafts[i][1].sum(1)
        unsure = np.pad(self.chances[i] < threshold, ((0, 0), (0, 1)), constant_values=True).argmax(1) + 1
        counts = stage.drafters[self.model].drafts.count[:, -1]
        sizes = np.minimum(unsure, counts)

        def drafting(at: int) -> tuple[int, int]:
            n = min(int(sizes[at]), stage.recording.budget - at - 1)
            return (n, min(int(right[at]), n)) if n > 0 else (-1, 0)

        return walk(stage, self.model, drafting, costs)

    def says(self, threshold: float, i: int) -> Real:
        """Return where the classifier says yes to the tokens of prompt `i`, (places, length)."""
        return np.array(self.chances[i] > threshold, float)

    def scores(self, says: Callable[[int], Real]) -> tuple[float, Real]:
        """Return F1 of what is said of each prompt's tokens, (places, length), and of resampled prompts."""
        counts = np.array([self._counts(i, says(i)) for i in range(len(self.stages))], float)
        right, wrong = counts.sum(0)
        draws = resampled(len(counts)) @ counts
        return float(2 * right / (2 * right + wrong)), 2 * draws[:, 0] / (2 * draws[:, 0] + draws[:, 1])

    def _counts(self, i: int, yes: Real) -> tuple[int, int]:
        _, right, known = self.drafts[i]
        return int((yes * right * known).sum()), int(((yes != right) * known).sum())


def tuned(tried: Mapping[str, Real]) -> tuple[str, Real]:
    """Tune on the prompts of even number for the odd ones, and the reverse: both choices, and the times.

    Times have shape (prompts,) or (orders, prompts).
    """
    result, names = np.array(next(iter(tried.values()))), []
    for half in (0, 1):
        name, _ = least({name: seconds[..., 1 - half :: 2] for name, seconds in tried.items()})
        result[..., half::2] = tried[name][..., half::2]
        names.append(name)
    return " and ".join(dict.fromkeys(names)), result


def made(name: str, drafters: Sequence[str], longest: int) -> Method:
    """A policy by its name; `thresholds`, `appendix` and `published` are TapOut's UCB1 over more arms.

    They have several thresholds of a rule, and each AdaEDL moves, by its own rounds.
    """
    around = {rule.rule: [x * rule.threshold for x in THRESHOLDS] for rule in tapout_rules()}
    sets: dict[str, Mapping[str, Sequence[float]]]
    sets = {"thresholds": around, "appendix": APPENDIX, "published": PUBLISHED}
    if name not in sets:
        return method(name, drafters)
    stops = [Stop(rule, x) for rule, several in sets[name].items() for x in several]
    arms = tuple(Arm(drafters[0], longest, stop=stop) for stop in stops)
    moving = tuple(AdaEDL(start=s.threshold, form="tapout") if s.rule == "adaedl" else None for s in stops)
    return bandit(arms, UCB1, reward="blended", per_query=False, moving=moving)
