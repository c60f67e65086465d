"""A small world for traces: a target and drafters with known distributions, lookups, and their recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.build import complete
from draftwise.core.loop import Loop
from draftwise.core.roles import Drafter, Target
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.costs import Costs, DrafterCosts
from draftwise.measure.trace.record import Prompt, header_of, record
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from draftwise.testing.distributions import Distribution, Vector
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

V, EOS = 14, 13
COSTS = Costs(
    passes=(1.0, 1.02, 1.05, 1.1, 1.2, 1.3),
    drafters={
        "good": DrafterCosts(first=0.1, step=0.15, catch_up=0.004, grade=0.2),
        "bad": DrafterCosts(first=0.05, step=0.05, catch_up=0.01, grade=0.1),
    },
)
TEAM = ("good", "bad", "ngram", "suffix")


def distribution(seed: int, *, noise: float = 0.0, noisy: int = 1) -> Distribution:
    """Logits by the last two tokens and the place; two distributions of one seed differ by noise of
    another."""
    table = 2.5 * np.random.default_rng(seed).normal(size=(V, V, V))
    table += noise * np.random.default_rng(noisy).normal(size=table.shape)
    phases = 1.2 * np.random.default_rng(seed + 100).normal(size=(17, V))

    def logits(history: Sequence[int]) -> Vector:
        row: Vector = table[history[-2] if len(history) > 1 else 0, history[-1]] + phases[len(history) % 17]
        return row

    return logits


def target() -> SimTarget:
    return SimTarget(distribution(0), V, max_length=400)


def team(*names: str) -> dict[str, Drafter]:
    made: dict[str, Drafter] = {
        "good": SimDrafter(distribution(0, noise=0.5)),
        "bad": SimDrafter(distribution(0, noise=2.0, noisy=2)),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(factor=1.0, offset=0.0, min_prob=0.05, depth=8, history=64),
    }
    cascades = {name: registry.parse(name) for name in names if name not in made}
    made |= {name: registry.build("drafters", spec, spec.path) for name, spec in cascades.items()}
    return {name: made[name] for name in names or TEAM}


def prompts(n: int) -> list[Prompt]:
    draw = np.random.default_rng(7)
    return [Prompt(str(i), f"c{i % 3}", draw.integers(0, V - 1, 4 + i % 5).tolist()) for i in range(n)]


def settings(tokens: int = 40, temperature: float = 0.0, seed: int | None = None) -> Sampling:
    return Sampling(max_new_tokens=tokens, temperature=temperature, eos=frozenset({EOS}), seed=seed)


def record_trace(
    models: Target,
    drafters: Mapping[str, Drafter],
    asked: Sequence[Prompt],
    folder: Path,
    sampling: Sampling,
    *,
    length: int,
    overlap: bool = False,
) -> Trace:
    """A trace of these drafters."""
    about: dict[str, Any] = {"name": "sim", "workload": "w", "prompts": asked, "length": length}
    header = header_of(models, drafters, sampling, overlap=overlap, **about)
    record(models, drafters, asked, folder, header)
    return Trace(folder)


def recorded(
    folder: Path,
    *,
    names: Sequence[str] = TEAM,
    n: int = 8,
    length: int = 8,
    sampling: Sampling | None = None,
    overlap: bool = True,
    asked: Sequence[Prompt] = (),
) -> Trace:
    """A trace of the small world."""
    sampling, overlap = sampling or settings(), overlap and not (sampling and sampling.temperature)
    prompts_asked = asked or prompts(n)
    return record_trace(
        target(), team(*names), prompts_asked, folder, sampling, length=length, overlap=overlap
    )


def counts(rounds: Sequence[Round]) -> tuple[int, int, int]:
    """Rounds, drafted and accepted tokens."""
    return len(rounds), sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)


def live(name: str, trace: Trace, *, seed: int = 0) -> list[Any]:
    """The rounds of a live run over the prompts of a trace."""
    made = method(name, trace.drafters)
    loop = Loop(target(), complete(team(*trace.drafters), made), made.policy, made.recorder, seed=seed)
    sampling = Sampling(max_new_tokens=trace.header.max_new_tokens, eos=frozenset(trace.header.eos))
    rounds = [seen(r) for one in trace for r in loop.run([one.prompt.tolist()], sampling)]
    assert not any(loop.faults.values()), loop.faults
    return rounds


def replayed(name: str, trace: Trace, costs: Costs = COSTS, *, seed: int = 0) -> list[Any]:
    """The rounds of a replay."""
    loop = Replay(trace, method(name, trace.drafters), costs, seed=seed)
    return [seen(r) for one in trace for r in loop.replay(ReplayState(one))]


def seen(round: Round) -> tuple[Any, ...]:
    """Everything about a round but its time."""
    return (
        round.request,
        round.arm,
        round.decision,
        round.drafted,
        round.accepted,
        round.tokens,
        round.done,
        round.finish_reason,
    )
