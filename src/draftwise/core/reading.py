"""Which drafters read which texts between steps, so that a draft need not wait for a long prompt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .request import Request
from .roles import Drafter, Preparer

IDLE = 64  # steps after which a drafter that no decision names is out of use
TRIED = 16  # one text of so many is read by a drafter out of use, which may draft for it


class Reading:
    """What the drafters have still to read of the texts that are written together.

    A text begins as soon as the target has read it, and its drafters read in pieces while it is written;
    until then they are not ready for it. Where drafts do not pay, nothing is read for them: a drafter that no
    decision has named for `IDLE` steps reads one text in `TRIED` only, from which a policy learns that its
    drafts pay again. `open` maps ids to the requests in progress and is maintained by the loop.
    """

    def __init__(self, drafters: Mapping[str, Drafter], open: Mapping[int, Request]) -> None:
        self.preparers = {name: d for name, d in drafters.items() if isinstance(d, Preparer)}
        self.drafters, self.open, self.steps = drafters, open, 0
        self.named: dict[str, int] = {}  # the step that named it last
        self.unread: dict[int, dict[str, bool]] = {}  # by request: whether it is read in any case
        self.texts = 0

    def begin(self, request: Request) -> None:
        """The drafters read this text while it is written, if others are; alone it reads with its drafts."""
        if len(self.open) > 1 and request.max_draft and self.preparers:
            self.unread[request.id] = dict.fromkeys(self.preparers, self.texts % TRIED == 0)
            self.texts += 1

    def unread_by(self, request: Request) -> Collection[str]:
        """Return the drafters that have not read this text, and those that need one of them."""
        names = self.unread.get(request.id)
        if not names:
            return ()
        return [name for name in self.drafters if any(part in names for part in self._parts(name))]

    def next(self) -> tuple[str, Request] | None:
        """Return a drafter that is to read a piece now, and of which text; None if there is none."""
        for id, names in self.unread.items():
            if id in self.open:
                for name, tried in names.items():
                    if tried or self._used(name):
                        return name, self.open[id]
        return None

    def done(self, name: str, request: Request) -> None:
        """This drafter has read a text."""
        if (names := self.unread.get(request.id)) is not None:
            names.pop(name, None)
            if not names:
                del self.unread[request.id]

    def step(self, names: Iterable[str]) -> None:
        """The decisions of a step named these drafters."""
        self.steps += 1
        for name in names:
            for part in self._parts(name):
                self.named[part] = self.steps

    def close(self, request: Request) -> None:
        self.unread.pop(request.id, None)

    def _parts(self, name: str) -> Collection[str]:
        """Return the drafters that this one asks, or itself."""
        try:
            return tuple(getattr(self.drafters.get(name), "parts", None) or (name,))
        except Exception:  # another's property, or its type
            return (name,)

    def _used(self, name: str) -> bool:
        return len(self.open) == 1 or self.steps - self.named.get(name, 0) < IDLE
