"""The requests that are decoded together: they join, are parked, continue and leave."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from threading import Lock, get_ident
from typing import NamedTuple
from warnings import warn

from ..errors import DraftwiseWarning, UserError
from .arms import Arm
from .drafter_pool import DrafterPool
from .drafts import Draft, Verdict
from .fault_barrier import FaultBarrier
from .request import ENDLESS, Request
from .request_round import ERROR, RequestRound
from .roles import Limited, Pieces, Ranked, Target
from .round import Tops
from .sampling import Sampling

PIECE = 64  # tokens of a text that are scored in one pass


class Scored(NamedTuple):
    """A token's log-probability under the raw softmax, and the most likely tokens in its place."""

    logprob: float
    tops: Tops


class Batch:
    """Opens and closes requests for the target, the drafters and the policy together.

    `open` maps the ids of the requests in progress to the requests, in the order of arrival. `parked` holds
    those whose text has ended and that can be extended. Any thread may call any method: calls take turns.
    """

    def __init__(self, target: Target, pool: DrafterPool, barrier: FaultBarrier, seed: int) -> None:
        self.target, self.pool, self.barrier, self.seed = target, pool, barrier, seed
        self.open: dict[int, Request] = pool.open
        self.parked: dict[int, Request] = {}
        self.lock = OneAtATime()
        self._ids, self._scoring = count(), set[int]()
        self._leaving: list[Request] | None = None  # those closed within a step; None between steps

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults so far, by drafter, and of the policy."""
        return self.pool.faults

    def add(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        keep: bool = False,
        without: Collection[str] = (),
        max_draft: int = ENDLESS,
        deterministic: bool = False,
        arm: Arm | None = None,
    ) -> Request:
        """Open a request; it joins the batch at the next step. With `keep` it is parked when its text ends.

        The drafters `without` do not draft for it, and no draft has more than `max_draft` tokens; the policy
        learns from its rounds all the same. With `deterministic` no draft is sampled: a sampled text then
        depends on its seed alone, whatever the policy decides. With an `arm` all rounds play it, and the
        policy neither decides nor learns.

        Raises:
            UserError: the prompt is empty or leaves no room in the target's context window, or there is no
                drafter of this arm.
        """
        sampling = sampling or Sampling()
        self.check(len(tokens))
        if arm is not None and arm.length and arm.drafter not in self.pool.names:
            raise UserError(f"arm={arm.name}: give one of {', '.join(self.pool.names) or 'no drafter'}")
        with self.lock:
            request = Request(next(self._ids), [], 0, sampling, Random(), Random(), keep=keep, arm=arm)
            request.disabled, request.max_draft = set(without), max_draft
            request.deterministic = deterministic
            self.target.open(request)
            self._begin(request, tokens, sampling)
            return request

    def read(self, request: Request) -> bool:
        """Let the target read one piece of an open request's prompt between steps; whether there is another.

        The request's next step reads what is left. Drafters read the text later, in `prepare`: without it
        models draft nothing for this request while others are open.
        """
        with self.lock:
            others = [other for other in self.open.values() if other is not request]
            if isinstance(self.target, Pieces) and self.target.read(request, others):
                return True
            self.pool.reading.begin(request)
            return False

    def prepare(self) -> bool:
        """Let a drafter read one piece of a text that the target has read; False if there is none to read."""
        with self.lock:
            return self.pool.prepare()

    def score(self, tokens: Sequence[int], top: int = 0) -> Generator[list[Scored], None, None]:
        """Return what the target thinks of each token of a text but the first, a piece at a time.

        The text is read like a draft that is accepted as a whole.
        """
        settings = Sampling(max_new_tokens=len(tokens))
        with self.lock:
            request = Request(next(self._ids), [tokens[0]], 1, settings, Random(), Random())
            self.target.open(request)
            self._scoring.add(request.id)
        try:
            while (at := len(request.tokens)) < len(tokens):
                with self.lock:
                    scores = self._scored(request, tokens[at : at + PIECE], top)
                yield scores
        finally:
            self.close(request)

    def _scored(self, request: Request, new: Sequence[int], top: int) -> list[Scored]:
        reach = self.target.reach(request) if isinstance(self.target, Limited) else len(new)
        draft = Draft.chain(new[: max(1, reach)])
        (scores,) = self.target.verify([(request, draft)])
        ranked = scores if top and isinstance(scores, Ranked) else None
        found = [
            Scored(scores.logprob(k - 1, token), ranked.top(k - 1, top) if ranked else ())
            for k, token in enumerate(draft.tokens)
        ]
        request.tokens += draft.tokens
        self.target.commit([(request, draft, Verdict(tuple(range(len(found) - 1)), draft.tokens[-1]))])
        return found

    def extend(self, request: Request, tokens: Sequence[int], sampling: Sampling | None = None) -> None:
        """Continue a parked request: append `tokens` to its text and start a new answer after them."""
        with self.lock:
            if request.id not in self.parked:
                raise ValueError(
                    f"request {request.id} is not parked: add it with keep=True and let it end first"
                )
            self.check(len(request.tokens) + len(tokens))
            del self.parked[request.id]
            self._begin(request, tokens, sampling or request.sampling)

    def close(self, request: Request) -> None:
        """Drop a request, finished or not: at once, or at the end of the step if called within one."""
        with self.lock:
            if self._leaving is not None:
                self._leaving.append(request)
            elif request.id in self.open:
                request.keep = False
                self._end(request)
            elif self.parked.pop(request.id, None) is not None:
                self._forget(request)
            elif request.id in self._scoring:  # no drafter knows it
                self._scoring.remove(request.id)
                self.target.close(request)

    def catch_up(self) -> None:
        """Let the policy learn from all rounds so far, as before its state is saved."""
        with self.lock:
            if fault := self.barrier.catch_up():
                warn(fault, DraftwiseWarning, stacklevel=2)

    def check(self, length: int) -> None:
        """Check that a prompt of `length` tokens can be decoded.

        Raises:
            UserError: it is empty or leaves no room in the target's context window.
        """
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length > self.target.max_length:
            raise UserError(
                f"the prompt has {length} tokens and the target's window {self.target.max_length}: "
                "shorten the prompt"
            )

    def _enter(self, requests: Iterable[Request] | None) -> list[RequestRound]:
        """Begin a step: a round for each open request, or for each of `requests`."""
        if self._leaving is not None:
            raise RuntimeError("a step within a step: a processor must not run the decoder it serves")
        only = None if requests is None else {request.id for request in requests}
        rounds = [RequestRound(r, len(r.tokens)) for r in self.open.values() if only is None or r.id in only]
        self._leaving = []  # last: what is no request raises above, and leaves no step begun
        return rounds

    def _leave(self) -> None:
        """End a step: close the requests that were closed within it."""
        leaving, self._leaving = self._leaving or (), None
        for request in leaving:
            self.close(request)

    def _begin(self, request: Request, tokens: Sequence[int], sampling: Sampling) -> None:
        # The last token of a text is never read.
        room = self.target.max_length + 1 - len(request.tokens) - len(tokens)
        fitting = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        seed = f"{self.seed} {request.id}" if sampling.seed is None else f"{sampling.seed}"
        request.begin(tokens, fitting, seed)
        request.disabled |= self.pool.broken
        try:
            self.pool.observe(request)
            self.barrier.open(request)
        except BaseException:  # an interrupt, or a warning where these are errors
            self._forget(request)
            raise
        self.open[request.id] = request

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        try:
            self.barrier.close(request)
        finally:  # it may warn, and warnings may be errors
            if request.keep and request.finish_reason != ERROR:
                self.parked[request.id] = request
            else:
                self._forget(request)

    def _forget(self, request: Request) -> None:
        try:
            self.target.close(request)
        finally:
            self.pool.close(request)


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
