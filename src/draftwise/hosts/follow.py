"""The loop inside out: an engine writes the text, and asks between its steps what to guess next.

The engine verifies what was guessed by its own rules; whatever is guessed, the text is the engine's own. It
hands out tokens and no laws, so every draft is picked (never sampled), and a policy learns from the text
alone: a drafter is right where the text went on as it would have drafted. That is exact where the engine is
greedy; where it samples, each token is one draw of the target's law, so every such count is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from math import nan
from random import Random
from time import perf_counter
from typing import Any

from ..core.arms import Context
from ..core.drafts import Draft, Job
from ..core.guarded import UNDECIDED, Guarded
from ..core.outcomes import Feedback, Outcome, Spent
from ..core.request import Request
from ..core.roles import Drafter, Seen
from ..core.sampling import Sampling
from ..core.team import Team
from ..policies.catalogue import Method
from .engine import Played, Row, Written, chains_only, verified
from .tally import Tally

GREEDY = Sampling(max_new_tokens=1)  # what is asked of drafters: their likeliest tokens


class Follower:
    """Decides, drafts and learns for an engine that writes by itself.

    `step` takes the requests of the engine's last step and gives a draft for each; `totals` says what came
    of it since the beginning.

    Raises:
        UserError: the policy drafts trees, which such an engine does not verify.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        method: Method,
        *,
        vocab_size: int,
        seed: int = 0,
        strikes: int = 3,
        slow_seconds: float = 5.0,
    ) -> None:
        chains_only(method.policy, drafters)
        self.policy, self.recorder = method.policy, method.recorder
        self.rng = Random(seed)
        self.open: dict[int, Request] = {}
        self.team = Team(
            drafters, self.open, vocab_size=vocab_size, strikes=strikes, slow_seconds=slow_seconds
        )
        self.guarded = Guarded(method.policy, method.recorder, self.team.faults)
        self.tally = Tally(self.policy.arms)
        self._requests: dict[Hashable, Request] = {}
        self._keys: dict[int, Hashable] = {}
        self._played: dict[int, Played] = {}
        self._latest: frozenset[Hashable] = frozenset()
        self._ids = count()
        self._ended = self._drafting = 0.0

    def step(self, rows: Sequence[Row], alive: Callable[[Hashable], bool] | None = None) -> list[list[int]]:
        """A draft for each row, empty where none is worth it. To be called once after every engine step."""
        began = perf_counter()
        seconds, before = began - self._ended, self._drafters_seconds()
        self._leave(rows, alive)
        live = [row for row in rows if row.new]
        steady = bool(live) and len(live) == len(rows) and all(self._follows(row) for row in live)
        self._learn(self._settle(live, seconds if steady else nan))
        going = [self._meet(row) for row in live]
        drafts = self._draft([request for request in going if not request.done])
        for request in going:
            if request.done:
                self._end(request)
        self._latest = frozenset(row.key for row in live)
        self._ended = perf_counter()
        self.tally.steps += 1
        self.tally.overhead += self._ended - began - (self._drafters_seconds() - before)
        return [drafts.get(row.key, []) for row in rows]

    def _show(self, request: Request) -> None:
        """Bring the drafters up to date; what they make of the text is their own time."""
        start = perf_counter()
        self.team.observe(request)
        self._drafting += perf_counter() - start

    def _drafters_seconds(self) -> float:
        return self._drafting + self.team.graded_seconds

    # -- what the step wrote -----------------------------------------------------------------------------

    def _follows(self, row: Row) -> bool:
        """Whether a row goes on from the step before this one, and from there alone."""
        request = self._requests.get(row.key)
        return (
            row.key in self._latest
            and request is not None
            and len(request.tokens) + len(row.new) == row.length
        )

    def _settle(self, rows: Sequence[Row], seconds: float) -> list[Seen]:
        """What became of the drafts that this step verified.

        A row whose text does not go on from what was known of it, as after the loss of a cache, starts anew.
        """
        known: list[tuple[Row, Request, Played]] = []
        for row in rows:
            request = self._requests.get(row.key)
            if request is not None:
                played = self._played.pop(request.id, None)
                if played is None or len(request.tokens) + len(row.new) != row.length:
                    self._abandon(request, played)
                else:
                    known.append((row, request, played))
        drafts = [verified(row, played.draft) for row, _, played in known]
        tokens = len(rows) + sum(len(draft.tokens) for draft in drafts)
        batch = []
        for (row, request, played), draft in zip(known, drafts, strict=True):
            spent = Spent(played.seconds, seconds, tokens, len(rows)) if seconds == seconds else None
            batch.append(self._seen(row, request, played, draft, spent))
        if seconds == seconds:
            self.team.took(seconds)
        return batch

    def _seen(self, row: Row, request: Request, played: Played, draft: Draft, spent: Spent | None) -> Seen:
        arm = played.arm
        accepted, drafted = min(len(row.new) - 1, len(draft.tokens)), len(draft.tokens)
        most = request.room - 1
        cut = drafted < len(played.draft.tokens)  # the engine had no room for all of it
        censored = cut or arm.length > most <= drafted or arm.drafter in request.out
        new = self._write(request, row)
        scores = Written(draft, row.new, row.overlaps[:drafted])
        overlaps: tuple[float, ...] = ()
        if "overlap" in self.recorder.reads and drafted:
            overlaps = tuple(scores.overlaps())
        seconds = spent.draft + spent.share(1 + drafted) if spent else nan
        outcome = Outcome(
            played.decision.arm, accepted, drafted, seconds, censored, 0.0, overlaps, draft.signals, spent
        )
        return Seen(request, played.decision, outcome, draft, new, tuple(range(-1, len(new) - 1)), scores)

    def _write(self, request: Request, row: Row) -> tuple[int, ...]:
        """Append what the step wrote, cut where the text ends."""
        new = tuple(row.new)
        if row.ends:
            for i, token in enumerate(new):
                if token in row.ends:
                    new, request.done, request.finish_reason = new[: i + 1], True, "eos"
                    break
        if len(new) >= request.room and not request.done:
            request.done, request.finish_reason = True, "length"
        request.tokens += new
        return new

    def _learn(self, batch: Sequence[Seen]) -> None:
        if not batch:
            return
        decided = [seen for seen in batch if seen.decision is not UNDECIDED]
        feedback, _ = self.guarded.grade(decided, self.team)  # what went wrong stands in the totals
        self.guarded.learn(feedback)
        for seen in batch:
            seen.request.last_accepted = seen.outcome.accepted
            seen.request.rounds += 1
            self._show(seen.request)
            self.tally.add(seen.outcome, len(seen.tokens))

    # -- what to guess next ------------------------------------------------------------------------------

    def _meet(self, row: Row) -> Request:
        """The request of a row, opened if it is new."""
        request = self._requests.get(row.key)
        if request is None:
            at = next(self._ids)
            request = Request(at, row.text(0), row.prompt, GREEDY, Random(at), Random(at))
            request.out |= self.team.broken
            self._requests[row.key] = self.open[at] = request
            self._keys[at] = row.key
            self._show(request)
            self.guarded.open(request)
            request.done = bool(row.ends) and request.tokens[-1] in row.ends
        room = max(1, request.position + row.room)
        if request.sampling.max_new_tokens != room:
            request.sampling = Sampling(max_new_tokens=room)
        request.done = request.done or row.room <= 0
        return request

    def _draft(self, requests: Sequence[Request]) -> dict[Hashable, list[int]]:
        """Choose for every request and draft for all of them, one call per drafter."""
        n = len(requests)
        chosen = [self.guarded.choose(self._context(r, n), self.rng) for r in requests]
        jobs: dict[str, list[tuple[int, Job]]] = {}
        for i, (request, (decision, arm, _)) in enumerate(zip(requests, chosen, strict=True)):
            length = min(arm.length, request.room - 1)
            if length > 0 and arm.drafter not in request.out:
                job = Job(request, length, decision.stops, picked=True)
                jobs.setdefault(arm.drafter, []).append((i, job))
        drafts, seconds = self.team.draft(jobs, n)
        self._drafting += sum(seconds)
        for request, (decision, arm, _), draft, spent in zip(requests, chosen, drafts, seconds, strict=True):
            self._played[request.id] = Played(decision, arm, draft, spent)
        return {self._keys[r.id]: list(draft.tokens) for r, draft in zip(requests, drafts, strict=True)}

    def _context(self, request: Request, batch_size: int) -> Context:
        hints = self.team.hints(request) if self.policy.reads_hints else {}
        return Context(
            request.id,
            batch_size,
            request.position,
            request.last_accepted,
            hints,
            frozenset(request.out),
            len(request.tokens),
        )

    def totals(self) -> dict[str, Any]:
        """Who drafted what so far, for JSON."""
        return self.tally.as_dict(self.team.faults)

    # -- ends --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Forget every request."""
        for request in list(self.open.values()):
            self._abandon(request, self._played.pop(request.id, None))

    def _leave(self, rows: Sequence[Row], alive: Callable[[Hashable], bool] | None) -> None:
        """Forget the requests that have ended, and those whose decision was never tried."""
        here = {row.key for row in rows}
        for key in [key for key in self._requests if key not in here]:
            request = self._requests[key]
            if alive is None or not alive(key):
                self._abandon(request, self._played.pop(request.id, None))

    def _abandon(self, request: Request, played: Played | None) -> None:
        self._abort(request, played)
        self._end(request)

    def _abort(self, request: Request, played: Played | None) -> None:
        if played is not None and played.decision is not UNDECIDED:
            self.guarded.learn([Feedback(request.id, played.decision)])

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        del self._requests[self._keys.pop(request.id)]
        self.guarded.close(request)
        self.team.close(request)
