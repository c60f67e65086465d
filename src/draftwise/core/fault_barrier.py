"""A policy and its recorder behind a guard: their errors cost speed but never change the text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from random import Random
from warnings import warn

from ..errors import DraftwiseWarning, one_line
from .arms import Arm, Context, Decision
from .outcomes import Feedback
from .request import Request
from .roles import Graders, LateRecorder, Planner, Policy, Reader, Recorder, Rester, RoundRecord

POLICY = "policy"  # the name under which the policy's faults are counted, beside the drafters' names
PLAIN = Arm("none", 0)
UNDECIDED = Decision(-1)


class FaultBarrier:
    """Calls a policy and its recorder, and counts in `faults` how often one of them raised.

    Methods called within a round return the error in one line as their last value, "" if there was none.
    Errors at the beginning or end of a text are logged as warnings. If it `is_late`, what rounds have shown
    is learned in `catch_up`, at the latest before a text is closed.
    """

    def __init__(
        self, policy: Policy, recorder: Recorder, drafters: Collection[str], faults: MutableMapping[str, int]
    ) -> None:
        self.policy, self.recorder, self.drafters, self.faults = policy, recorder, drafters, faults
        self.planner = policy if isinstance(policy, Planner) else None
        self.rester = policy if isinstance(policy, Rester) else None
        self.late_recorder = recorder if isinstance(recorder, LateRecorder) else None
        self.is_late = False
        self.lessons: list[Callable[[], Iterable[Feedback]]] = []  # of rounds that are not learned from yet

    def choose(self, context: Context, rng: Random) -> tuple[Decision, Arm, str]:
        """Return the decision and its arm; `UNDECIDED` and no draft if the policy raises."""
        try:
            decision = self.policy.choose(context, rng)
            arm = self.policy.arms[decision.arm]
            if arm.length > 0 and arm.drafter not in self.drafters:
                raise ValueError(f"{arm} has a drafter that is not there")
            return decision, arm, ""
        except Exception as error:
            return UNDECIDED, PLAIN, self._blame(error)

    def rests(self, batch_size: int) -> tuple[bool, str]:
        """Return whether the policy leaves out this round."""
        if self.rester is not None:
            try:
                return self.rester.rests(batch_size), ""
            except Exception as error:
                return False, self._blame(error)
        return False, ""

    def plan(self, contexts: Sequence[Context]) -> str:
        """Show a policy that looks at all requests of a round what it will decide."""
        if self.planner is not None:
            try:
                self.planner.plan(contexts)
            except Exception as error:
                return self._blame(error)
        return ""

    def grade(self, batch: Sequence[RoundRecord], graders: Graders) -> tuple[Sequence[Feedback], str]:
        """Return the recorder's feedback on some rounds, as far as it does not come with `catch_up`."""
        try:
            if batch and self.is_late and self.late_recorder is not None:
                self.lessons.append(self.late_recorder.ask(batch, graders))
                return (), ""
            return (tuple(self.recorder.add(batch, graders)) if batch else ()), ""
        except Exception as error:
            return (), self._blame(error)

    def learn(self, feedback: Iterable[Feedback]) -> str:
        """Pass feedback to the policy, or keep it for `catch_up`."""
        if not self.is_late:
            return self._learn(feedback)
        self.lessons.append(lambda: feedback)
        return ""

    def catch_up(self) -> str:
        """Pass on what earlier rounds have shown and the policy has not learned."""
        faults = list[str]()
        while self.lessons:
            try:
                faults.append(self._learn(self.lessons.pop(0)()))
            except Exception as error:
                faults.append(self._blame(error))
        return next(filter(None, faults), "")

    def _learn(self, feedback: Iterable[Feedback]) -> str:
        """Pass feedback to the policy; an error in one piece does not stop the next."""
        said = ""
        for known in feedback:
            try:
                self.policy.learn(known)
            except Exception as error:
                said = said or self._blame(error)
        return said

    def open(self, request: Request) -> None:
        """Announce a new text to a policy that reads the text."""
        if isinstance(self.policy, Reader):
            with self._warned():
                self.policy.open(request.id, request.tokens)

    def close(self, request: Request) -> None:
        """End a text: pass on its remaining feedback, then close it."""
        self.lessons.append(lambda: self.recorder.close(request))
        if fault := self.catch_up():
            warn(fault, DraftwiseWarning, stacklevel=4)
        with self._warned():
            self.policy.close(request.id)

    @contextmanager
    def _warned(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            warn(self._blame(error), DraftwiseWarning, stacklevel=6)

    def _blame(self, error: Exception) -> str:
        self.faults[POLICY] = self.faults.get(POLICY, 0) + 1
        return f"{POLICY}: {one_line(error)}"
