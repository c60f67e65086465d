"""Decide, draft, verify, accept, learn: the whole library in one file.

    loop = Loop(target, drafters, policy, recorder)
    for round in loop.run([prompt], Sampling(max_new_tokens=256)):
        print(round.tokens)

`step` runs one round for every open request: each gets its own decision, every drafter is called once
for all its requests, and the target is called once for everyone. Plain decoding is an empty draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import nan
from random import Random
from time import perf_counter

from .accept import accept, block
from .errors import UserError
from .roles import Drafter, Policy, Reader, Recorder, Scores, Seen, Target
from .team import Team
from .types import (
    Context,
    Decision,
    Draft,
    Feedback,
    Job,
    Outcome,
    Request,
    Round,
    Sampling,
    Seconds,
    Spent,
    Verdict,
)


class Loop:
    """Writes the target's text for any number of requests, drafted as the policy decides.

    A drafter that raises or breaks its contract is out of the request it failed in, and after `strikes`
    faults out of use altogether; a draft is too slow when it takes more than `slow_seconds` and twenty
    mean target passes. The text is unaffected.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        policy: Policy,
        recorder: Recorder,
        *,
        seed: int = 0,
        strikes: int = 3,
        slow_seconds: float = 5.0,
    ) -> None:
        self.target, self.policy, self.recorder = target, policy, recorder
        self.seed, self.slow_seconds = seed, slow_seconds
        self.rng = Random(seed)
        self.open: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        self.team = Team(drafters, self.open, vocab_size=target.vocab_size, strikes=strikes)
        self._ids = count()
        self._pass_seconds = 0.0

    @property
    def faults(self) -> Mapping[str, int]:
        """How often each drafter has failed."""
        return self.team.faults

    # -- requests ---------------------------------------------------------------------------------

    def add(self, tokens: Sequence[int], sampling: Sampling | None = None, *, keep: bool = False) -> Request:
        """Open a request; it joins the batch at the next step. `keep` parks it when its text ends.

        Raises:
            UserError: the prompt is empty or leaves no room in the target's window.
        """
        sampling = sampling or Sampling()
        self._check_room(len(tokens))
        at = next(self._ids)
        request = Request(at, [], 0, sampling, Random(), Random(), keep=keep)
        self.target.open(request)
        self._begin(request, tokens, sampling)
        return request

    def extend(self, request: Request, tokens: Sequence[int], sampling: Sampling | None = None) -> None:
        """Go on with a parked request: `tokens` follow its text, and a new answer starts after them."""
        if request.id not in self.parked:
            raise ValueError(
                f"request {request.id} is not parked: add it with keep=True and let it end first"
            )
        self._check_room(len(request.tokens) + len(tokens))
        del self.parked[request.id]
        self._begin(request, tokens, sampling or request.sampling)

    def close(self, request: Request) -> None:
        """Forget a request at once, finished or not."""
        if request.id in self.open:
            request.keep = False
            self._end(request)
        elif self.parked.pop(request.id, None) is not None:
            self._forget(request)

    def run(self, prompts: Iterable[Sequence[int]], sampling: Sampling, *, batch: int = 1) -> Iterator[Round]:
        """Decode every prompt, at most `batch` at a time; the next one joins as soon as one has left."""
        waiting = iter(prompts)
        while True:
            while len(self.open) < batch and (prompt := next(waiting, None)) is not None:
                self.add(prompt, sampling)
            if not self.open:
                return
            yield from self.step()

    # -- one round --------------------------------------------------------------------------------

    def step(self) -> list[Round]:
        """One round for every open request, in the order in which they were added."""
        requests = list(self.open.values())
        if not requests:
            return []
        n = len(requests)
        start = perf_counter()
        decisions = [self.policy.choose(self._context(r, n), self.rng) for r in requests]
        chosen = perf_counter()
        drafts, draft_seconds = self._draft(requests, decisions)
        drafted = perf_counter()
        scores = self.target.verify(list(zip(requests, drafts, strict=True)))
        verified = perf_counter()
        verdicts = [accept(d, s, r.rng) for r, d, s in zip(requests, drafts, scores, strict=True)]
        written = [self._write(r, d, v) for r, d, v in zip(requests, drafts, verdicts, strict=True)]
        self.target.commit(list(zip(requests, drafts, verdicts, strict=True)))
        accepted = perf_counter()

        spent = self._charge(requests, drafts, draft_seconds, verified - drafted)
        timed = all(r.rounds for r in requests)  # a pass that also read a prompt says nothing about any arm
        parts = zip(requests, decisions, drafts, scores, verdicts, written, spent, strict=True)
        seen = [self._seen(*part, timed=timed) for part in parts]
        feedback = self.recorder.add(seen, self.team)
        graded = perf_counter()
        self._learn(feedback, seen)
        learnt = perf_counter()
        shared = (chosen - start, accepted - verified, graded - accepted, learnt - graded)
        choose, judge, grade, learn = (x / n for x in shared)
        rounds = [
            self._record(
                one, Seconds(choose, cost.draft, cost.share(1 + one.outcome.drafted), judge, grade, learn)
            )
            for one, cost in zip(seen, spent, strict=True)
        ]
        for request in requests:
            if request.done:
                self._end(request)
        return rounds

    def _charge(
        self, requests: Sequence[Request], drafts: Sequence[Draft], drafting: list[float], seconds: float
    ) -> list[Spent]:
        """What each request's round cost, of which the target pass is everyone's."""
        self._pass_seconds += 0.1 * (seconds - self._pass_seconds)
        tokens = len(requests) + sum(len(d.tokens) for d in drafts)
        return [Spent(mine, seconds, tokens, len(requests)) for mine in drafting]

    def _context(self, request: Request, batch_size: int) -> Context:
        hints = self.team.hints(request) if self.policy.reads_hints else {}
        request.waits = self.team.waiting(request)
        return Context(
            request.id,
            batch_size,
            request.position,
            request.last_accepted,
            hints,
            request.waits.union(request.out),
            len(request.tokens),
        )

    def _draft(
        self, requests: Sequence[Request], decisions: Sequence[Decision]
    ) -> tuple[list[Draft], list[float]]:
        """One call per drafter for all its requests: drafts and seconds, by place in the batch."""
        jobs: dict[str, list[tuple[int, Job]]] = {}
        rows = "rows" in self.recorder.reads
        for i, (request, decision) in enumerate(zip(requests, decisions, strict=True)):
            arm = self.policy.arms[decision.arm]
            length = min(arm.length, request.room - 1)
            if length > 0 and arm.drafter not in request.out and arm.drafter not in request.waits:
                job = Job(request, length, decision.stops, arm.width, rows)
                jobs.setdefault(arm.drafter, []).append((i, job))
        self.team.patience = max(self.slow_seconds, 20 * self._pass_seconds)
        return self.team.draft(jobs, len(requests))

    def _write(self, request: Request, draft: Draft, verdict: Verdict) -> tuple[int, ...]:
        """Append what was verified, cut where the text ends, and say whether it does."""
        new = [draft.tokens[i] for i in verdict.path]
        new.append(verdict.token)
        sampling = request.sampling
        start = len(request.tokens)
        keep = len(new)
        if keep >= request.room:
            keep, request.done, request.finish_reason = request.room, True, "length"
        if sampling.eos:
            for i, token in enumerate(new[:keep]):
                if token in sampling.eos:
                    keep, request.done, request.finish_reason = i + 1, True, "eos"
                    break
        request.tokens += new[:keep]
        if sampling.ends is not None and (cut := sampling.ends(request.tokens, start)) is not None:
            keep, request.done, request.finish_reason = cut, True, "stop"
            del request.tokens[start + cut :]
        return tuple(new[:keep])

    def _seen(
        self,
        request: Request,
        decision: Decision,
        draft: Draft,
        scores: Scores,
        verdict: Verdict,
        new: tuple[int, ...],
        spent: Spent,
        *,
        timed: bool,
    ) -> Seen:
        """What the round showed, before the end of the text took its share of it.

        A draft that only the budget kept short, or that failed or could not yet be made, says nothing about
        its arm.
        """
        arm, drafted = self.policy.arms[decision.arm], len(draft.tokens)
        most = request.room - 1 + len(new)
        censored = arm.length > most <= drafted or arm.drafter in request.waits.union(request.out)
        overlaps: tuple[float, ...] = ()
        if "overlap" in self.recorder.reads and drafted:
            overlaps = block(draft, verdict.path, scores.overlaps())
        known = spent if timed else None
        seconds = known.draft + known.share(1 + drafted) if known else nan
        outcome = Outcome(
            decision.arm, len(verdict.path), drafted, seconds, censored, 0.0, overlaps, draft.signals, known
        )
        return Seen(request, decision, outcome, draft, new, (-1, *verdict.path)[: len(new)], scores)

    def _learn(self, feedback: Iterable[Feedback], batch: Sequence[Seen]) -> None:
        """Tell the policy what came of its decisions, and the drafters what was committed."""
        for known in feedback:
            self.policy.learn(known)
        for seen in batch:
            seen.request.last_accepted = seen.outcome.accepted
            seen.request.rounds += 1
            self.team.observe(seen.request)

    def _record(self, seen: Seen, seconds: Seconds) -> Round:
        request, outcome = seen.request, seen.outcome
        logprobs: tuple[float, ...] = ()
        if request.sampling.logprobs:
            pairs = zip(seen.nodes, seen.tokens, strict=True)
            logprobs = tuple(seen.scores.logprob(node, token) for node, token in pairs)
        return Round(
            request.id,
            seen.decision,
            self.policy.arms[outcome.arm],
            outcome.drafted,
            outcome.accepted,
            seen.tokens,
            min(outcome.accepted, len(seen.tokens)),
            seconds,
            request.done,
            request.finish_reason,
            self.team.trouble(request),
            logprobs,
        )

    # -- beginnings and ends -------------------------------------------------------------------------

    def _check_room(self, length: int) -> None:
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length >= self.target.max_length:
            raise UserError(
                f"the prompt has {length} tokens and the target's window {self.target.max_length}: "
                "shorten the prompt"
            )

    def _begin(self, request: Request, tokens: Sequence[int], sampling: Sampling) -> None:
        room = self.target.max_length - len(request.tokens) - len(tokens)
        request.sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        seed = f"{self.seed} {request.id}" if sampling.seed is None else f"{sampling.seed}"
        turn = len(request.tokens)
        request.rng.seed(f"accept {seed} {turn}")
        request.uniforms.seed(f"uniform {seed} {turn}")
        request.drawn = (-1, 0.0)
        request.done, request.finish_reason = False, ""
        request.rounds, request.last_accepted = 0, -1
        request.out |= self.team.broken
        request.tokens += tokens
        request.prompt_length = len(request.tokens)
        self.team.observe(request)
        if isinstance(self.policy, Reader):
            self.policy.open(request.id, request.tokens)
        self.open[request.id] = request

    def _end(self, request: Request) -> None:
        del self.open[request.id]
        for feedback in self.recorder.close(request):
            self.policy.learn(feedback)
        self.policy.close(request.id)
        if request.keep:
            self.parked[request.id] = request
        else:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self.target.close(request)
        self.team.close(request)
