"""A lock whose holders take turns. Standard library only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident


class OneAtATime:
    """A lock whose holders take turns: whoever waits longest is next.

    A plain lock goes on and on to the thread that has just given it back.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._queue: deque[object] = deque()
        self._holder = 0

    @property
    def mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == get_ident()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it within the block; inside another such block of the same thread this changes nothing."""
        if self.mine:
            yield
            return
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: not self._holder and self._queue[0] is ticket)
            except BaseException:
                self._queue.remove(ticket)
                self._changed.notify_all()
                raise
            self._queue.popleft()
            self._holder = get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._holder = 0
                self._changed.notify_all()
