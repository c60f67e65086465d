"""What all suites share: checks, stand-ins that watch and fail, and a small target with prompts and arms."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar
from unittest import SkipTest

import numpy as np

from ...core.arms import Arm, Stop
from ...core.loop import Loop
from ...core.roles import Target
from ...core.round import Round
from ...core.sampling import Sampling
from ...core.stops import DEFAULTS
from ...errors import one_line
from ...policies.bandit import BanditPolicy
from ...policies.learners.fixed import Uniform
from ...policies.recorders.bandit import Bandit, reward
from ..distributions import Distribution, Vector
from ..exact import exact_of, p_value
from ..target import SimTarget

S = TypeVar("S", bound="Suite")
Texts = dict[int, list[int]]
Prompts = Sequence[Sequence[int]]
LEAVE = "leave requests and texts as they are: copy them, and draw from request.rng in `draft` only"
SURE = 1e-3  # a p-value below it is a failure: a correct drafter fails one in a thousand such runs
APART = (ModuleType, FunctionType, BuiltinFunctionType, type)  # nothing that a drafter keeps is behind these


VOCABULARY = 4
GREEDY = Sampling(max_new_tokens=40, repetition_penalty=1.2)
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


class Suite:
    """A class of checks. Each method named `test_...` is one; pytest collects them, and needs no plug-in.

    What the checks share is made once for each class, and kept in `shared`.
    """

    shared: dict[str, Any]
    target: Callable[[], Target] = staticmethod(small_target)
    prompts: Prompts = PROMPTS

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

    def check_greedy(self, texts: Texts, when: str, *, whole: bool = True) -> None:
        """Fail at the first text that is not the target's own, or its beginning where it is not `whole`."""
        __tracebackhide__ = True
        plain = self.once("plain", lambda: plain_texts(type(self).target(), self.prompts))
        for at, text in texts.items():
            own = plain[at % len(plain)]
            if text != (own if whole else own[: len(text)]):
                k = next(k for k in range(len(own)) if text[k : k + 1] != own[k : k + 1])
                fail(f"text {at} differs from the target's own at token {k}, {when}", LEAVE)

    def check_distribution(self, texts: Texts, sampling: Sampling) -> None:
        """Fail if short texts of the first prompt do not have the target's distribution."""
        __tracebackhide__ = True
        target, prompt, n = type(self).target, self.prompts[0], len(texts[0])
        expected = self.once(f"exact {sampling}", lambda: exact_of(target(), prompt, n, sampling))
        if (p := p_value(Counter(map(tuple, texts.values())), expected)) < SURE:
            fail(
                f"{len(texts)} texts do not have the target's distribution (p = {p:.1e})",
                f"draw tokens with job.request.rng, and give the distributions they were drawn from; {LEAVE}",
            )


def add_tokens(texts: Texts, rounds: Iterable[Round], *, first: int = 0) -> None:
    """Append what rounds have written to the texts by request, which are counted from `first`."""
    for round in rounds:
        texts.setdefault(round.request - first, []).extend(round.tokens)


def plain_texts(target: Target, prompts: Prompts) -> list[list[int]]:
    """The target's own greedy texts."""
    texts: Texts = {}
    loop = Loop(target, {}, at_random((Arm("none", 0),)), Bandit(reward("accepted"), 1))
    add_tokens(texts, loop.run(prompts, GREEDY))
    return [texts[at] for at in range(len(prompts))]


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


def reachable(thing: Any) -> Iterator[tuple[Any, list[Any]]]:
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
