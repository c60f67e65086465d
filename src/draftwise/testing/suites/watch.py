"""Stand-ins that pass calls on to a drafter or a policy, and keep what was asked, answered and raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...errors import one_line

METHODS = ("hint", "draft", "observe", "close", "ready", "grade", "join")
ATTRIBUTES = ("branches", "hidden_states")


class Injected(RuntimeError):
    """A fault that a check makes, to see that it costs no text."""


@dataclass(slots=True)
class Made:
    """One draft: what was asked for, the text at the time, and the answer."""

    job: Job
    text: tuple[int, ...]
    draft: Draft

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """The request's id and its text."""
        return self.job.request.id, self.text

    @property
    def drawn(self) -> bool:
        """Whether the draft says that its tokens were drawn."""
        return self.draft.dist is not None


@dataclass
class Watch:
    """Watches a drafter.

    With `reverse` it hands over the jobs of a batch in reverse order, and the drafts back in the right one.
    `faults` names methods that raise at their n-th call, after they have done what they do. Without `compare`
    requests are not compared before and after each call, which takes time.
    """

    inner: Any
    reverse: bool = False
    compare: bool = True
    faults: Mapping[str, int] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)  # drafts asked for, and got
    hints: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def stand_in(self) -> Any:
        """A drafter with the methods that the watched one has."""
        body: dict[str, Any] = {
            name: _passed(name) for name in METHODS if callable(getattr(self.inner, name, None))
        }
        body |= {name: getattr(self.inner, name) for name in ATTRIBUTES if hasattr(self.inner, name)}
        made = type("StandIn", (), body)()
        made.watch = self
        return made

    def call(self, name: str, *args: Any) -> Any:
        """One call of the drafter."""
        requests = list(_requests(args[0])) if self.compare else []
        before = [_state(request, name) for request in requests]
        texts = [tuple(job.request.tokens) for job in args[0]] if name == "draft" else []
        asked = list(reversed(args[0])) if self.reverse and name in ("draft", "grade") else args[0]
        self.calls[name] += 1
        try:
            answer = getattr(self.inner, name)(asked, *args[1:])
        except Exception as error:
            self.errors.append(f"{name} raised {one_line(error)}")
            raise
        if [_state(request, name) for request in requests] != before:
            self.changed.append(name)
        if self.calls[name] == self.faults.get(name):
            raise Injected(f"call {self.calls[name]} of {name}")
        if asked is not args[0]:
            answer = list(reversed(answer))
        self._keep(name, args[0], texts, answer)
        return answer

    def _keep(self, name: str, asked: Any, texts: Sequence[tuple[int, ...]], answer: Any) -> None:
        if name == "hint":
            self.hints.append(answer)
        if name == "draft":
            drafts = answer if isinstance(answer, Sequence) else ()
            self.counts.append((len(asked), len(drafts)))
            if len(drafts) == len(asked):
                sound = [x for x in zip(asked, texts, drafts, strict=True) if isinstance(x[2], Draft)]
                self.made += [Made(job, text, draft) for job, text, draft in sound]


def _passed(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return self.watch.call(name, *args)

    return method


def _requests(first: Any) -> Iterable[Request]:
    """The requests that a call is about."""
    if isinstance(first, Request):
        return [first]
    return [job.request for job in first] if isinstance(first, (list, tuple)) else []


def _state(request: Request, name: str) -> tuple[Any, ...]:
    """What a drafter must leave alone: in `draft`, everything but the request's generator."""
    kept = (tuple(request.tokens), request.prompt_length, request.sampling, request.uniforms.getstate())
    rest = (request.done, frozenset(request.disabled), request.drawn, request.rounds)
    return (*kept, *rest) if name == "draft" else (*kept, *rest, request.rng.getstate())


def generator(seed: int) -> Random:
    """A generator for what the checks themselves draw."""
    return Random(f"conformance {seed}")
