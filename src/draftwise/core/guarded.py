"""A policy and its recorder at arm's length: what they get wrong costs speed and no text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from random import Random
from warnings import warn

from ..errors import DraftwiseWarning, one_line
from .arms import Arm, Context, Decision
from .outcomes import Feedback
from .request import Request
from .roles import Graders, Policy, Reader, Recorder, Seen

POLICY = "policy"  # whose faults these are, beside the drafters
PLAIN = Arm("none", 0)
UNDECIDED = Decision(-1)


class Guarded:
    """Asks a policy and its recorder, and counts in `faults` how often one of them raised.

    Each method that a round waits for returns what went wrong as its last value, in one line; "" where all is
    well. What goes wrong at the beginning or end of a text is a warning.
    """

    def __init__(self, policy: Policy, recorder: Recorder, faults: MutableMapping[str, int]) -> None:
        self.policy, self.recorder, self.faults = policy, recorder, faults

    def choose(self, context: Context, rng: Random) -> tuple[Decision, Arm, str]:
        """The decision and its arm; `UNDECIDED`, and no draft, where the policy raises."""
        try:
            decision = self.policy.choose(context, rng)
            return decision, self.policy.arms[decision.arm], ""
        except Exception as error:
            return UNDECIDED, PLAIN, self._blame(error)

    def grade(self, batch: Sequence[Seen], graders: Graders) -> tuple[Sequence[Feedback], str]:
        """What the recorder makes of some rounds."""
        try:
            return (self.recorder.add(batch, graders) if batch else ()), ""
        except Exception as error:
            return (), self._blame(error)

    def learn(self, feedback: Iterable[Feedback]) -> str:
        """Tell the policy; what one piece of feedback breaks does not keep the next from it."""
        said = ""
        for known in feedback:
            try:
                self.policy.learn(known)
            except Exception as error:
                said = said or self._blame(error)
        return said

    def open(self, request: Request) -> None:
        """A policy that reads the text is shown it."""
        if isinstance(self.policy, Reader):
            with self._warned():
                self.policy.open(request.id, request.tokens)

    def close(self, request: Request) -> None:
        """A text has ended: what was still to be learnt from it, and its end."""
        with self._warned():
            for known in self.recorder.close(request):
                self.policy.learn(known)
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
