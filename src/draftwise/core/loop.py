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
from random import Random
from time import perf_counter

from ..errors import UserError
from .accept import accept
from .drafts import Job
from .guarded import UNDECIDED, Guarded
from .lock import OneAtATime
from .outcomes import Feedback, Spent
from .request import Request
from .roles import Drafter, Limited, Policy, Recorder, Target
from .round import Round, Seconds
from .sampling import Sampling
from .team import Team
from .turn import ERROR, Turn


class Loop:
    """Writes the target's text for any number of requests, drafted as the policy decides.

    A fault stays where it was made. A drafter that raises or breaks its contract is out of the request it
    failed in, and after `strikes` faults out of use altogether; a draft is too slow when it takes more than
    `slow_seconds` and as many mean target passes as twenty and the tokens that it had to read. Where the
    policy raises, the round is decoded plainly. A request whose own processor or criterion raises, or that
    the target cannot read, ends with that error. All other texts go on exactly.

    Any thread may call any method: calls take turns, a round each.
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
        self.limited = target if isinstance(target, Limited) else None
        self.seed = seed
        self.rng = Random(seed)
        self.open: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        self.team = Team(
            drafters, self.open, vocab_size=target.vocab_size, strikes=strikes, slow_seconds=slow_seconds
        )
        self.guarded = Guarded(policy, recorder, self.team.faults)
        self.lock = OneAtATime()
        self._ids = count()
        self._leaving: list[Request] | None = None  # those closed within a step, while there is one

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
        self.check(len(tokens))
        with self.lock:
            request = Request(next(self._ids), [], 0, sampling, Random(), Random(), keep=keep)
            self.target.open(request)
            self._begin(request, tokens, sampling)
            return request

    def extend(self, request: Request, tokens: Sequence[int], sampling: Sampling | None = None) -> None:
        """Go on with a parked request: `tokens` follow its text, and a new answer starts after them."""
        with self.lock:
            if request.id not in self.parked:
                raise ValueError(
                    f"request {request.id} is not parked: add it with keep=True and let it end first"
                )
            self.check(len(request.tokens) + len(tokens))
            del self.parked[request.id]
            self._begin(request, tokens, sampling or request.sampling)

    def close(self, request: Request) -> None:
        """Forget a request at once, finished or not; called from within a step, at its end."""
        with self.lock:
            if self._leaving is not None:
                self._leaving.append(request)
            elif request.id in self.open:
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

    def step(self, requests: Iterable[Request] | None = None) -> list[Round]:
        """One round for every open request, or for those of `requests`, in the order they were added in.

        A request that fails ends with a round that has its `error`; the others are unaffected.

        Raises:
            RuntimeError: called from within a step, by a processor or a criterion.
        """
        with self.lock:
            if self._leaving is not None:
                raise RuntimeError("a step within a step: a processor must not run the decoder it serves")
            only = None if requests is None else {request.id for request in requests}
            turns = [Turn(r, len(r.tokens)) for r in self.open.values() if only is None or r.id in only]
            self._leaving = []
            try:
                return self._step(turns) if turns else []
            finally:
                leaving, self._leaving = self._leaving, None
                for request in leaving:
                    self.close(request)

    def _step(self, turns: list[Turn]) -> list[Round]:
        start = perf_counter()
        self._decide(turns)
        chosen = perf_counter()
        self._draft(turns)
        drafted = perf_counter()
        verifying = self._verify(turns)
        accepted = perf_counter()
        self._charge(turns, verifying)
        feedback = self._grade(turns)
        graded = perf_counter()
        self._learn(turns, feedback)
        learnt = perf_counter()
        shared = (chosen - start, accepted - drafted - verifying, graded - accepted, learnt - graded)
        choose, judge, grade, learn = (x / len(turns) for x in shared)
        rounds = [self._record(turn, Seconds(choose, *turn.cost, judge, grade, learn)) for turn in turns]
        for turn in turns:
            if turn.request.done:
                self._end(turn.request)
        return rounds

    def _decide(self, turns: Sequence[Turn]) -> None:
        """A decision for each request; none, and no draft, where the policy raises."""
        for turn in turns:
            hints = self.team.hints(turn.request) if self.policy.reads_hints else {}
            turn.request.waits = self.team.waiting(turn.request)
            if self.limited is not None:
                turn.request.reach = self.limited.reach(turn.request)
            context = turn.context(hints, len(turns))
            turn.decision, turn.arm, turn.trouble = self.guarded.choose(context, self.rng)

    def _draft(self, turns: Sequence[Turn]) -> None:
        """One call per drafter for all its requests."""
        jobs: dict[str, list[tuple[int, Job]]] = {}
        rows = "rows" in self.recorder.reads
        for i, turn in enumerate(turns):
            if (job := turn.job(rows=rows)) is not None:
                jobs.setdefault(turn.arm.drafter, []).append((i, job))
        drafts, seconds = self.team.draft(jobs, len(turns))
        for turn, draft, spent in zip(turns, drafts, seconds, strict=True):
            turn.draft, turn.drafting = draft, spent

    def _verify(self, turns: Sequence[Turn]) -> float:
        """Verify all drafts in one pass, accept and commit; returns the seconds that the target took to read.

        A pass that fails is made again for each request by itself, so that the fault stays in one of them.
        """
        start = perf_counter()
        try:
            scores = self.target.verify([(turn.request, turn.draft) for turn in turns])
        except Exception as error:
            if len(turns) > 1:
                return sum(self._verify([turn]) for turn in turns)
            turns[0].fail(error)
            return perf_counter() - start
        verified = perf_counter()
        for turn, found in zip(turns, scores, strict=True):
            try:
                turn.scores, sampling = found, turn.request.sampling
                # A processor that keeps a state must not see what lies beyond the end of its text.
                ends = sampling.eos if sampling.processors else ()
                turn.verdict = accept(turn.draft, turn.scores, turn.request.rng, ends)
                turn.write()
            except Exception as error:
                turn.fail(error)
        sound = [turn for turn in turns if turn.error is None]
        try:
            self.target.commit([(turn.request, turn.draft, turn.verdict) for turn in sound])
        except Exception as error:
            for turn in sound:
                turn.fail(error)
        return verified - start

    def _charge(self, turns: Sequence[Turn], seconds: float) -> None:
        """Say what each round cost, of which the target pass is everyone's, and what it showed."""
        self.team.took(seconds)
        tokens = len(turns) + sum(len(turn.draft.tokens) for turn in turns)
        timed = all(turn.request.rounds for turn in turns)  # a pass that read a prompt too says nothing
        overlap = "overlap" in self.recorder.reads
        for turn in turns:
            turn.look(Spent(turn.drafting, seconds, tokens, len(turns)), timed=timed, overlap=overlap)

    def _grade(self, turns: Sequence[Turn]) -> Sequence[Feedback]:
        """What the recorder makes of the rounds that were decided, and the decisions that came to nothing."""
        decided = [turn for turn in turns if turn.decision is not UNDECIDED]
        lost = [Feedback(turn.request.id, turn.decision) for turn in decided if turn.seen is None]
        seen = [turn.seen for turn in decided if turn.seen is not None]
        feedback, trouble = self.guarded.grade(seen, self.team)
        if trouble:
            for turn in decided:
                turn.trouble = turn.trouble or trouble
        return [*lost, *feedback]

    def _learn(self, turns: Sequence[Turn], feedback: Sequence[Feedback]) -> None:
        """Tell the policy what came of its decisions, and the drafters what was committed."""
        turns[0].trouble = turns[0].trouble or self.guarded.learn(feedback)
        for turn in turns:
            if turn.error is None:
                turn.request.last_accepted = len(turn.verdict.path)
                turn.request.rounds += 1
                self.team.observe(turn.request)

    def _record(self, turn: Turn, seconds: Seconds) -> Round:
        turn.trouble = turn.trouble or self.team.trouble(turn.request)
        return turn.record(seconds)

    # -- beginnings and ends -------------------------------------------------------------------------

    def check(self, length: int) -> None:
        """See that a prompt of `length` tokens can be decoded.

        Raises:
            UserError: it is empty or leaves no room in the target's window.
        """
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if length >= self.target.max_length:
            raise UserError(
                f"the prompt has {length} tokens and the target's window {self.target.max_length}: "
                "shorten the prompt"
            )

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
