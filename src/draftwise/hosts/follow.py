"""The loop for engines that write the text themselves and ask for drafts between their steps.

The engine verifies drafts by its own rules, so the text is the engine's own whatever is drafted. It returns
tokens but no distributions, so every draft is picked (never sampled), and a policy learns from the text
alone: a drafter was correct if the text continued as it would have drafted. With greedy decoding this is
exact; with sampling each token is one sample of the target's distribution, so each count is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from math import nan
from random import Random
from time import perf_counter
from typing import Any

from ..core.drafter_pool import DrafterPool
from ..core.drafts import Draft, Verdict
from ..core.fault_barrier import UNDECIDED, FaultBarrier
from ..core.outcomes import Feedback, RoundCost
from ..core.request import Request
from ..core.request_round import RequestRound, decide, draft
from ..core.roles import Drafter
from ..core.sampling import Sampling
from ..policies.catalogue import Method
from .engine import Row, Written, chains_only, verified
from .tally import Tally

GREEDY = Sampling(max_new_tokens=1)  # drafters are asked for their most likely tokens


class Follower:
    """Decides, drafts and learns for an engine that writes the text itself.

    `step` takes the requests of the engine's last step and returns a draft for each; `totals` has the counts
    since the start.

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
        max_faults: int = 3,
        slow_seconds: float = 5.0,
    ) -> None:
        chains_only(method.policy, drafters)
        self.policy, self.recorder = method.policy, method.recorder
        self.rng = Random(seed)
        self.pool = DrafterPool(
            drafters, vocab_size=vocab_size, max_faults=max_faults, slow_seconds=slow_seconds
        )
        self.open = self.pool.open
        self.barrier = FaultBarrier(method.policy, method.recorder, self.pool.names, self.pool.faults)
        self.tally = Tally(self.policy.arms)
        self._requests: dict[Hashable, Request] = {}
        self._keys: dict[int, Hashable] = {}
        self._rounds: dict[int, RequestRound] = {}
        self._latest: frozenset[Hashable] = frozenset()
        self._ids = count()
        self._ended = self._drafting = 0.0

    def step(self, rows: Sequence[Row], alive: Callable[[Hashable], bool] | None = None) -> list[list[int]]:
        """A draft for each row, empty if drafting does not pay. Call it once after every engine step."""
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
        """Show the drafters the new text; the time that this takes is counted as theirs."""
        start = perf_counter()
        self.pool.observe(request)
        self._drafting += perf_counter() - start

    def _drafters_seconds(self) -> float:
        return self._drafting + self.pool.graded_seconds

    # -- outcomes of the step ----------------------------------------------------------------------------

    def _follows(self, row: Row) -> bool:
        """Whether a row continues from the previous step, without any step in between."""
        request = self._requests.get(row.key)
        return (
            row.key in self._latest
            and request is not None
            and len(request.tokens) + len(row.new) == row.length
        )

    def _settle(self, rows: Sequence[Row], seconds: float) -> list[RequestRound]:
        """Match the drafts with the tokens that this step wrote, in `seconds` (NaN: unknown).

        A row whose text does not continue its known text, for example after a lost cache, starts again.
        """
        known: list[tuple[Row, RequestRound]] = []
        for row in rows:
            request = self._requests.get(row.key)
            if request is not None:
                round = self._rounds.pop(request.id, None)
                if round is None or len(request.tokens) + len(row.new) != row.length:
                    self._abandon(request, round)
                else:
                    known.append((row, round))
        parts = [verified(row, round.draft) for row, round in known]
        tokens = len(rows) + sum(len(part.tokens) for part in parts)
        for (row, round), part in zip(known, parts, strict=True):
            self._look(row, round, part, RoundCost(round.draft_seconds, seconds, tokens, len(rows)))
        if seconds == seconds:
            self.pool.record_pass(seconds)
        return [round for _, round in known]

    def _look(self, row: Row, round: RequestRound, part: Draft, cost: RoundCost) -> None:
        """The outcome of the part of a draft that the step verified."""
        cut = len(part.tokens) < len(round.draft.tokens)  # the engine had no room for the whole draft
        round.draft, round.tokens = part, self._write(round.request, row)
        accepted = min(len(row.new) - 1, len(part.tokens))
        round.verdict = Verdict(tuple(range(accepted)), row.new[-1])
        round.scores = Written(part, row.new, row.overlaps[: len(part.tokens)])
        overlap = "overlap" in self.recorder.reads
        round.score(cost, timed=cost.target == cost.target, overlap=overlap, cut=cut)

    def _write(self, request: Request, row: Row) -> tuple[int, ...]:
        """Append what the step wrote, cut at the end of the text."""
        new = tuple(row.new)
        if row.ends:
            for i, token in enumerate(new):
                if token in row.ends:
                    new, request.done, request.finish_reason = new[: i + 1], True, "eos"
                    break
        if len(new) >= request.remaining and not request.done:
            request.done, request.finish_reason = True, "length"
        request.tokens += new
        return new

    def _learn(self, rounds: Sequence[RequestRound]) -> None:
        decided = [round.record for round in rounds if round.record and round.decision is not UNDECIDED]
        feedback, _ = self.barrier.grade(decided, self.pool)  # errors are counted in the totals
        self.barrier.learn(feedback)
        for round in rounds:
            round.request.last_accepted = len(round.verdict.path)
            round.request.rounds += 1
            self._show(round.request)
            if round.record:
                self.tally.add(round.record.outcome, len(round.tokens))

    # -- new drafts --------------------------------------------------------------------------------------

    def _meet(self, row: Row) -> Request:
        """The request of a row; opened if it is new."""
        request = self._requests.get(row.key)
        if request is None:
            at = next(self._ids)
            request = Request(at, row.text(0), row.prompt, GREEDY, Random(at), Random(at))
            request.disabled |= self.pool.broken
            self._requests[row.key] = self.open[at] = request
            self._keys[at] = row.key
            self._show(request)
            self.barrier.open(request)
            request.done = bool(row.ends) and request.tokens[-1] in row.ends
        room = max(1, request.position + row.room)
        if request.sampling.max_new_tokens != room:
            request.sampling = Sampling(max_new_tokens=room)
        request.done = request.done or row.room <= 0
        return request

    def _draft(self, requests: Sequence[Request]) -> dict[Hashable, list[int]]:
        """Choose an arm for every request and draft for all of them, one call per drafter."""
        rounds = [RequestRound(request, len(request.tokens)) for request in requests]
        decide(rounds, self.pool, self.barrier, self.rng)
        draft(rounds, self.pool, deterministic=True)
        for round in rounds:
            self._drafting += round.draft_seconds
            self._rounds[round.request.id] = round
        return {self._keys[round.request.id]: list(round.draft.tokens) for round in rounds}

    def totals(self) -> dict[str, Any]:
        """Counts by drafter since the start, for JSON."""
        return self.tally.as_dict(self.pool.faults)

    # -- ends --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all requests."""
        for request in list(self.open.values()):
            self._abandon(request, self._rounds.pop(request.id, None))

    def _leave(self, rows: Sequence[Row], alive: Callable[[Hashable], bool] | None) -> None:
        """Close the requests that have ended, and drop decisions that were never used."""
        here = {row.key for row in rows}
        for key in [key for key in self._requests if key not in here]:
            request = self._requests[key]
            if alive is None or not alive(key):
                self._abandon(request, self._rounds.pop(request.id, None))

    def _abandon(self, request: Request, round: RequestRound | None) -> None:
        self._abort(request, round)
        self._end(request)

    def _abort(self, request: Request, round: RequestRound | None) -> None:
        if round is not None and round.decision is not UNDECIDED:
            self.barrier.learn([Feedback(request.id, round.decision)])

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        del self._requests[self._keys.pop(request.id)]
        self.barrier.close(request)
        self.pool.close(request)
