"""A fair lock. Standard library only."""

from __future__ import annotations

from threading import Lock, get_ident


class OneAtATime:
    """A reentrant lock that a waiting thread gets before the thread that has just released it.

    A plain lock can be acquired by the same thread again and again while others wait.
    """

    def __init__(self) -> None:
        self._next, self._lock = Lock(), Lock()
        self._holder = self._depth = 0

    def __enter__(self) -> None:
        me = get_ident()
        if self._holder == me:
            self._depth += 1
            return
        with self._next:  # held by the next thread while it waits; all others queue behind it
            self._lock.acquire()
        self._holder = me

    def __exit__(self, *error: object) -> None:
        if self._depth:
            self._depth -= 1
        else:
            self._holder = 0
            self._lock.release()
