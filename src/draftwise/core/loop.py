"""Decide, draft, verify, accept, learn: the whole library in one file.

    loop = Loop(target, drafters, policy, recorder)
    for round in loop.run([prompt], Sampling(max_new_tokens=256)):
        print(round.tokens)

`step` runs one round for all open requests. Each request gets its own decision. Each drafter is called once
for all its requests, and the target runs one forward pass for the batch. Plain decoding is a round with an
empty draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter

from .batch import Batch
from .clock import Clock
from .guarded import Guarded
from .outcomes import Feedback, Spent
from .request import Request
from .roles import Drafter, Limited, Policy, Recorder, Scores, Target
from .round import Round, Seconds
from .sampling import Sampling
from .team import Team
from .turn import Turn, decide, draft


class Loop(Batch):
    """Generates the target's text for any number of requests, with drafts chosen by the policy.

    Faults are isolated. A drafter that raises or violates its contract is disabled for the request in which
    it failed, and for all requests after `strikes` faults. A draft is too slow, which is a fault as well, if
    it takes more than `slow_seconds` and longer than 20 + n mean target passes, where n is the number of
    tokens the drafter had to read first. If the policy raises, the round is decoded plainly. A request ends
    with an error if its own processor or criterion raises, or if the target cannot read it. All other texts
    are unaffected.

    A replay passes a team of its own in place of `drafters`, and a `clock` that supplies the times. Any
    thread may call any method: calls take turns, one round each.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter] | Team,
        policy: Policy,
        recorder: Recorder,
        *,
        seed: int = 0,
        strikes: int = 3,
        slow_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(drafters, Team):
            size = target.vocab_size
            drafters = Team(drafters, vocab_size=size, strikes=strikes, slow_seconds=slow_seconds)
        super().__init__(target, drafters, Guarded(policy, recorder, drafters.names, drafters.faults), seed)
        self.policy, self.recorder, self.clock = policy, recorder, clock
        self.limited = target if isinstance(target, Limited) else None
        self.reused = getattr(target, "reused", None)
        self.rng, self.reread = Random(seed), 0

    def __repr__(self) -> str:
        target, policy = type(self.target).__name__, type(self.policy).__name__
        drafters = ", ".join(self.team.drafters) or "none"
        return f"Loop({target}, drafters: {drafters}, {policy}, {len(self.open)} open)"

    def run(self, prompts: Iterable[Sequence[int]], sampling: Sampling, *, batch: int = 1) -> Iterator[Round]:
        """Decode all prompts, at most `batch` at a time; the next prompt joins when a request has ended."""
        waiting = iter(prompts)
        while True:
            while len(self.open) < batch and (prompt := next(waiting, None)) is not None:
                self.add(prompt, sampling)
            if not self.open:
                return
            yield from self.step()

    def step(self, requests: Iterable[Request] | None = None) -> list[Round]:
        """Run one round for all open requests, or for `requests`, in the order of arrival.

        A request that fails ends with a round whose `error` is set; the others are unaffected.

        Raises:
            RuntimeError: called from within a step, by a processor or a criterion.
        """
        with self.lock:
            turns = self._enter(requests)
            try:
                return self._round(turns) if turns else []
            finally:
                self._leave()

    def _round(self, turns: Sequence[Turn]) -> list[Round]:
        began = perf_counter()
        self._decide(turns)
        decided = perf_counter()
        self._draft(turns)
        drafted, reading = perf_counter(), 0.0
        for verified, scores, seconds in self._verify(turns):
            self._accept(verified, scores)
            reading += seconds
        accepted = perf_counter()
        feedback = self._grade(turns, reading)
        graded = perf_counter()
        self._learn(turns, feedback)
        phases = (decided - began, accepted - drafted - reading, graded - accepted, perf_counter() - graded)
        choose, accept, grade, learn = (seconds / len(turns) for seconds in phases)
        rounds = [self._record(turn, Seconds(choose, *turn.cost, accept, grade, learn)) for turn in turns]
        for turn in turns:
            if turn.request.done:
                self._end(turn.request)
        return rounds

    def _decide(self, turns: Sequence[Turn]) -> None:
        """A decision for each request; none, and no draft, if the policy raises."""
        if self.limited is not None:
            for turn in turns:
                request, reach = turn.request, self.limited.reach(turn.request)
                request.reach, request.widest = reach, max(request.widest, reach)
        decide(turns, self.team, self.guarded, self.rng)

    def _draft(self, turns: Sequence[Turn]) -> None:
        """One call per drafter for all its requests."""
        draft(turns, self.team, rows="rows" in self.recorder.reads)

    def _verify(self, turns: Sequence[Turn]) -> Iterator[tuple[Sequence[Turn], Sequence[Scores], float]]:
        """One target pass over all drafts, and its time in seconds.

        If the pass fails, each request is verified in a pass of its own, so that only the faulty request
        fails.
        """
        start = perf_counter()
        try:
            scores = self.target.verify([(turn.request, turn.draft) for turn in turns])
        except Exception as error:
            if len(turns) > 1:
                for turn in turns:
                    yield from self._verify([turn])
                return
            turns[0].fail(error)
            yield (), (), perf_counter() - start
        else:
            yield turns, scores, perf_counter() - start

    def _accept(self, turns: Sequence[Turn], scores: Sequence[Scores]) -> None:
        """Keep the accepted tokens and the target's own next token; a request that fails keeps nothing."""
        for turn, found in zip(turns, scores, strict=True):
            turn.accept(found)
        sound = [turn for turn in turns if turn.error is None]
        try:
            self.target.commit([(turn.request, turn.draft, turn.verdict) for turn in sound])
        except Exception as error:
            for turn in sound:
                turn.fail(error)

    def _grade(self, turns: Sequence[Turn], reading: float) -> Sequence[Feedback]:
        """The outcome and cost of each round, and the recorder's feedback on them.

        The target pass took `reading` seconds, shared by all requests; a pass with a prefill is not timed.
        """
        tokens = len(turns) + sum(len(turn.draft.tokens) for turn in turns)
        if self.clock is not None:
            reading = self.clock.target(reading, tokens)
        self.team.took(reading)
        compiled = bool(getattr(self.target, "compiled", False))
        before, self.reread = self.reread, int(getattr(self.target, "reread", 0))
        timed, overlap = all(turn.request.rounds for turn in turns), "overlap" in self.recorder.reads
        padded = len(turns) > 1 and bool(getattr(self.target, "padded", False))
        width = 1 + max(len(turn.draft.tokens) for turn in turns) if padded else 0
        again = self.reread - before
        for turn in turns:
            drafted = self.team.compiled(turn.arm.drafter)
            spent = Spent(turn.drafting, reading, tokens, len(turns), compiled, drafted, again, width)
            try:
                turn.look(spent, timed=timed, overlap=overlap)
            except Exception as error:  # rows that are none, for example
                self.team.fault(turn.arm.drafter, turn.request, error)
        decided = [turn for turn in turns if turn.decided]
        lost = [Feedback(turn.request.id, turn.decision) for turn in decided if turn.seen is None]
        feedback, trouble = self.guarded.grade([turn.seen for turn in decided if turn.seen], self.team)
        if trouble:
            for turn in decided:
                turn.trouble = turn.trouble or trouble
        return [*lost, *feedback]

    def _learn(self, turns: Sequence[Turn], feedback: Sequence[Feedback]) -> None:
        """Pass the feedback to the policy, and the committed tokens to the drafters."""
        turns[0].trouble = turns[0].trouble or self.guarded.learn(feedback)
        for turn in turns:
            if turn.error is None:
                if self.reused is not None and not turn.request.rounds:
                    turn.request.reused = self.reused(turn.request)
                turn.request.last_accepted = len(turn.verdict.path)
                turn.request.rounds += 1
                self.team.observe(turn.request)

    def _record(self, turn: Turn, seconds: Seconds) -> Round:
        turn.trouble = turn.trouble or self.team.trouble(turn.request)
        return turn.record(seconds if self.clock is None else self.clock.round(seconds))
