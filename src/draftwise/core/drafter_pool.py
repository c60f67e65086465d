"""The drafters of one loop, and how their faults are handled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from operator import methodcaller
from time import perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..errors import one_line, pluralize
from .arms import NEVER, Arm
from .constraint import constraint_of
from .contract import drafted, finite, of_integers, wrong_draft, wrong_grades, wrong_tokens
from .drafts import EMPTY, Draft, Job
from .outcomes import Grade
from .reading import Reading
from .request import Request
from .roles import Drafter, GradeJob, Grader, Guesser, Waiter

NOBODY: frozenset[str] = frozenset()
Answer = TypeVar("Answer")
PASSES = 20  # limit of a draft in mean target passes, plus one for each token that the drafter reads first


@runtime_checkable
class Member(Protocol):
    """A drafter that uses the other drafters, and receives them when the pool is created."""

    def join(self, pool: DrafterPool) -> None: ...


class Breach(Exception):
    """A drafter violated its contract, as the message says."""


class DrafterPool:
    """Calls the drafters, and disables one that raises or violates its contract.

    The drafter is then disabled for the request in which it failed, and for all requests after `max_faults`
    faults. A call that takes more than `slow_seconds`, and more than `PASSES` mean target passes plus one per
    token read first, is a fault as well. `open` maps ids to the requests in progress and is maintained by the
    loop.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        *,
        vocab_size: int,
        max_faults: int = 3,
        slow_seconds: float = inf,
        can_read_trees: Callable[[], bool] | None = None,
    ) -> None:
        self.drafters, self.open = dict(drafters), dict[int, Request]()
        self.names: Collection[str] = self.drafters  # that an arm may have
        self.vocab_size, self.max_faults, self.can_read_trees = vocab_size, max_faults, can_read_trees
        self.faults: dict[str, int] = dict.fromkeys(self.drafters, 0)
        self.broken: set[str] = set()
        self.slow_seconds, self.pass_seconds = slow_seconds, 0.0
        self.graded_seconds = 0.0
        self._observed: dict[int, dict[str, int]] = {}  # tokens that each drafter has seen, by request
        self._read: dict[int, dict[str, int]] = {}  # text length when it last drafted or graded
        self._warnings: dict[int, str] = {}
        self.waiters = {name: d for name, d in self.drafters.items() if isinstance(d, Waiter)}
        self.reading = Reading(self.drafters, self.open)
        self.compiled: list[Any] = [d for d in self.drafters.values() if hasattr(d, "setup_seconds")]
        self.graders = {name: d for name, d in self.drafters.items() if isinstance(d, Grader)}
        self.guessers = {name: d for name, d in self.drafters.items() if isinstance(d, Guesser)}
        for drafter in self.drafters.values():
            if isinstance(drafter, Member):
                drafter.join(self)

    def collect_hints(self, request: Request) -> dict[str, float]:
        hints = {}
        for name, drafter in self.drafters.items():
            if name not in request.disabled:
                try:
                    hints[name] = finite(drafter.hint(request))
                except Exception as error:
                    self.fault(name, request, error)
        return hints

    def find_not_ready(self, request: Request) -> frozenset[str]:
        """Return the drafters that are not ready to draft for a request."""
        if not self.waiters and not self.reading.unread:  # the usual case
            return NOBODY
        not_ready = set(self.reading.unread_by(request))
        for name, waiter in self.waiters.items():
            if name not in request.disabled and not self._answer(
                name, [request], methodcaller("ready", request), waiter
            ):
                not_ready.add(name)
        return frozenset(not_ready)

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        """One call per drafter for all its jobs; each job has its place in a batch of `n`.

        Returns drafts and seconds, by place. The time of a call is divided among its jobs by the tokens they
        got.
        """
        drafts, spent = [EMPTY] * n, [0.0] * n
        for name, mine in jobs.items():
            start = self._clock()
            answers = self.ask(name, [job for _, job in mine])
            share = (self._clock() - start) / (len(mine) + sum(len(d.tokens) for d in answers))
            for (i, _), draft in zip(mine, answers, strict=True):
                drafts[i], spent[i] = draft, share * (1 + len(draft.tokens))
        return drafts, spent

    def ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        """One call of a drafter: a draft for each job.

        A faulty draft is replaced by an empty one, as are all drafts of a call that took too long.
        """
        patience, start = self._patience(name, [job.request for job in jobs]), self._clock()
        try:
            answers = drafted(self.drafters[name], jobs, partial(self._wrong, name))
            breach = ""
            if len(answers) != len(jobs):
                breach = f"{pluralize(len(answers), 'draft')} for {pluralize(len(jobs), 'request')}"
        except Exception as error:
            answers, breach = [], one_line(error)
        seconds = self._clock() - start
        if seconds > patience:
            breach = breach or f"took {seconds:.1f} s for one draft"
        drafts = []
        for k, job in enumerate(jobs):
            if fault := breach or self._wrong(name, job, answers[k]):
                self.fault(name, job.request, fault)
            drafts.append(EMPTY if fault else of_integers(answers[k]))
            if job.constraint is not None and job.constraint.warning:
                self._warnings.setdefault(job.request.id, job.constraint.warning)
        return drafts

    def prepare(self) -> bool:
        """Let a drafter read one piece of a text; False if there is none to read."""
        if (found := self.reading.next()) is None:
            return False
        name, request = found
        preparer = self.reading.preparers[name]
        if name in request.disabled or not self._answer(
            name, [request], methodcaller("prepare", request), preparer
        ):
            self.reading.done(name, request)
        return True

    def observe(self, request: Request) -> None:
        for name in self.drafters:
            if name not in request.disabled:
                self._answer(name, [request], self._tell, name, request, len(request.tokens))

    # -- grading, for recorders ----------------------------------------------------------------------

    def grades_itself(self, name: str) -> bool:
        return name in self.graders

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        requests = [job.request for job in jobs]
        patience, start = self._patience(name, requests), self._clock()

        def ask() -> list[list[Grade]]:
            grades = self.graders[name].grade(jobs)
            if breach := wrong_grades(grades, jobs):
                raise Breach(breach)
            if (seconds := self._clock() - start) > patience:
                raise Breach(f"took {seconds:.1f} s for one pass of grading")
            return grades

        return self._graded(name, requests, ask)

    def width(self, name: str) -> int:
        return self._property(name, "branches", int, 1)

    def drafts_trees(self, name: str) -> bool:
        return self._drafts(name, "drafts_trees")

    def drafts_siblings(self, name: str) -> bool:
        return self._drafts(name, "drafts_siblings")

    def _drafts(self, name: str, what: str) -> bool:
        read = self.can_read_trees
        return self._property(name, what, lambda method: bool(method() and read and read()), False)

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        guesser = self.guessers.get(name)
        if guesser and arm.stop is NEVER and arm.width == 1 and not request.sampling.processors:
            return self._graded(name, [request], self._guess, name, guesser, request, at, arm.length)
        draft = self.redraft(name, request, at, arm)
        if draft is None:
            return None
        branch = takewhile(lambda node: draft.parents[node] == node - 1, range(len(draft.tokens)))
        return tuple(draft.tokens[node] for node in branch)

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        draft = self._graded(name, [request], self._redraft, name, request, at, arm)
        return None if draft is None or draft.dist is not None else draft

    def _graded(
        self, name: str, requests: Sequence[Request], call: Callable[..., Answer], *given: Any
    ) -> Answer | None:
        """What a drafter answers to a recorder, as `_answer`; its time is that of grading."""
        start = self._clock()
        answer = self._answer(name, requests, call, *given)
        self.graded_seconds += self._clock() - start
        return answer

    def _guess(self, name: str, guesser: Guesser, request: Request, at: int, length: int) -> tuple[int, ...]:
        self._tell(name, request, at)
        tokens = tuple(guesser.guess(request, length))
        if tokens and (breach := wrong_tokens(tokens, length, self.vocab_size)):
            raise Breach(breach)
        return tokens

    def _redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft:
        self._tell(name, request, at)
        view = request if at == len(request.tokens) else replace(request, tokens=request.tokens[:at])
        job = Job(view, arm.length, arm.stops, arm.width, constraint=constraint_of(view))
        (draft,) = drafted(self.drafters[name], [job], partial(self._wrong, name))
        if breach := self._wrong(name, job, draft):
            raise Breach(breach)
        return of_integers(draft)

    def _tell(self, name: str, request: Request, upto: int) -> None:
        """Show a drafter the text up to `upto` tokens, once."""
        told = self._observed.setdefault(request.id, {})
        start = told.get(name, 0)
        if start < upto:
            told[name] = upto
            self.drafters[name].observe(request, request.tokens[start:upto])

    # -- time limits ---------------------------------------------------------------------------------

    def pass_kind(self, name: str) -> str:
        """Return how this drafter's passes are run at present, as a word; "" if it does not tell."""
        return self._property(name, "pass_kind", str, "")

    def _property(self, name: str, attribute: str, read: Callable[[Any], Answer], usual: Answer) -> Answer:
        """Return what a drafter may tell of itself; the usual if it does not, or its property raises."""
        try:
            value = getattr(self.drafters.get(name), attribute, None)
            return usual if value is None else read(value)
        except Exception:
            return usual

    def _clock(self) -> float:
        """The time in seconds without work that a drafter does once, such as compiling its passes."""
        return perf_counter() - sum(float(drafter.setup_seconds) for drafter in self.compiled)

    def record_pass(self, seconds: float) -> None:
        self.pass_seconds += (0.1 if self.pass_seconds else 1.0) * (seconds - self.pass_seconds)

    def _patience(self, name: str, requests: Sequence[Request]) -> float:
        """Return the time limit of a call in seconds: longer for a drafter that reads a long prompt first.

        There is no limit before the first target pass has been timed.
        """
        unread = 0
        for request in requests:
            read = self._read.setdefault(request.id, {})
            unread += max(0, len(request.tokens) - read.get(name, 0))
            read[name] = len(request.tokens)
        return max(self.slow_seconds, (PASSES + unread) * self.pass_seconds) if self.pass_seconds else inf

    # -- faults and ends -----------------------------------------------------------------------------

    def close(self, request: Request) -> None:
        for name, drafter in self.drafters.items():
            self._answer(name, [request], methodcaller("close", request), drafter)
        self._observed.pop(request.id, None)
        self._read.pop(request.id, None)
        self._warnings.pop(request.id, None)
        self.reading.close(request)

    def pop_warning(self, request: Request) -> str:
        """Return the first fault since the last call, or ""."""
        return self._warnings.pop(request.id, "") if self._warnings else ""

    def fault(self, name: str, request: Request, what: str | Exception) -> None:
        """Disable a drafter for a request, and after repeated faults for all."""
        reason = str(what) if isinstance(what, str | Breach) else one_line(what)
        request.disabled.add(name)
        self._warnings.setdefault(request.id, f"{name}: {reason}")
        self.faults[name] += 1
        if self.faults[name] >= self.max_faults:
            self.broken.add(name)
            for other in self.open.values():
                other.disabled.add(name)

    def _answer(
        self, name: str, requests: Sequence[Request], call: Callable[..., Answer], *given: Any
    ) -> Answer | None:
        """What a drafter answers; None, and a fault in these requests, if it raises.

        `call` looks its method up: a lookup that raises is a fault as well.
        """
        try:
            return call(*given)
        except Exception as error:
            for request in requests:
                self.fault(name, request, error)
            return None

    def _wrong(self, name: str, job: Job, draft: Draft) -> str:
        return wrong_draft(draft, job.length * max(job.width, self.width(name)), self.vocab_size)
