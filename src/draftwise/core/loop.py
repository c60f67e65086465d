"""Decide, draft, verify, accept, learn: the whole library in one file.

    loop = Loop(target, drafters, policy, recorder)
    for round in loop.run([prompt], Sampling(max_new_tokens=256)):
        print(round.tokens)

`step` runs one round for all open requests. Each request gets its own decision. Each drafter is called once
for all its requests, and the target runs one forward pass for the batch. Plain decoding is a round with an
empty draft.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from random import Random
from time import perf_counter

from .batch import Batch
from .drafter_pool import DrafterPool
from .fault_barrier import FaultBarrier
from .outcomes import Feedback, RoundCost
from .passes import TargetInfo
from .request import Request
from .request_round import RequestRound, decide, draft
from .roles import Asynchronous, Drafter, Informed, Limited, Policy, Recorder, Scores, Target, TreeReader
from .round import Clock, Round, Seconds
from .sampling import Sampling

Verified = tuple[Sequence[RequestRound], Sequence[Scores], float]  # a target pass and its seconds


class Loop(Batch):
    """Generates the target's text for any number of requests, with drafts chosen by the policy.

    Faults are isolated. A drafter that raises or violates its contract is disabled for the request in which
    it failed, and for all requests after `max_faults` faults. A draft is too slow, which is a fault as well,
    if it takes more than `slow_seconds` and longer than 20 + n mean target passes, where n is the number of
    tokens the drafter had to read first. If the policy raises, the round is decoded plainly. A request ends
    with an error if its own processor or criterion raises, or if the target cannot read it. All other texts
    are unaffected.

    While an `Asynchronous` target computes, a policy that can learn late learns from the round before. That
    takes no time of a round: `Seconds.verify` is the time from the launch of the pass to its result.

    A replay passes a pool of its own in place of `drafters`, and a `clock` that supplies the times. Any
    thread may call any method: calls take turns, one round each.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter] | DrafterPool,
        policy: Policy,
        recorder: Recorder,
        *,
        seed: int = 0,
        max_faults: int = 3,
        slow_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(drafters, DrafterPool):
            size = target.vocab_size
            drafters = DrafterPool(
                drafters,
                vocab_size=size,
                max_faults=max_faults,
                slow_seconds=slow_seconds,
                can_read_trees=target.can_read_trees if isinstance(target, TreeReader) else None,
            )
        super().__init__(
            target, drafters, FaultBarrier(policy, recorder, drafters.names, drafters.faults), seed
        )
        self.policy, self.recorder, self.clock = policy, recorder, clock
        self.limited = target if isinstance(target, Limited) else None
        self.info = target.info if isinstance(target, Informed) else TargetInfo()
        self.launcher = target if isinstance(target, Asynchronous) and target.is_asynchronous else None
        self.barrier.is_late = self.launcher is not None and getattr(policy, "can_learn_late", False)
        self.rng = Random(seed)

    def __repr__(self) -> str:
        target, policy = type(self.target).__name__, type(self.policy).__name__
        drafters = ", ".join(self.pool.drafters) or "none"
        return f"Loop({target}, drafters: {drafters}, {policy}, {len(self.open)} open)"

    def run(
        self, prompts: Iterable[Sequence[int]], sampling: Sampling, *, batch: int = 1
    ) -> Generator[Round, None, None]:
        """Decode all prompts, at most `batch` at a time; the next prompt joins when a request has ended.

        Closing the generator closes the requests.
        """
        waiting, own = iter(prompts), list[Request]()
        try:
            while True:
                while len(self.open) < batch and (prompt := next(waiting, None)) is not None:
                    own.append(self.add(prompt, sampling))
                if not self.open:
                    return
                yield from self.step()
                own = [request for request in own if not request.done]
        finally:
            for request in own:
                self.close(request)

    def step(self, requests: Iterable[Request] | None = None) -> list[Round]:
        """Run one round for all open requests, or for `requests`, in the order of arrival.

        A request that fails ends with a round whose `error` is set; the others are unaffected.

        Raises:
            RuntimeError: called from within a step, by a processor or a criterion.
        """
        with self.lock:
            rounds = self._enter(requests)
            try:
                return self._round(rounds) if rounds else []
            finally:
                self._leave()

    def _round(self, rounds: Sequence[RequestRound]) -> list[Round]:
        began = perf_counter()
        try:
            self._decide(rounds)
            decided = perf_counter()
            self._draft(rounds)
            drafted, reading = perf_counter(), 0.0
            for verified, scores, seconds in self._verify(rounds):
                self._accept(verified, scores)
                reading += seconds
        except BaseException:  # an interrupt: what was decided comes to nothing
            self.barrier.learn([round.lost for round in rounds if round.is_decided])
            raise
        accepted = perf_counter()
        feedback = self._grade(rounds, reading)
        graded = perf_counter()
        self._learn(rounds, feedback)
        phases = (decided - began, accepted - drafted - reading, graded - accepted, perf_counter() - graded)
        choose, accept, grade, learn = (seconds / len(rounds) for seconds in phases)
        results = [
            self._summarize(round, Seconds(choose, *round.draft_and_verify, accept, grade, learn))
            for round in rounds
        ]
        for round in rounds:
            if round.request.done:
                self._end(round.request)
        return results

    def _decide(self, rounds: Sequence[RequestRound]) -> None:
        """A decision for each request; none, and no draft, if the policy raises."""
        if self.limited is not None:
            for round in rounds:
                request, reach = round.request, self.limited.reach(round.request)
                request.max_verifiable, request.max_verified = reach, max(request.max_verified, reach)
        decide(rounds, self.pool, self.barrier, self.rng)

    def _draft(self, rounds: Sequence[RequestRound]) -> None:
        """One call per drafter for all its requests."""
        draft(rounds, self.pool, rows="rows" in self.recorder.reads)

    def _verify(self, rounds: Sequence[RequestRound]) -> Iterator[Verified]:
        """One target pass over all drafts, and its time in seconds.

        If the pass fails, each request is verified in a pass of its own, so that only the faulty request
        fails.
        """
        start = perf_counter()
        try:
            scores = self._run_pass(rounds)
        except Exception as error:
            if len(rounds) > 1:
                for round in rounds:
                    yield from self._verify([round])
                return
            rounds[0].fail(error)
            yield (), (), perf_counter() - start
        else:
            yield rounds, scores, perf_counter() - start

    def _run_pass(self, rounds: Sequence[RequestRound]) -> Sequence[Scores]:
        """Run one pass; while an asynchronous target computes, the policy learns from the round before."""
        batch = [(round.request, round.draft) for round in rounds]
        if self.launcher is None:
            return self.target.verify(batch)
        read = self.launcher.launch(batch)
        fault = self.barrier.catch_up()
        rounds[0].warning = rounds[0].warning or fault
        return read()

    def _accept(self, rounds: Sequence[RequestRound], scores: Sequence[Scores]) -> None:
        """Keep the accepted tokens and the target's own next token; a request that fails keeps nothing."""
        for round, found in zip(rounds, scores, strict=True):
            round.accept(found)
        self._commit([round for round in rounds if not round.is_poisoned])
        for round in rounds:
            if round.is_poisoned:
                self._verify_again(round)

    def _verify_again(self, round: RequestRound) -> None:
        """Verify a request again, alone and without its draft: a fault of the drafter if this succeeds."""
        name, drafted = round.arm.drafter, len(round.draft.tokens)
        round.withdraw()
        try:
            (scores,) = self.target.verify([(round.request, round.draft)])
        except Exception as error:
            round.fail(error)
        else:
            round.accept(scores)
            self._commit([round])
        if drafted and round.error is None:
            self.pool.fault(name, round.request, "the target's logits are NaN where it reads this draft")

    def _commit(self, rounds: Sequence[RequestRound]) -> None:
        sound = [round for round in rounds if round.error is None]
        try:
            self.target.commit([(round.request, round.draft, round.verdict) for round in sound])
        except Exception as error:
            for round in sound:
                round.fail(error)

    def _grade(self, rounds: Sequence[RequestRound], reading: float) -> Sequence[Feedback]:
        """Return the outcome and cost of each round, and the recorder's feedback on them.

        The target pass took `reading` seconds, shared by all requests; a pass with a prefill, or with one
        more after it, is not timed.
        """
        tokens = len(rounds) + sum(len(round.draft.tokens) for round in rounds)
        if self.clock is not None:
            reading = self.clock.target(reading, tokens)
        self.pool.record_pass(reading)
        info, n = self.info.latest, len(rounds)
        timed = info.is_timed and all(r.request.rounds and not r.is_withdrawn for r in rounds)
        overlap = "overlap" in self.recorder.reads
        padded = n > 1 and self.info.is_padded
        width = 1 + max(len(round.draft.tokens) for round in rounds) if padded else 0
        for round in rounds:
            kinds = info.kind, self.pool.pass_kind(round.arm.drafter)
            cost = RoundCost(round.draft_seconds, reading, tokens, n, *kinds, info.reread, width)
            try:
                round.score(cost, timed=timed, overlap=overlap)
            except Exception as error:  # rows that are none, for example
                self.pool.fault(round.arm.drafter, round.request, error)
        decided = [round for round in rounds if round.is_decided]
        lost = [round.lost for round in decided if round.record is None]
        feedback, warning = self.barrier.grade([round.record for round in decided if round.record], self.pool)
        if warning:
            for round in decided:
                round.warning = round.warning or warning
        return [*lost, *feedback]

    def _learn(self, rounds: Sequence[RequestRound], feedback: Sequence[Feedback]) -> None:
        """Pass the feedback to the policy, and the committed tokens to the drafters.

        A policy that learns late waits for the next pass, but not if a text has ended.
        """
        warning = self.barrier.learn(feedback)
        if self.barrier.lessons and any(round.request.done for round in rounds):
            warning = self.barrier.catch_up()
        rounds[0].warning = rounds[0].warning or warning
        for round in rounds:
            if round.error is None:
                if not round.request.rounds:
                    round.request.reused = self.info.reused.get(round.request.id, 0)
                round.request.last_accepted = len(round.verdict.path)
                round.request.rounds += 1
                self.pool.observe(round.request)

    def _summarize(self, round: RequestRound, seconds: Seconds) -> Round:
        round.warning = round.warning or self.pool.pop_warning(round.request)
        seconds = seconds if self.clock is None else self.clock.round(seconds)
        try:
            return round.summarize(seconds)
        except Exception as error:  # log-probabilities that the target cannot give
            round.fail(error)
            return round.summarize(seconds)
