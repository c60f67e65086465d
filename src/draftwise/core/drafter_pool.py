"""The drafters of one loop, and how their faults are handled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from ..errors import one_line
from .arms import NEVER, Arm
from .constraint import constraint_of
from .contract import drafted, finite, of_integers, wrong_draft, wrong_grades, wrong_tokens
from .drafts import Draft, Job
from .outcomes import Grade
from .reading import Reading
from .request import Request
from .roles import Drafter, GradeJob, Grader, Guesser, Waiter

EMPTY = Draft()
NOBODY: frozenset[str] = frozenset()
PASSES = 20  # limit of a draft in mean target passes, plus one for each token that the drafter reads first


@runtime_checkable
class Member(Protocol):
    """A drafter that uses the other drafters, and receives them when the pool is created."""

    def join(self, pool: DrafterPool) -> None: ...


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
        """One cheap score per drafter."""
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
            try:
                if name not in request.disabled and not waiter.ready(request):
                    not_ready.add(name)
            except Exception as error:
                self.fault(name, request, error)
        return frozenset(not_ready)

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        """One call per drafter for all its jobs; each job has its place in a batch of `n`.

        Returns drafts and seconds, by place. The time of a call is divided among its jobs by the tokens they
        got.
        """
        drafts, spent = [EMPTY] * n, [0.0] * n
        for name, mine in jobs.items():
            start = self._clock()
            made = self.ask(name, [job for _, job in mine])
            share = (self._clock() - start) / (len(mine) + sum(len(d.tokens) for d in made))
            for (i, _), draft in zip(mine, made, strict=True):
                drafts[i], spent[i] = draft, share * (1 + len(draft.tokens))
        return drafts, spent

    def ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        """One call of a drafter: a draft for each job.

        A faulty draft is replaced by an empty one, as are all drafts of a call that took too long.
        """
        patience, start = self._patience(name, [job.request for job in jobs]), self._clock()
        try:
            made = drafted(self.drafters[name], jobs, partial(self._wrong, name))
            said = "" if len(made) == len(jobs) else f"{len(made)} drafts for {len(jobs)} requests"
        except Exception as error:
            made, said = [], one_line(error)
        seconds = self._clock() - start
        if seconds > patience:
            said = said or f"took {seconds:.1f} s for one draft"
        drafts = []
        for k, job in enumerate(jobs):
            if fault := said or self._wrong(name, job, made[k]):
                self.fault(name, job.request, fault)
            drafts.append(EMPTY if fault else of_integers(made[k]))
            if job.constraint is not None and job.constraint.warning:
                self._warnings.setdefault(job.request.id, job.constraint.warning)
        return drafts

    def prepare(self) -> bool:
        """Let a drafter read one piece of a text; False if there is none to read."""
        if (found := self.reading.next()) is None:
            return False
        name, request = found
        try:
            more = name not in request.disabled and self.reading.preparers[name].prepare(request)
        except Exception as error:
            self.fault(name, request, error)
            more = False
        if not more:
            self.reading.done(name, request)
        return True

    def observe(self, request: Request) -> None:
        """Pass the newly committed tokens to all drafters."""
        for name in self.drafters:
            if name not in request.disabled:
                self._tell(name, request, len(request.tokens))

    # -- grading, for recorders ----------------------------------------------------------------------

    def grades_itself(self, name: str) -> bool:
        """Whether a drafter grades text position by position; others are graded by the drafts they would have
        made."""
        return name in self.graders

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        """Return the drafter's grades, one per token and job; None if it failed, which disables it for these
        requests."""
        grader = self.graders.get(name)
        patience, start = self._patience(name, [job.request for job in jobs]), self._clock()
        try:
            made = grader.grade(jobs) if grader else []
            said = wrong_grades(made, jobs)
        except Exception as error:
            made, said = [], one_line(error)
        seconds = self._clock() - start
        self.graded_seconds += seconds
        if seconds > patience:
            said = said or f"took {seconds:.1f} s for one pass of grading"
        if said:
            for job in jobs:
                self.fault(name, job.request, said)
            return None
        return made

    def width(self, name: str) -> int:
        """Return the number of branches of a drafter's own trees: 1 for chains."""
        return self._read_attribute(name, "branches", 1)

    def drafts_trees(self, name: str) -> bool:
        """Return whether a drafter drafts a chain or, for a wider arm, a tree."""
        return self._drafts(name, "drafts_trees")

    def drafts_siblings(self, name: str) -> bool:
        """Return whether, for a wider arm, it drafts a chain with siblings where it drafts no tree."""
        return self._drafts(name, "drafts_siblings")

    def _drafts(self, name: str, method: str) -> bool:
        try:
            drafts = bool(getattr(self.drafters.get(name), method)())
        except Exception:  # it has no such method, or another's failed
            return False
        return drafts and self.can_read_trees is not None and self.can_read_trees()

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        """Return the tokens of `redraft`; for a tree, those of its first branch."""
        guesser = self.guessers.get(name)
        if guesser and arm.stop is NEVER and arm.width == 1 and not request.sampling.processors:
            return self._guess(name, guesser, request, at, arm.length)
        draft = self.redraft(name, request, at, arm)
        if draft is None:
            return None
        branch = takewhile(lambda node: draft.parents[node] == node - 1, range(len(draft.tokens)))
        return tuple(draft.tokens[node] for node in branch)

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        """Return the draft that `name` makes for `arm` after the text `request.tokens[:at]`.

        None if the drafter failed, or if it samples: one sample does not predict another, so such a drafter
        can only be evaluated with `grade`.
        """
        start = perf_counter()
        try:
            return self._redraft(name, request, at, arm)
        finally:
            self.graded_seconds += perf_counter() - start

    def _guess(
        self, name: str, guesser: Guesser, request: Request, at: int, length: int
    ) -> tuple[int, ...] | None:
        start = perf_counter()
        if not self._tell(name, request, at):
            return None
        try:
            made = tuple(guesser.guess(request, length))
            fault = wrong_tokens(made, length, self.vocab_size) if made else ""
        except Exception as error:
            made, fault = (), one_line(error)
        self.graded_seconds += perf_counter() - start
        if fault:
            self.fault(name, request, fault)
            return None
        return made

    def _redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        if not self._tell(name, request, at):
            return None
        view = request if at == len(request.tokens) else replace(request, tokens=request.tokens[:at])
        job = Job(view, arm.length, arm.stops, arm.width, constraint=constraint_of(view))
        try:
            (made,) = drafted(self.drafters[name], [job], partial(self._wrong, name))
            fault = self._wrong(name, job, made)
            made = made if fault else of_integers(made)
        except Exception as error:
            fault = one_line(error)
        if fault:
            self.fault(name, request, fault)
            return None
        return made if made.dist is None else None

    def _tell(self, name: str, request: Request, upto: int) -> bool:
        """Show a drafter the text up to `upto` tokens; False if it failed."""
        told = self._observed.setdefault(request.id, {})
        start = told.get(name, 0)
        if start < upto:
            told[name] = upto
            try:
                self.drafters[name].observe(request, request.tokens[start:upto])
            except Exception as error:
                self.fault(name, request, error)
                return False
        return True

    # -- time limits ---------------------------------------------------------------------------------

    def pass_kind(self, name: str) -> str:
        """Return how this drafter's passes are run at present, as a word; "" if it does not tell."""
        try:
            return str(getattr(self.drafters.get(name), "pass_kind", ""))
        except Exception:  # another's property
            return ""

    def _read_attribute(self, name: str, attribute: str, usual: int) -> int:
        """Return a number that a drafter may tell of itself; the usual one if it does not, or cannot."""
        try:
            return int(getattr(self.drafters.get(name), attribute, usual))
        except Exception:  # another's property, or its type
            return usual

    def _clock(self) -> float:
        """The time in seconds without work that a drafter does once, such as compiling its passes."""
        return perf_counter() - sum(float(drafter.setup_seconds) for drafter in self.compiled)

    def record_pass(self, seconds: float) -> None:
        """Record the duration of a target pass."""
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
        """Close a request in all drafters."""
        for name, drafter in self.drafters.items():
            try:
                drafter.close(request)
            except Exception as error:
                self.fault(name, request, error)
        self._observed.pop(request.id, None)
        self._read.pop(request.id, None)
        self._warnings.pop(request.id, None)
        self.reading.close(request)

    def pop_warning(self, request: Request) -> str:
        """Return the first fault since the last call, or ""."""
        return self._warnings.pop(request.id, "") if self._warnings else ""

    def fault(self, name: str, request: Request, what: str | Exception) -> None:
        """Disable a drafter for a request, and after repeated faults for all."""
        said = what if isinstance(what, str) else one_line(what)
        request.disabled.add(name)
        self._warnings.setdefault(request.id, f"{name}: {said}")
        self.faults[name] += 1
        if self.faults[name] >= self.max_faults:
            self.broken.add(name)
            for other in self.open.values():
                other.disabled.add(name)

    def _wrong(self, name: str, job: Job, draft: Draft) -> str:
        return wrong_draft(draft, job.length * max(job.width, self.width(name)), self.vocab_size)
