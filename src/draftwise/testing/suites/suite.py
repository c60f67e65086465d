"""What all suites share: checks, stand-ins that watch and fail, and a small target with prompts and arms."""

from __future__ import annotations

import gc
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar
from unittest import SkipTest

import numpy as np

from ...core.arms import Arm, Stop
from ...core.stops import DEFAULTS
from ...errors import one_line
from ...policies.bandit import BanditPolicy
from ...policies.learners.fixed import Uniform
from ..distributions import Distribution, Vector
from ..target import SimTarget

S = TypeVar("S", bound="Suite")
SURE = 1e-3  # a p-value below it is a failure: a correct drafter fails one in a thousand such runs
APART = (ModuleType, FunctionType, BuiltinFunctionType, type)  # nothing that a drafter keeps is behind these


class Suite:
    """A class of checks. Each method named `test_...` is one; pytest collects them, and needs no plug-in.

    What the checks share is made once for each class, and kept in `shared`.
    """

    shared: dict[str, Any]

    def __init_subclass__(cls) -> None:
        cls.shared = {}

    @classmethod
    def checks(cls) -> list[str]:
        """Return the names of the checks, in order."""
        return [name for kind in reversed(cls.__mro__) for name in vars(kind) if name.startswith("test_")]

    @classmethod
    def failures(cls) -> dict[str, str]:
        """Run all checks, without pytest: the names of those that failed, and what each said."""
        messages = {}
        for name in cls.checks():
            try:
                getattr(cls(), name)()
            except SkipTest:
                continue
            except Exception as error:
                messages[name] = str(error) if isinstance(error, AssertionError) else one_line(error)
        return messages

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, made once for the class."""
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


def suite_of(base: type[S], options: Mapping[str, Any]) -> type[S]:
    """Return a suite with these options; functions become static methods."""
    body = {k: staticmethod(v) if callable(v) else v for k, v in options.items() if v is not None}
    return type(base.__name__, (base,), {**body, "__doc__": base.__doc__})


def fail(fault: str, remedy: str) -> NoReturn:
    """End a check: what is wrong, and what to do about it."""
    __tracebackhide__ = True
    raise AssertionError(f"{fault}: {remedy}")


def skip(reason: str) -> NoReturn:
    """Leave out a check that does not apply."""
    raise SkipTest(reason)


def takes_target(make: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `target`, as with the functions behind entry points."""
    return "target" in _parameters(make)


@cache
def _parameters(make: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # some built-in types have no signature
        return frozenset()


def size_of(thing: Any) -> int:
    """Return how much an object holds: references of all that can be reached from it, and bytes of arrays."""
    total = 0
    for node, inner in _reachable(thing):
        total += len(inner)
        if getattr(type(node), "nbytes", None) is not None:
            total += int(node.nbytes)
    return total


def holds(thing: Any, ids: frozenset[int]) -> bool:
    """Return whether a whole number out of `ids` can be reached from an object."""
    return any(type(other) is int and other in ids for _, inner in _reachable(thing) for other in inner)


def _reachable(thing: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield all objects that can be reached from one, each with those that it refers to."""
    visited, waiting = {id(thing)}, [thing]
    while waiting:
        node = waiting.pop()
        inner = gc.get_referents(node)
        yield node, inner
        for other in inner:
            if id(other) not in visited and not isinstance(other, APART):
                visited.add(id(other))
                waiting.append(other)


class Injected(RuntimeError):
    """A fault that a check makes, to see that it costs no text."""


class Watch:
    """Passes calls on to a drafter or a policy, and keeps what it raised and what it changed.

    `faults` names methods that raise at their n-th call, after they have done what they do.
    """

    methods: tuple[str, ...]

    def __init__(self, inner: Any, faults: Mapping[str, int] | None = None) -> None:
        self.inner, self.faults = inner, faults or {}
        self.errors: list[str] = []
        self.changed: list[str] = []
        self.calls: Counter[str] = Counter()

    def stand_in(self, **attributes: Any) -> Any:
        """Return an object with these attributes, and the methods that the watched one has."""
        names = [name for name in self.methods if callable(getattr(self.inner, name, None))]
        stand_in = type("StandIn", (), {name: _pass_on(name) for name in names} | attributes)()
        stand_in.watch = self
        return stand_in

    def call(self, name: str, *args: Any) -> Any:
        """Call the watched object."""
        self.calls[name] += 1
        try:
            answer = getattr(self.inner, name)(*args)
        except Exception as error:
            self.errors.append(f"{name} raised {one_line(error)}")
            raise
        return answer

    def inject(self, name: str) -> None:
        """Raise if it is this call's turn."""
        if self.calls[name] == self.faults.get(name):
            raise Injected(f"call {self.calls[name]} of {name}")


def _pass_on(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return self.watch.watched_call(name, *args)

    return method


def generator(seed: int) -> Random:
    """Return a generator for what the checks themselves draw."""
    return Random(f"conformance {seed}")


# -- the world -------------------------------------------------------------------------------------------

VOCABULARY = 4
PROMPTS: tuple[tuple[int, ...], ...] = ((0, 1, 2, 1, 0, 1), (3,), (1, 1, 2, 3, 0, 2, 1, 1), (2, 0, 2))
RULES = tuple(Stop(name, number) for name, number in DEFAULTS.items() if name != "never")


def second_order(vocab_size: int = VOCABULARY, *, seed: int = 7) -> Distribution:
    """Logits of a random chain whose next token depends on the last two: no text is far from any other."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocab_size, 0.6), size=(vocab_size, vocab_size))
    logits = np.log(rows * (1.0 - 0.015 * vocab_size) + 0.015)

    def distribution(history: Sequence[int]) -> Vector:
        row: Vector = logits[history[-2] if len(history) > 1 else 0, history[-1]]
        return row

    return distribution


def small_target() -> SimTarget:
    """The target of a suite that is given none: four tokens, and no draft is right for long."""
    return SimTarget(second_order(), VOCABULARY)


def drafting(
    name: str, lengths: Sequence[int], *, width: int = 1, rules: Sequence[Stop] = ()
) -> tuple[Arm, ...]:
    """Arms of one drafter, and one without a draft."""
    stopped = [Arm(name, max(lengths), width, stop=rule) for rule in rules]
    return (Arm("none", 0), *(Arm(name, n, width) for n in lengths), *stopped)


def at_random(arms: Sequence[Arm]) -> BanditPolicy:
    """A policy that draws an arm each round."""
    return BanditPolicy(tuple(arms), Uniform)
