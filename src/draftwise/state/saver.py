"""Saves while an engine runs: its steps do not wait for a disk."""

from __future__ import annotations

from threading import Thread

from ..errors import UserError
from .file import Found, Numbers, StateFile


class Saver:
    """Saves a policy's state from a thread of its own, and adds what others have saved to the policy.

    Call `start` and `finish` from the thread in which the policy learns.
    """

    def __init__(self, state: StateFile) -> None:
        self.state = state
        self.failed = False  # the last save; the state file has said why
        self._thread: Thread | None = None
        self._found: Found | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save has begun and `finish` has not seen its end."""
        return self._thread is not None

    def start(self) -> bool:
        """Begin to save; False while the last save has not finished."""
        if self._thread is not None:
            return False
        try:
            taken = self.state.taken()
        except UserError as error:
            self._fail(error)
            return True
        self._thread = Thread(target=self._exchange, args=(taken,), daemon=True, name="draftwise-state")
        self._thread.start()
        return True

    def finish(self) -> None:
        """Add what others have saved to the policy, if a save has ended."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self.state.adopt(self._found)

    def wait(self) -> None:
        """Finish a save that has begun, however long it takes."""
        if self._thread is not None:
            self._thread.join()
            self.finish()

    def end(self) -> None:
        """Save once more and wait for it."""
        self.wait()
        self.state.keep()

    def _exchange(self, taken: Numbers) -> None:
        self._found, self.failed = None, False
        try:
            self._found = self.state.exchange(taken)
        except UserError as error:
            self._fail(error)

    def _fail(self, error: UserError) -> None:
        self.failed = True
        self.state.complain(error)
