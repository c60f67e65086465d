"""The requests that are decoded together: they join, are parked, continue and leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random

from ..errors import UserError
from .guarded import Guarded
from .lock import OneAtATime
from .request import Request
from .roles import Target
from .sampling import Sampling
from .team import Team
from .turn import ERROR, Turn


class Batch:
    """Opens and closes requests for the target, the drafters and the policy together.

    `open` maps the ids of the requests in progress to the requests, in the order of arrival. `parked` holds
    those whose text has ended and that can be extended. Any thread may call any method: calls take turns.
    """

    def __init__(self, target: Target, team: Team, guarded: Guarded, seed: int) -> None:
        self.target, self.team, self.guarded, self.seed = target, team, guarded, seed
        self.open: dict[int, Request] = team.open
        self.parked: dict[int, Request] = {}
        self.lock = OneAtATime()
        self._ids = count()
        self._leaving: list[Request] | None = None  # those closed within a step; None between steps

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults so far, by drafter, and of the policy."""
        return self.team.faults

    def add(self, tokens: Sequence[int], sampling: Sampling | None = None, *, keep: bool = False) -> Request:
        """Open a request; it joins the batch at the next step. With `keep` it is parked when its text ends.

        Raises:
            UserError: the prompt is empty or leaves no room in the target's context window.
        """
        sampling = sampling or Sampling()
        self.check(len(tokens))
        with self.lock:
            request = Request(next(self._ids), [], 0, sampling, Random(), Random(), keep=keep)
            self.target.open(request)
            self._begin(request, tokens, sampling)
            return request

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

    def check(self, length: int) -> None:
        """Check that a prompt of `length` tokens can be decoded.

        Raises:
            UserError: it is empty or leaves no room in the target's context window.
        """
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length >= self.target.max_length:
            raise UserError(
                f"the prompt has {length} tokens and the target's window {self.target.max_length}: "
                "shorten the prompt"
            )

    def _enter(self, requests: Iterable[Request] | None) -> list[Turn]:
        """Begin a step: a turn for each open request, or for each of `requests`."""
        if self._leaving is not None:
            raise RuntimeError("a step within a step: a processor must not run the decoder it serves")
        only = None if requests is None else {request.id for request in requests}
        turns = [Turn(r, len(r.tokens)) for r in self.open.values() if only is None or r.id in only]
        self._leaving = []  # last: what is no request raises above, and leaves no step begun
        return turns

    def _leave(self) -> None:
        """End a step: close the requests that were closed within it."""
        leaving, self._leaving = self._leaving or (), None
        for request in leaving:
            self.close(request)

    def _begin(self, request: Request, tokens: Sequence[int], sampling: Sampling) -> None:
        room = self.target.max_length - len(request.tokens) - len(tokens)
        fitting = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        seed = f"{self.seed} {request.id}" if sampling.seed is None else f"{sampling.seed}"
        request.begin(tokens, fitting, seed)
        request.out |= self.team.broken
        self.team.observe(request)
        self.guarded.open(request)
        self.open[request.id] = request

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        self.guarded.close(request)
        if request.keep and request.finish_reason != ERROR:
            self.parked[request.id] = request
        else:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self.target.close(request)
        self.team.close(request)
