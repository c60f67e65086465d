"""A scripted world: texts are written in advance, drafters are right where a table says, seconds are counted.

Nothing is computed but what a round is made of, so that thousands of rounds take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from draftwise.core import drafter_pool as team_module
from draftwise.core import loop as loop_module
from draftwise.core.drafts import Draft, Job, Signals, Verdict
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Grade
from draftwise.core.passes import TargetInfo
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.policies.catalogue import Method, method

V = 1000
Right = Callable[[int, int, Random], float]
"""Of a text and a position in it: the chance that the drafter knows the token there."""


def always(chance: float) -> Right:
    """The same chance everywhere."""
    return lambda text, at, rng: chance


@dataclass
class Clock:
    """Seconds since the beginning."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Prices:
    """Seconds of a pass by its tokens; of a draft, its start and each token; of a prefilled token.

    By default a pass is bound by memory up to 64 tokens and by arithmetic beyond, so that in a batch of 32 no
    draft is free.
    """

    target: Callable[[int], float] = lambda tokens: 10e-3 * max(1.0, tokens / 64)
    start: float = 0.3e-3
    token: float = 0.7e-3
    reading: float = 0.02e-3


class Text:
    """The target's view of one draft: its own next tokens are the text's."""

    def __init__(self, text: Sequence[int], at: int) -> None:
        self.text, self.at = text, at

    def choice(self, node: int) -> int:
        return self.text[self.at + node + 1]

    def chance(self, node: int, token: int) -> float:
        return float(self.choice(node) == token)


@dataclass
class Target:
    """Writes the scripted texts, by the request's first token; rows may be `padded` to the longest."""

    texts: Sequence[Sequence[int]]
    clock: Clock
    prices: Prices
    padded: bool = False
    vocab_size: int = V
    max_length: int = 1 << 30
    info: TargetInfo = field(default_factory=TargetInfo)

    def __post_init__(self) -> None:
        self.info.is_padded = self.padded

    def open(self, request: Request) -> None:
        pass

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Any]:
        widths = [1 + len(draft.tokens) for _, draft in batch]
        self.clock.now += self.prices.target(len(widths) * max(widths) if self.padded else sum(widths))
        return [Text(self.texts[request.tokens[0]], request.position) for request, _ in batch]

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        pass

    def close(self, request: Request) -> None:
        pass


@dataclass
class Model:
    """Drafts the text's own token where it knows it, and is somewhat surer there.

    With `branches` above 1 it drafts a tree: every token has siblings, all of them wrong.
    """

    texts: Sequence[Sequence[int]]
    known: Sequence[Sequence[bool]]
    clock: Clock
    prices: Prices
    read: dict[int, int] = field(default_factory=dict)
    fails_at: float = float("inf")
    branches: int = 1

    def hint(self, request: Request) -> float:
        return 1.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        pass

    def close(self, request: Request) -> None:
        pass

    def _read(self, request: Request) -> None:
        self.clock.now += self.prices.reading * (len(request.tokens) - self.read.get(request.id, 0))
        self.read[request.id] = len(request.tokens)

    def _guess(self, request: Request, at: int) -> tuple[int, Signals]:
        text = request.tokens[0]
        sure, right = ((at * 7919 + text) % 10) / 10, self.known[text][at]
        p = 0.05 + 0.9 * (0.5 * right + 0.5 * sure)
        return self.texts[text][at] if right else V - 1, Signals(p, 1 - p, 0.0, p)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        if self.clock.now >= self.fails_at:
            raise RuntimeError("it died")
        made = []
        for job in jobs:
            self._read(job.request)
            made.append(self._draft(job))
        self.clock.now += self.prices.start + self.prices.token * max(len(d.tokens) for d in made)
        return made

    def _draft(self, job: Job) -> Draft:
        guesses = self._guesses(job)
        tokens = [token for token, _ in guesses]
        if self.branches > 1:
            return self._tree(job.request, tokens)
        signals = [signal for _, signal in guesses] if job.stops[0].rule == "gain" else ()
        return Draft.chain(tokens, signals=signals)

    def _guesses(self, job: Job) -> list[tuple[int, Signals]]:
        """As many as the stop rule allows."""
        rule, joint, made = job.stops[0], 1.0, list[tuple[int, Signals]]()
        for k in range(job.length):
            made.append(self._guess(job.request, job.request.position + k))
            if rule.rule == "gain":
                joint *= rule.scorer.score(made[-1][1])
                if joint < rule.threshold:
                    break
        return made

    def _tree(self, request: Request, tokens: Sequence[int]) -> Draft:
        nodes, parents = list(tokens), list(range(-1, len(tokens) - 1))
        for k in range(len(tokens)):
            true = self.texts[request.tokens[0]][request.position + k]
            nodes += [(true + j) % (V - 1) for j in range(1, self.branches)]
            parents += [k - 1] * (self.branches - 1)
        return Draft(tuple(nodes), tuple(parents))

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        self.clock.now += self.prices.start + self.prices.token
        found = []
        for job in jobs:
            self._read(job.request)
            first = job.start - job.request.prompt_length
            count = len(job.request.tokens) - job.start
            found.append([self._grade(job.request, first + k) for k in range(count)])
        return found

    def _grade(self, request: Request, at: int) -> Grade:
        hit = float(self.known[request.tokens[0]][at])
        return Grade(hit, hit, self._guess(request, at)[1])


