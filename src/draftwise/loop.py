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
from .roles import Drafter, Policy, Recorder, Scores, Target
from .team import Team
from .types import Arm, Context, Decision, Draft, Job, Outcome, Request, Round, Sampling, Seconds, Verdict


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
        drafts, draft_seconds, faults = self._draft(requests, decisions)
        drafted = perf_counter()
        scores = self.target.verify(list(zip(requests, drafts, strict=True)))
        verified = perf_counter()
        verdicts = [accept(d, s, r.rng) for r, d, s in zip(requests, drafts, scores, strict=True)]
        written = [self._write(r, d, v) for r, d, v in zip(requests, drafts, verdicts, strict=True)]
        self.target.commit(list(zip(requests, drafts, verdicts, strict=True)))
        accepted = perf_counter()

        self._pass_seconds += 0.1 * (verified - drafted - self._pass_seconds)
        fresh = any(r.rounds == 0 for r in requests)
        # A pass is charged by the tokens that each request put into it.
        per_token = (verified - drafted) / (n + sum(len(d.tokens) for d in drafts))
        rounds = []
        for i, request in enumerate(requests):
            decision, draft, verdict, new = decisions[i], drafts[i], verdicts[i], written[i]
            verify = per_token * (1 + len(draft.tokens))
            spent = nan if fresh else draft_seconds[i] + verify
            begun = perf_counter()
            fault = self._learn(request, decision, draft, verdict, new, spent, faults.get(i, ""))
            learn = perf_counter() - begun
            seconds = Seconds(
                (chosen - start) / n, draft_seconds[i], verify, (accepted - verified) / n, learn
            )
            arm = self.policy.arms[decision.arm]
            rounds.append(_record(request, decision, arm, draft, verdict, new, scores[i], seconds, fault))
        return rounds

    def _context(self, request: Request, batch_size: int) -> Context:
        hints = self.team.hints(request) if self.policy.reads_hints else {}
        return Context(
            request.id, batch_size, request.position, request.last_accepted, hints, frozenset(request.out)
        )

    def _draft(
        self, requests: Sequence[Request], decisions: Sequence[Decision]
    ) -> tuple[list[Draft], list[float], dict[int, str]]:
        """One call per drafter for all its requests: drafts, seconds and faults, by place in the batch."""
        jobs: dict[str, list[tuple[int, Job]]] = {}
        for i, (request, decision) in enumerate(zip(requests, decisions, strict=True)):
            arm = self.policy.arms[decision.arm]
            length = min(arm.length, request.room - 1)
            if length > 0 and arm.drafter not in request.out:
                jobs.setdefault(arm.drafter, []).append((i, Job(request, length, decision.stops, arm.width)))
        patience = max(self.slow_seconds, 20 * self._pass_seconds)
        return self.team.draft(jobs, len(requests), patience=patience)

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
        seconds: float,
        fault: str,
    ) -> str:
        """Tell the policy and the drafters, and end the request if its text ended.

        Returns what went wrong with the round's drafter, or nothing.
        """
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
        failed = self.team.observe(request, new)
        if request.done:
            self._end(request)
        return fault or failed

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
        self.team.observe(request, tokens)
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
        self.team.close(request)


def _record(
    request: Request,
    decision: Decision,
    arm: Arm,
    draft: Draft,
    verdict: Verdict,
    new: Sequence[int],
    scores: Scores,
    seconds: Seconds,
    fault: str,
) -> Round:
    accepted = len(verdict.path)
    return Round(
        request.id,
        decision,
        arm,
        len(draft.tokens),
        accepted,
        tuple(new),
        min(accepted, len(new)),
        seconds,
        request.done,
        request.finish_reason,
        fault,
        _logprobs(scores, verdict, new) if request.sampling.logprobs else (),
    )


def _logprobs(scores: Scores, verdict: Verdict, new: Sequence[int]) -> tuple[float, ...]:
    nodes = (-1, *verdict.path)
    return tuple(scores.logprob(nodes[i], token) for i, token in enumerate(new))
