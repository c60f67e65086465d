"""The loop for engines that write the text themselves and ask for drafts between their steps.

The engine verifies drafts by its own rules, so the text is the engine's own whatever is drafted. It returns
tokens but no distributions, so every draft is deterministic, and a policy learns from the text alone: a
drafter was correct if the text continued as it would have drafted. With greedy decoding this is exact; with
sampling each token is one sample of the target's distribution, so each count is unbiased.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import nan
from random import Random
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from ..build import assemble
from ..core.arms import Arm
from ..core.drafter_pool import DrafterPool
from ..core.drafts import EMPTY, Draft, Verdict
from ..core.fault_barrier import UNDECIDED, FaultBarrier
from ..core.outcomes import Feedback, Outcome, RoundCost
from ..core.request import Request
from ..core.request_round import RequestRound, decide, draft
from ..core.roles import Drafter, Policy
from ..core.sampling import Sampling
from ..drafters.names import check_drafters
from ..errors import UserError
from ..policies.catalogue import Method
from ..specs import DrafterSpec, parse_policy

GREEDY = Sampling(max_new_tokens=1)  # drafters are asked for their most likely tokens


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one request after an engine's step, identified by the engine's `key`.

    `new` are the tokens that the step wrote, the last of `length` in all; `text` returns the tokens from a
    position on. `prompt` is the length of the prompt and `room` how many tokens may still follow. `verified`
    is how many drafted tokens the step verified (-1: all that were proposed), `ends` the tokens that end a
    text, and `overlaps` the target's raw probabilities of the drafted tokens, if available.
    """

    key: Hashable
    length: int
    new: Sequence[int]
    text: Callable[[int], list[int]]
    prompt: int
    room: int
    verified: int = -1
    ends: frozenset[int] = frozenset()
    overlaps: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class TextScores:
    """Target scores derived from the text: at each position, the token that was written has probability 1."""

    draft: Draft
    tokens: Sequence[int]
    raw: Sequence[float] = ()

    def choice(self, node: int) -> int:
        """Return the token that was written."""
        return self.tokens[node + 1]

    def prob(self, node: int) -> float:
        """Return 1 if the drafted token was written."""
        return float(self.draft.tokens[node] == self.tokens[node])

    def residual(self, node: int) -> int:
        """Return the token that was written instead."""
        return self.tokens[node]

    def logprob(self, node: int, token: int) -> float:
        """Return NaN: it is unknown."""
        return nan

    def chance(self, node: int, token: int) -> float:
        """Return 1 for the token that was written."""
        return float(self.tokens[node + 1] == token)

    def distributions(self, nodes: Sequence[int]) -> Any:
        """Return None: the rows are one-hot, and no caller needs them."""
        return None

    def overlaps(self) -> Sequence[float]:
        """Return the target's raw probability of each drafted token; if unknown, 1 if it was accepted."""
        if self.raw:
            return self.raw
        drafted = self.draft.tokens
        wrong = (at for at, pair in enumerate(zip(drafted, self.tokens, strict=False)) if pair[0] != pair[1])
        accepted = next(wrong, min(len(drafted), len(self.tokens)))
        return [1.0] * accepted + [0.0] * (len(drafted) - accepted)


