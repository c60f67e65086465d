"""The policies of the catalogue as contenders: one target and one set of models, loaded once for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import isnan
from random import Random
from time import perf_counter
from typing import Any, cast

from ...build import (
    build_drafters,
    build_target,
    compile_target,
    complete,
    composed,
    decide,
    eos_ids,
)
from ...core.arms import Decision
from ...core.loop import Loop
from ...core.outcomes import Feedback, Outcome
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import Drafter, Grader, Graders, LateRecorder, Recorder, RoundRecord, Target
from ...core.round import Round, Stats
from ...core.sampling import Sampling
from ...core.stops import needs
from ...drafters.names import check_drafters
from ...errors import UserError
from ...generation.prompts import encode
from ...specs import DrafterSpec, LoadOptions, parse_drafter, parse_drafters, parse_policy, parse_target
from ...state.learned import dump, load
from ..results import BASELINE, Row, arm_values
from .contender import Contender, Generation, Item, Text


@dataclass(frozen=True, slots=True)
class Models:
    """A loaded target, models and heads that draft by name, and the means to build others for each method.

    A lookup may remember earlier texts, so sharing one would let a method copy another's text.
    """

    target: Target
    model: Any
    tokenizer: Any
    eos: frozenset[int]
    drafters: tuple[DrafterSpec, ...]
    shared: dict[str, Drafter]
    chains_only: str
    build: Callable[[Sequence[DrafterSpec]], dict[str, Drafter]]

    @classmethod
    def load(cls, target: str, drafters: Sequence[str], **options: Any) -> Models:
        """Load everything by name; `options` are those of `LoadOptions`."""
        from ...drafters.neural.heads import HeadDrafter

        load = LoadOptions(**options)
        specs = parse_drafters(drafters, load)
        check_drafters(specs)
        spec = parse_target(target, load)
        built, model, tokenizer = build_target(spec)

        def build(some: Sequence[DrafterSpec]) -> dict[str, Drafter]:
            return build_drafters(some, built, tokenizer, target)

        everyone = build(specs)
        compile_target(spec, built)
        heads = {name for name, drafter in everyone.items() if isinstance(drafter, HeadDrafter)}
        shared = {one.text: everyone[one.text] for one in specs if one.is_model or one.text in heads}
        eos = eos_ids(model, tokenizer)
        return cls(built, model, tokenizer, eos, specs, shared, spec.chains_only, build)

    def team(self) -> dict[str, Drafter]:
        """The drafters for one method, in the requested order."""
        own = [spec for spec in self.drafters if spec.text not in self.shared]
        everyone = {name: _as_own(drafter) for name, drafter in self.shared.items()} | self.build(own)
        return {spec.text: everyone[spec.text] for spec in self.drafters}

    def layouts(self) -> dict[str, str]:
        """Return how many layers of each model are packed."""
        from ...models.weights.packed import layouts

        return layouts({"target": self.target, **self.shared})

    def compiled(self) -> dict[str, str]:
        """Return how the passes of each model are run."""
        from ...models.runner.executors.compile import describe_passes

        return describe_passes({"target": self.target, **self.shared})

    def encode(self, text: str, *, raw: bool) -> list[int]:
        return encode(self.tokenizer, text, vocab_size=self.target.vocab_size, chat=not raw)


def _as_own(drafter: Drafter) -> Drafter:
    """Return a drafter for one method: it shares a head's weights and passes, and not what that learns."""
    own: Any = drafter
    if hasattr(own, "drift"):
        own = copy(own)
        own.drift = type(own.drift)()
    return cast(Drafter, own)