@dataclass
class Stage:
    """Texts, drafters and prices; runs policies and counts seconds, the same texts for each."""

    monkeypatch: pytest.MonkeyPatch
    models: Mapping[str, Right]
    prices: Prices = field(default_factory=Prices)
    own: Mapping[str, Prices] = field(default_factory=dict)  # of drafters that have prices of their own
    widths: Mapping[str, int] = field(default_factory=dict)  # of drafters of trees
    lookups: Sequence[str] = ()  # beside the models
    kinds: int = V - 1  # of tokens: the fewer, the more often a lookup is right
    texts: int = 32
    tokens: int = 200
    prompt: int = 60
    seed: int = 0
    padded: bool = False
    clock: Clock = field(init=False, default_factory=Clock)

    def run(
        self, policy: str | Method, *, batch: int = 1, **settings: Any
    ) -> tuple[float, Loop, list[Round]]:
        """Seconds of all texts, the loop, and the rounds; `before(loop)` is called before each step."""
        self.clock.now, texts = 0.0, self._texts()
        self.monkeypatch.setattr(loop_module, "perf_counter", self.clock)
        self.monkeypatch.setattr(team_module, "perf_counter", self.clock)
        team = {name: self._model(name, right, texts) for name, right in self.models.items()}
        for name, width in self.widths.items():
            team[name].branches = width
        lookups = {name: NgramDrafter(max=2 + i) for i, name in enumerate(self.lookups)}
        made = method(policy, [*team, *lookups]) if isinstance(policy, str) else policy
        loop = Loop(self._target(texts), {**team, **lookups}, made.policy, made.recorder)
        return self.clock.now, loop, list(self._rounds(loop, batch, **settings))

    def seconds(self, policy: str | Method, *, batch: int = 1) -> float:
        """Seconds of all texts together."""
        self.run(policy, batch=batch)
        return self.clock.now

    def _target(self, texts: Sequence[Sequence[int]]) -> Target:
        return Target(texts, self.clock, self.prices, self.padded)

    def _model(self, name: str, right: Right, texts: Sequence[Sequence[int]]) -> Model:
        return Model(texts, self._known(name, right), self.clock, self.own.get(name, self.prices))

    def _rounds(
        self, loop: Loop, batch: int, before: Callable[[Loop], None] | None = None
    ) -> Iterator[Round]:
        waiting = [[i] + [0] * (self.prompt - 1) for i in range(self.texts)]
        while waiting or loop.open:
            while waiting and len(loop.open) < batch:
                loop.add(waiting.pop(0), self._sampling())
            if before:
                before(loop)
            yield from loop.step()

    def _sampling(self) -> Sampling:
        return Sampling(max_new_tokens=self.tokens)

    def _texts(self) -> list[list[int]]:
        rng = Random(f"text {self.seed}")
        return [[rng.randrange(self.kinds) for _ in range(self.tokens + 20)] for _ in range(self.texts)]

    def _known(self, name: str, right: Right) -> list[list[bool]]:
        rng = Random(f"{name} {self.seed}")
        return [
            [rng.random() < right(text, at, rng) for at in range(self.tokens + 20)]
            for text in range(self.texts)
        ]