@dataclass(slots=True)
class Tally:
    """Counts over all requests: of rounds by arm, of drafts and tokens by drafter, and of seconds.

    Accepted tokens exclude those beyond the end of a text. `overhead` is the time for deciding, learning and
    bookkeeping, without the drafters' own time.
    """

    arms: Sequence[Arm]
    rounds: int = 0
    tokens: int = 0
    steps: int = 0
    overhead: float = 0.0
    pulls: Counter[str] = field(default_factory=Counter)
    by_drafter: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome, written: int) -> None:
        """Count one round, which wrote `written` tokens."""
        self.rounds += 1
        self.tokens += written
        if outcome.arm < 0:  # the policy raised
            return
        arm = self.arms[outcome.arm]
        self.pulls[arm.name] += 1
        if outcome.drafted:
            self.by_drafter[arm.drafter, "num_drafts"] += 1
            self.by_drafter[arm.drafter, "num_draft_tokens"] += outcome.drafted
            self.by_drafter[arm.drafter, "num_accepted_tokens"] += min(outcome.accepted, written)

    def as_dict(self, faults: Mapping[str, int]) -> dict[str, Any]:
        """Return all counts, for JSON, under vLLM's metric names if there is one; faults by drafter."""
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        return {
            "num_steps": self.steps,
            "num_rounds": self.rounds,
            "num_tokens": self.tokens,
            "overhead_seconds": self.overhead,
            "arms": dict(self.pulls),
            "drafters": {
                drafter: {name: self.by_drafter[drafter, name] for name in names} | {"num_faults": number}
                for drafter, number in faults.items()
            },
        }


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
        check_chains(method.policy, drafters)
        self.policy, self.recorder, self.rng = method.policy, method.recorder, Random(seed)
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

    def step(
        self, rows: Sequence[Row], is_alive: Callable[[Hashable], bool] | None = None
    ) -> list[list[int]]:
        """Return a draft for each row, empty if drafting does not pay; call it after every engine step."""
        start = perf_counter()
        seconds, before = start - self._ended, self._drafting + self.pool.graded_seconds
        self._close_missing(rows, is_alive)
        live = [row for row in rows if row.new]
        is_steady = all(row.new and row.key in self._latest and self._continues(row) for row in rows)
        self._learn(self._match(live, seconds if rows and is_steady else nan))
        requests = [self._open(row) for row in live]
        drafts = self._draft([request for request in requests if not request.done])
        for request in requests:
            if request.done:
                self._end(request)
        self._latest = frozenset(row.key for row in live)
        self._ended = perf_counter()
        drafting = self._drafting + self.pool.graded_seconds - before
        self.tally.steps += 1
        self.tally.overhead += self._ended - start - drafting
        return [drafts.get(row.key, []) for row in rows]

    def key(self, request: int) -> Hashable:
        """Return the engine's key of an open request, by its id here."""
        return self._keys[request]

    def totals(self) -> dict[str, Any]:
        """Return the counts by drafter since the start, for JSON."""
        return self.tally.as_dict(self.pool.faults)

    def close(self) -> None:
        """Close all requests."""
        for request in list(self.open.values()):
            self._abandon(request)

    # -- outcomes of the step ----------------------------------------------------------------------------

    def _continues(self, row: Row) -> bool:
        """Return whether what the step wrote is all that a request's known text lacks."""
        request = self._requests.get(row.key)
        return request is not None and len(request.tokens) + len(row.new) == row.length

    def _match(self, rows: Sequence[Row], seconds: float) -> list[RequestRound]:
        """Match the drafts with the tokens that this step wrote, in `seconds` (NaN: unknown).

        A row whose text does not continue its known text, for example after a lost cache, starts again.
        """
        matched: list[tuple[Row, RequestRound, Draft]] = []
        for row in rows:
            request = self._requests.get(row.key)
            if request is None:
                continue
            if request.id in self._rounds and self._continues(row):
                round = self._rounds.pop(request.id)
                matched.append((row, round, verified_part(row, round.draft)))
            else:
                self._abandon(request)
        tokens = len(rows) + sum(len(part.tokens) for *_, part in matched)
        for row, round, part in matched:
            self._score(row, round, part, RoundCost(round.draft_seconds, seconds, tokens, len(rows)))
        if seconds == seconds:
            self.pool.record_pass(seconds)
        return [round for _, round, _ in matched]

    def _score(self, row: Row, round: RequestRound, part: Draft, cost: RoundCost) -> None:
        is_partial = len(part.tokens) < len(round.draft.tokens)  # the engine had no room for the whole draft
        round.draft, round.tokens = part, self._append(round.request, row)
        round.verdict = Verdict(tuple(range(min(len(row.new) - 1, len(part.tokens)))), row.new[-1])
        round.scores = TextScores(part, row.new, row.overlaps[: len(part.tokens)])
        overlap = "overlap" in self.recorder.reads
        round.score(cost, timed=cost.target == cost.target, overlap=overlap, is_partial=is_partial)

    def _append(self, request: Request, row: Row) -> tuple[int, ...]:
        """Append what the step wrote, cut at the end of the text."""
        new = tuple(row.new)
        end = next((i for i, token in enumerate(new) if token in row.ends), None)
        if end is not None:
            new, request.done, request.finish_reason = new[: end + 1], True, "eos"
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
            self._observe(round.request)
            if round.record:
                self.tally.add(round.record.outcome, len(round.tokens))

    # -- new drafts --------------------------------------------------------------------------------------

    def _open(self, row: Row) -> Request:
        request = self._requests.get(row.key)
        if request is None:
            number = next(self._ids)
            request = Request(number, row.text(0), row.prompt, GREEDY, Random(number), Random(number))
            request.disabled |= self.pool.broken
            self._requests[row.key] = self.open[number] = request
            self._keys[number] = row.key
            self._observe(request)
            self.barrier.open(request)
            request.done = bool(row.ends) and request.tokens[-1] in row.ends
        room = max(1, request.position + row.room)
        if request.sampling.max_new_tokens != room:
            request.sampling = Sampling(max_new_tokens=room)
        request.done = request.done or row.room <= 0
        return request

    def _observe(self, request: Request) -> None:
        """Show the drafters the new text; the time that this takes is counted as theirs."""
        start = perf_counter()
        self.pool.observe(request)
        self._drafting += perf_counter() - start

    def _draft(self, requests: Sequence[Request]) -> dict[Hashable, list[int]]:
        """Choose an arm for every request and draft for all of them, one call per drafter."""
        rounds = [RequestRound(request, len(request.tokens)) for request in requests]
        decide(rounds, self.pool, self.barrier, self.rng)
        draft(rounds, self.pool, deterministic=True)
        for round in rounds:
            self._drafting += round.draft_seconds
            self._rounds[round.request.id] = round
        return {self._keys[round.request.id]: list(round.draft.tokens) for round in rounds}

    # -- ends --------------------------------------------------------------------------------------------

    def _close_missing(self, rows: Sequence[Row], is_alive: Callable[[Hashable], bool] | None) -> None:
        """Close the requests that have ended, and drop decisions that were never used."""
        present = {row.key for row in rows}
        for key in [key for key in self._requests if key not in present]:
            if is_alive is None or not is_alive(key):
                self._abandon(self._requests[key])

    def _abandon(self, request: Request) -> None:
        """Close a request; the policy uncounts its decision in flight."""
        round = self._rounds.pop(request.id, None)
        if round is not None and round.decision is not UNDECIDED:
            self.barrier.learn([Feedback(request.id, round.decision)])
        self._end(request)

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        self.barrier.close(request)
        self.pool.close(request)
        del self._requests[self._keys.pop(request.id)]


