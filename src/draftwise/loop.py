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

from .accept import accept
from .errors import UserError
from .types import (
    Context,
    Decision,
    Draft,
    Drafter,
    Job,
    Outcome,
    Policy,
    Recorder,
    Request,
    Round,
    Sampling,
    Scores,
    Seconds,
    Target,
    Verdict,
)

EMPTY = Draft()


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
        self.target, self.drafters = target, dict(drafters)
        self.policy, self.recorder = policy, recorder
        self.seed, self.strikes, self.slow_seconds = seed, strikes, slow_seconds
        self.rng = Random(seed)
        self.open: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        self.faults: dict[str, int] = dict.fromkeys(self.drafters, 0)
        self.broken: set[str] = set()
        self._ids = count()
        self._pass_seconds = 0.0

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
        self.open.pop(request.id, None)
        self.parked.pop(request.id, None)
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
        drafts, draft_seconds, faults = self._draft(requests, decisions)
        drafted = perf_counter()
        scores = self.target.verify(list(zip(requests, drafts, strict=True)))
        verified = perf_counter()
        verdicts = [accept(d, s, r.rng) for r, d, s in zip(requests, drafts, scores, strict=True)]
        written = [self._write(r, d, v) for r, d, v in zip(requests, drafts, verdicts, strict=True)]
        self.target.commit(list(zip(requests, drafts, verdicts, strict=True)))
        accepted = perf_counter()

        fresh = any(r.rounds == 0 for r in requests)
        self._pass_seconds += 0.1 * (verified - drafted - self._pass_seconds)
        # A pass is charged by the tokens that each request put into it.
        per_token = (verified - drafted) / (n + sum(len(d.tokens) for d in drafts))
        rounds = []
        for i, request in enumerate(requests):
            verify = per_token * (1 + len(drafts[i].tokens))
            begun = perf_counter()
            fault = self._learn(
                request, decisions[i], drafts[i], verdicts[i], written[i], faults.get(i, ""),
                nan if fresh else draft_seconds[i] + verify,
            )  # fmt: skip
            arm, accepted_tokens = self.policy.arms[decisions[i].arm], len(verdicts[i].path)
            rounds.append(
                Round(
                    request.id,
                    decisions[i],
                    arm,
                    len(drafts[i].tokens),
                    accepted_tokens,
                    tuple(written[i]),
                    min(accepted_tokens, len(written[i])),
                    Seconds(
                        (chosen - start) / n,
                        draft_seconds[i],
                        verify,
                        (accepted - verified) / n,
                        perf_counter() - begun,
                    ),
                    request.done,
                    request.finish_reason,
                    fault,
                    _logprobs(scores[i], verdicts[i], written[i]) if request.sampling.logprobs else (),
                )
            )
        return rounds

    def _context(self, request: Request, batch_size: int) -> Context:
        hints = {}
        if self.policy.reads_hints:
            for name, drafter in self.drafters.items():
                if name not in request.out:
                    try:
                        hints[name] = drafter.hint(request)
                    except Exception as error:
                        self._fault(name, request, _said(error))
        return Context(
            request.id, batch_size, request.position, request.last_accepted, hints, frozenset(request.out)
        )

    def _draft(
        self, requests: Sequence[Request], decisions: Sequence[Decision]
    ) -> tuple[list[Draft], list[float], dict[int, str]]:
        """One call per drafter for all its requests: drafts, seconds, and what went wrong, by place in the batch.

        A faulty draft counts as an empty one.
        """
        drafts, spent = [EMPTY] * len(requests), [0.0] * len(requests)
        jobs: dict[str, list[tuple[int, Job]]] = {}
        for i, (request, decision) in enumerate(zip(requests, decisions, strict=True)):
            arm = self.policy.arms[decision.arm]
            length = min(arm.length, request.room - 1)
            if length > 0 and arm.drafter not in request.out:
                jobs.setdefault(arm.drafter, []).append((i, Job(request, length, decision.stops, arm.width)))
        faults: dict[int, str] = {}
        for name, mine in jobs.items():
            start = perf_counter()
            try:
                made = self.drafters[name].draft([job for _, job in mine])
                said = "" if len(made) == len(mine) else f"{len(made)} drafts for {len(mine)} requests"
            except Exception as error:
                made, said = [], _said(error)
            seconds = perf_counter() - start
            if seconds > self.slow_seconds and seconds > 20 * self._pass_seconds:
                said = said or f"took {seconds:.1f} s for one draft"
            share = seconds / (len(mine) + sum(len(d.tokens) for d in made))
            for k, (i, job) in enumerate(mine):
                if fault := said or self._wrong(made[k], job):
                    faults[i], spent[i] = self._fault(name, job.request, fault), share
                else:
                    drafts[i], spent[i] = made[k], share * (1 + len(made[k].tokens))
        return drafts, spent, faults

    def _write(self, request: Request, draft: Draft, verdict: Verdict) -> list[int]:
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
        return new[:keep]

    def _learn(
        self,
        request: Request,
        decision: Decision,
        draft: Draft,
        verdict: Verdict,
        new: list[int],
        fault: str,
        seconds: float,
    ) -> str:
        """Tell the policy and the drafters, and end the request if its text ended; returns what went wrong."""
        arm, drafted = self.policy.arms[decision.arm], len(draft.tokens)
        # The policy learns what was accepted, not what the end of the text left of it; a draft that only
        # the budget kept short, or that failed, says nothing about its arm.
        most = request.room - 1 + len(new)
        censored = bool(fault) or arm.length > most <= drafted or arm.drafter in request.out
        seen = Outcome(decision.arm, len(verdict.path), drafted, seconds, censored=censored)
        for feedback in self.recorder.add(request, decision, seen):
            self.policy.learn(feedback)
        request.last_accepted = len(verdict.path)
        request.rounds += 1
        for name, drafter in self.drafters.items():
            if name not in request.out:
                try:
                    drafter.observe(request, new)
                except Exception as error:
                    fault = fault or self._fault(name, request, _said(error))
        if request.done:
            self._end(request)
        return fault

    # -- beginnings, ends and faults ----------------------------------------------------------------

    def _check_room(self, length: int) -> None:
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length >= self.target.max_length:
            raise UserError(
                f"the prompt has {length} tokens and the target's window {self.target.max_length}: shorten the prompt"
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
        request.out |= self.broken
        for name, drafter in self.drafters.items():
            if name not in request.out:
                try:
                    drafter.observe(request, tokens)
                except Exception as error:
                    self._fault(name, request, _said(error))
        request.tokens += tokens
        request.prompt_length = len(request.tokens)
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
        for name, drafter in self.drafters.items():
            try:
                drafter.close(request)
            except Exception as error:
                self._fault(name, request, _said(error))

    def _fault(self, name: str, request: Request, said: str) -> str:
        """Take a drafter out of a request, and after repeated faults out of use."""
        request.out.add(name)
        self.faults[name] += 1
        if self.faults[name] >= self.strikes:
            self.broken.add(name)
            for other in self.open.values():
                other.out.add(name)
        return f"{name}: {said}"

    def _wrong(self, draft: Draft, job: Job) -> str:
        """How a draft breaks its contract, or nothing."""
        n = len(draft.tokens)
        most = job.length * job.width
        if n > most:
            return f"{n} tokens where {most} were asked for"
        if n and not (min(draft.tokens) >= 0 and max(draft.tokens) < self.target.vocab_size):
            return f"a token outside the vocabulary of {self.target.vocab_size}"
        if len(draft.parents) != n or any(not -1 <= p < i for i, p in enumerate(draft.parents)):
            return "parents that are not earlier nodes"
        if draft.dist is not None and len(draft.probs) != n:
            return f"{len(draft.probs)} probabilities for {n} sampled tokens"
        if not all(0.0 <= p <= 1.000001 for p in draft.probs):  # false for NaN too
            return "a probability outside [0, 1]"
        return ""


def _logprobs(scores: Scores, verdict: Verdict, new: Sequence[int]) -> tuple[float, ...]:
    nodes = (-1, *verdict.path)
    return tuple(scores.logprob(nodes[i], token) for i, token in enumerate(new))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
