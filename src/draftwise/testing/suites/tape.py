"""A stand-in that keeps what a policy is asked and told, and plays it to another policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any

from ...core.arms import Context, Decision
from ...errors import one_line
from .watch import Injected

METHODS = ("choose", "learn", "close", "open")


@dataclass
class Tape:
    """Watches a policy: its calls in order, its decisions, and what it raised.

    `faults` names methods that raise at their n-th call, after they have done what they do.
    """

    inner: Any
    faults: Mapping[str, int] = field(default_factory=dict)
    events: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    decisions: list[tuple[Context, Decision]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def stand_in(self) -> Any:
        """A policy with the methods that the watched one has."""
        there = [name for name in METHODS if callable(getattr(self.inner, name, None))]
        body: dict[str, Any] = {name: _passed(name) for name in there}
        made = type("StandIn", (), body)()
        made.tape, made.arms, made.reads_hints = self, self.inner.arms, self.inner.reads_hints
        return made

    def call(self, name: str, *args: Any) -> Any:
        """One call of the policy."""
        kept = tuple(list(x) if isinstance(x, Sequence) else x for x in args)
        hints = dict(args[0].hints) if name == "choose" else None
        self.events.append((name, kept[:1] if name == "choose" else kept))
        self.calls[name] += 1
        try:
            answer = getattr(self.inner, name)(*args)
        except Exception as error:
            self.errors.append(f"{name} raised {one_line(error)}")
            raise
        if (name == "open" and kept[1] != list(args[1])) or (hints is not None and hints != args[0].hints):
            self.changed.append(name)
        if name == "choose":
            self.decisions.append((copy(args[0]), answer))
        if self.calls[name] == self.faults.get(name):
            raise Injected(f"call {self.calls[name]} of {name}")
        return answer


def replay(policy: Any, events: Sequence[tuple[str, tuple[Any, ...]]], *, seed: int) -> list[Any]:
    """Play the calls of a tape to a policy; its decisions, None where it raised."""
    rng, made = Random(seed), []
    for name, args in events:
        try:
            answer = getattr(policy, name)(*args, rng) if name == "choose" else getattr(policy, name)(*args)
        except Exception:  # what raises is found by another check
            answer = None
        if name == "choose":
            made.append(answer)
    return made


def parting(one: Sequence[Decision], other: Sequence[Decision]) -> int | None:
    """The first place at which decisions differ, in what a drafter can tell; None for nowhere."""
    pairs = enumerate(zip(map(_told, one), map(_told, other), strict=True))
    return next((place for place, (a, b) in pairs if a != b), None)


def overhead(policy: Any, events: Sequence[tuple[str, tuple[Any, ...]]]) -> float:
    """The seconds of a policy for each of its decisions, learning included."""
    start = perf_counter()
    decisions = replay(policy, events, seed=0)
    return (perf_counter() - start) / max(1, len(decisions))


def _told(decision: Decision) -> tuple[Any, ...]:
    stops = tuple((rule.rule, rule.threshold, rule.shortest) for rule in decision.stops)
    return decision.arm, str(decision.propensity), stops


def _passed(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return self.tape.call(name, *args)

    return method