def build_follower(
    specs: Sequence[DrafterSpec],
    policy: str,
    *,
    vocab_size: int,
    max_length: int,
    tokenizer: Any,
    target: str,
    seed: int,
) -> Follower:
    """Return a follower for drafters and a policy by name, checked against a `target` of this size and name.

    Raises:
        UserError: an unknown name, or parts that do not fit together.
    """
    check_drafters(specs)
    engine: Any = SimpleNamespace(vocab_size=vocab_size, max_length=max_length)
    chosen = parse_policy(policy) if policy else None
    parts = assemble(specs, chosen, engine, tokenizer, target)
    return Follower(parts.team, parts.method, vocab_size=vocab_size, seed=seed)


def verified_part(row: Row, draft: Draft) -> Draft:
    """Return the part of a draft that the engine verified."""
    n = row.verified
    if n < 0 or n >= len(draft.tokens):
        return draft
    return Draft.chain(draft.tokens[:n], probs=draft.probs[:n], signals=draft.signals[:n]) if n else EMPTY


def check_chains(policy: Policy, drafters: Collection[str]) -> None:
    """Reject a policy that drafts trees, or has an arm of a missing drafter.

    One that has chains of the same drafters, too, asks whether trees can be verified (`Graders`).
    """
    chains = {arm.drafter for arm in policy.arms if arm.width == 1}
    for arm in policy.arms:
        is_missing = arm.length and arm.drafter not in drafters
        if is_missing or (arm.width > 1 and arm.drafter not in chains):
            raise UserError(
                f"the arm {arm.name} drafts trees, and this engine verifies chains: name another policy"
            )