class Watch:
    """A recorder that also records signals of the draft positions, for plots."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.reads = recorder, recorder.reads
        self.records: dict[int, dict[int, tuple[Decision, Outcome]]] = defaultdict(dict)
        if isinstance(recorder, LateRecorder):  # which works on beside the next pass, watched or not
            self.ask = partial(self._pass_on, recorder.ask)

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        feedback: Sequence[Feedback] = self._pass_on(self.recorder.add, batch, graders)
        return feedback

    def _pass_on(self, call: Callable[..., Any], batch: Sequence[RoundRecord], graders: Graders) -> Any:
        for records in batch:
            self.records[records.request.id][records.request.position] = records.decision, records.outcome
        return call(batch, graders)

    def close(self, request: Request) -> Sequence[Feedback]:
        return self.recorder.close(request)

    def take(self, request: int, rounds: Sequence[Round]) -> list[Row]:
        """Return the signals of a request, one record for each round; empty where the policy left one out."""
        records, written = self.records.pop(request, {}), accumulate(len(round.tokens) for round in rounds)
        return [_signals(*records[at]) if at in records else {} for at in written]


def _signals(decision: Decision, outcome: Outcome) -> Row:
    """Return the entropies in nats, if a rule of the round read them, and the mean 1 - TV of a draft."""
    row: Row = {}
    if outcome.signals and "entropy" in needs(decision.stops):
        row["entropy"] = [round(s.entropy, 4) for s in outcome.signals]
    if not isnan(outcome.overlap):
        row["overlap"] = round(outcome.overlap, 4)
    return row


class Policy(Contender):
    """One policy of the catalogue with its own loop."""

    engine = "draftwise"

    def __init__(self, name: str, models: Models, *, seed: int = 0) -> None:
        self.name, self.models, self.seed = name, models, seed
        self.loop = self._build()

    def warm(self, items: Sequence[Item], generation: Generation) -> None:
        """Decode in a separate loop, whose policy is discarded."""
        _run(self._build(), items, generation, self.models.eos)

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        """Decode one batch."""
        texts = _run(self.loop, items, generation, self.models.eos)
        faults = [r.fault for text in texts for r in text.log if r.fault]
        if faults:
            raise UserError(f"{self.name} failed: {faults[0]}")
        return texts

    def begin(self, texts: Sequence[tuple[Item, Sequence[int]]]) -> None:
        """Take new lookups, which may remember texts, and show them these."""
        old, own = self.loop, self.loop.pool.drafters
        lookups = [d for d in self.models.drafters if d.text in own and not isinstance(own[d.text], Grader)]
        new = self.models.build(lookups)
        for number, (item, tokens) in enumerate(texts):
            request = Request(-1 - number, [*item.ids], len(item.ids), Sampling(), Random(0), Random(0))
            for lookup in new.values():
                lookup.observe(request, item.ids)
                lookup.observe(request, tokens)
                lookup.close(request)
        self.loop = Loop(old.target, own | new, old.policy, old.recorder, seed=self.seed)
        self.loop.rng.setstate(old.rng.getstate())

    def memory(self) -> Any:
        """Return what the policy has learned, and the state of its random generator."""
        version, words, gauss = self.loop.rng.getstate()
        return {"policy": dump(self.loop.policy), "rng": [version, list(words), gauss]}

    def restore(self, memory: Any) -> None:
        load(self.loop.policy, memory["policy"])
        version, words, gauss = memory["rng"]
        self.loop.rng.setstate((version, tuple(words), gauss))

    def _build(self) -> Loop:
        policy = parse_policy(self.name)
        models, drafts = self.models, self.name != BASELINE  # plain decoding shows its texts to no drafter
        team = composed(models.team() if drafts else {}, policy)
        specs = {name: parse_drafter(name) for name in team}
        method = decide(policy, team, models.tokenizer, specs, chains_only=models.chains_only)
        return Loop(
            models.target, complete(team, method), method.policy, Watch(method.recorder), seed=self.seed
        )


def _run(loop: Loop, items: Sequence[Item], generation: Generation, eos: frozenset[int]) -> list[Text]:
    rounds: dict[int, list[Round]] = defaultdict(list)
    start = perf_counter()
    settings = Sampling(max_new_tokens=generation.max_new_tokens, temperature=generation.temperature, eos=eos)
    requests = [loop.add(item.ids, replace(settings, seed=generation.seed_of(item))) for item in items]
    ttft_s: float | None = None
    while loop.open:
        for round in unfailed(loop.step()):
            rounds[round.request].append(round)
        if ttft_s is None and rounds:
            ttft_s = perf_counter() - start
    seconds = perf_counter() - start
    charged = sum(r.seconds.total for log in rounds.values() for r in log)
    watch, values = cast(Watch, loop.recorder), arm_values(loop.policy)
    texts = []
    for request in requests:
        log = rounds[request.id]
        signals = watch.take(request.id, log)
        if signals and values:
            signals[-1]["values"] = values
        text = _text(log, signals, seconds / charged)
        texts.append(replace(text, ttft_s=ttft_s) if len(items) == 1 else text)
    return texts


def _text(rounds: Sequence[Round], signals: Sequence[Row], scale: float) -> Text:
    """The batch's wall time is divided among prompts in proportion to the times of their rounds."""
    stats = Stats.of(rounds)
    return Text(
        tuple(t for r in rounds for t in r.tokens),
        stats.seconds * scale,
        stats.rounds,
        stats.drafted,
        stats.accepted,
        first_tokens=len(rounds[0].tokens),
        seconds_by_phase=stats.seconds_by_phase,
        pulls=stats.pulls,
        log=tuple(rounds),
        signals=tuple(signals),
    )
