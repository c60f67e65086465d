"""The state of one request within the current round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from random import Random

from ..errors import one_line
from .accept import block, walk
from .arms import Arm, Context, Decision
from .constraint import constraint_of
from .drafter_pool import DrafterPool
from .drafts import EMPTY, NOTHING, Draft, Job, Verdict
from .fault_barrier import PLAIN, UNDECIDED, FaultBarrier
from .outcomes import Feedback, Outcome, RoundCost
from .request import Request
from .roles import Ranked, RoundRecord, Scores
from .round import Round, Seconds, Tops

REJECTED = Verdict((), NOTHING)
ERROR = "error"  # the finish reason of a request that failed


@dataclass(slots=True, eq=False)
class RequestRound:
    """One request within the current round: each phase adds its results.

    `start` is the length of the text before the round. `decision` is `UNDECIDED` if the policy raised: the
    round is then decoded plainly and gives no feedback. `error` is what ended the request early; `warning` is
    a fault that did not affect the text. `checked` is how many new tokens `Sampling.ends` was asked about
    while the draft was verified, and `is_stopped` is whether it ended the text with the last of them. It
    `is_poisoned` if nothing of the draft was accepted because the logits before it are NaN: attention spreads
    the NaN of a drafted token even to tokens that do not see it, since 0 times NaN is NaN. The draft then
    `is_withdrawn`.
    """

    request: Request
    start: int
    decision: Decision = UNDECIDED
    arm: Arm = PLAIN
    draft: Draft = EMPTY
    draft_seconds: float = 0.0
    scores: Scores | None = None
    verdict: Verdict = REJECTED
    tokens: tuple[int, ...] = ()
    cost: RoundCost | None = None
    record: RoundRecord | None = None
    error: Exception | None = None
    warning: str = ""
    checked: int = 0
    is_stopped: bool = False
    is_poisoned: bool = False
    is_withdrawn: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether the policy made the decision, and is to learn from it."""
        return self.decision.arm != UNDECIDED.arm

    @property
    def lost(self) -> Feedback:
        """The feedback on a decision that came to nothing."""
        return Feedback(self.request.id, self.decision)

    @property
    def is_over(self) -> bool:
        """Whether the text ended inside the draft, so that the rest of the draft was not verified."""
        return self.verdict.token == NOTHING

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of the draft after which each committed token was written."""
        walked, count = (-1, *self.verdict.path), len(self.tokens)
        # An engine may have written more tokens than it verified.
        return (*walked, *range(len(walked) - 1, count))[:count]

    def context(self, hints: Mapping[str, float], batch_size: int) -> Context:
        request = self.request
        unavailable = request.not_ready.union(request.disabled) if request.disabled else request.not_ready
        tokens = request.tokens
        return Context(
            request.id,
            batch_size,
            request.position,
            request.last_accepted,
            hints,
            unavailable,
            len(tokens),
            tokens[-1] if tokens else -1,
            request.remaining,
        )

    def make_job(self, *, rows: bool, deterministic: bool) -> Job | None:
        """Return the draft to request; None if the round drafts nothing."""
        request, arm = self.request, self.arm
        length = min(arm.length, request.remaining - 1, request.max_verifiable, request.max_draft)
        if length <= 0 or arm.drafter in request.disabled or arm.drafter in request.not_ready:
            return None
        deterministic, constraint = deterministic or request.deterministic, constraint_of(request)
        decision = self.decision
        return Job(
            request,
            length,
            decision.stops,
            arm.width,
            rows,
            deterministic,
            constraint,
            hand_overs=decision.hand_overs,
        )

    def accept(self, scores: Scores) -> None:
        """Find the accepted path of the draft, and append the verified tokens."""
        self.scores = scores
        # A processor with a state must see a prefix once: asked before it does.
        if self.request.sampling.processors and self.draft.tokens and has_nan(scores):
            self.is_poisoned = True
            return
        # A processor must not see tokens beyond the end of its text: it may have a state, or raise.
        over = self._over if self.request.sampling.processors else None
        path: list[int] = []
        try:
            try:
                token = walk(self.draft, scores, self.request.rng, path, over)
                self.verdict = Verdict(tuple(path), token)
            except Exception as error:
                self.verdict = self._salvage(path, error, scores)
            self.append_tokens()
        except Exception as error:
            self.is_poisoned = not path and not self.request.sampling.processors and has_nan(scores)
            self.fail(error)

    def withdraw(self) -> None:
        """Drop the draft, so that the request can be verified without it."""
        self.draft, self.error, self.warning = EMPTY, None, ""
        self.is_poisoned, self.is_withdrawn = False, True
        self.request.done, self.request.finish_reason = False, ""

    def _over(self, path: Sequence[int]) -> bool:
        """Whether the text ends with the last token of this path, as plain decoding would find there."""
        request, sampling = self.request, self.request.sampling
        new = [self.draft.tokens[node] for node in path]
        if new[-1] in sampling.eos:
            return True
        if sampling.ends is not None:
            self.is_stopped = sampling.ends([*request.tokens, *new], self.start + len(new) - 1) is not None
            self.checked = len(new)  # not before: what raises is asked again about the same token
        return self.is_stopped

    def _salvage(self, path: Sequence[int], error: Exception, scores: Scores) -> Verdict:
        """What a walk that raised had accepted: the next round continues from there without this drafter.

        If the target, or a processor, was what raised, it raises there again, as in plain decoding.
        """
        if not path and self.draft.dist is None:
            raise error
        self.warning = self.warning or f"{self.arm.drafter}: {one_line(error)}"
        self.request.disabled.add(self.arm.drafter)
        if path:
            return Verdict(tuple(path[:-1]), self.draft.tokens[path[-1]])
        return Verdict((), scores.choice(-1))

    def append_tokens(self) -> None:
        """Append the verified tokens, cut at the end of the text, which then is done."""
        request, verdict = self.request, self.verdict
        new = [self.draft.tokens[i] for i in verdict.path]
        if not self.is_over:
            new.append(verdict.token)
        keep = len(new)
        remaining, eos, ends = request.remaining, request.sampling.eos, request.sampling.ends
        reason = ""
        if keep >= remaining:
            keep, reason = remaining, "length"
        for i, token in enumerate(new[:keep]):
            if token in eos:
                keep, reason = i + 1, "eos"
                break
        request.tokens += new[:keep]
        if ends is not None:
            is_asked = not self.is_stopped and self.checked < keep
            cut = ends(request.tokens, self.start + self.checked) if is_asked else None
            if self.is_stopped or cut is not None:
                keep, reason = self.checked + (cut or 0), "stop"
                del request.tokens[self.start + keep :]
        request.done, request.finish_reason = bool(reason), reason
        self.tokens = tuple(new[:keep])

    def score(self, cost: RoundCost, *, timed: bool, overlap: bool, is_partial: bool = False) -> None:
        """Compute the outcome of the round and its record for the recorder.

        `timed` is false if the pass included a prefill. `is_partial` says that an engine had no room to
        verify the whole draft.
        """
        self.cost = cost
        if self.scores is None or self.error is not None:
            return
        request, drafted = self.request, len(self.draft.tokens)
        censored = self._is_censored(is_partial)
        overlaps = block(self.draft, self.verdict.path, self.scores.overlaps()) if overlap and drafted else ()
        seconds = cost.draft + cost.share(1 + drafted) if timed else nan
        outcome = Outcome(
            self.decision.arm,
            len(self.verdict.path),
            drafted,
            seconds,
            censored,
            overlaps=overlaps,
            signals=self.draft.signals,
            cost=cost,
            prefix_length=self.draft.prefix_length,
            match=self.draft.match,
            asked=min(self.arm.length, request.max_draft_ever),
        )
        self.record = RoundRecord(
            request, self.decision, outcome, self.draft, self.tokens, self.nodes, self.scores
        )

    def _is_censored(self, is_partial: bool) -> bool:
        """Return whether the round does not count for its arm, because something else cut its draft.

        That is the end of the text inside the draft, an engine without room for all of it, a drafter that
        failed or was not ready, or a limit of this pass. A limit on all drafts of the text does not matter,
        unless it leaves no draft at all: else no arm would ever count.
        """
        request, arm, drafted = self.request, self.arm, len(self.draft.tokens)
        if is_partial or (self.is_over and len(self.verdict.path) < drafted):
            return True
        if arm.drafter in request.not_ready or arm.drafter in request.disabled:
            return True
        longest = min(arm.length, request.max_draft_ever)
        remaining = request.remaining - 1 + len(self.tokens)  # before the round
        limit = min(remaining, request.max_verifiable, request.max_draft)
        return longest > limit <= drafted or longest < min(arm.length, 1)

    @property
    def draft_and_verify(self) -> tuple[float, float]:
        if self.cost is None:
            return 0.0, 0.0
        return self.cost.draft, self.cost.share(1 + len(self.draft.tokens))

    def summarize(self, seconds: Seconds) -> Round:
        """Return the record of the round for text, metrics, traces and plots."""
        request, accepted = self.request, len(self.verdict.path)
        logprobs: tuple[float, ...] = ()
        tops: tuple[Tops, ...] = ()
        # Also without a record: a drafter's fault takes no log-probability from the text.
        if request.sampling.logprobs and (scores := self.scores) is not None:
            pairs = zip(self.nodes, self.tokens, strict=True)
            logprobs = tuple(scores.logprob(node, token) for node, token in pairs)
            most = request.sampling.top_logprobs
            if most and isinstance(scores, Ranked):
                tops = tuple(scores.top(node, most) for node in self.nodes)
        return Round(
            request.id,
            self.decision,
            self.arm,
            len(self.draft.tokens),
            accepted,
            self.tokens,
            min(accepted, len(self.tokens)),
            seconds,
            request.done,
            request.finish_reason,
            self.warning,
            logprobs,
            self.error,
            tops,
        )

    def fail(self, error: Exception) -> None:
        """End the request with an error: its text stays as it was before this round."""
        del self.request.tokens[self.start :]
        self.tokens, self.verdict, self.error, self.warning = (), REJECTED, error, one_line(error)
        self.request.done, self.request.finish_reason = True, ERROR


def has_nan(scores: Scores) -> bool:
    """Return whether the target's raw logits after the last committed token are NaN."""
    try:
        return isnan(scores.logprob(-1, 0))
    except Exception:  # a target that cannot tell
        return False


def decide(rounds: Sequence[RequestRound], pool: DrafterPool, barrier: FaultBarrier, rng: Random) -> None:
    """A decision for each request that has no arm of its own; none, and no draft, if the policy raises."""
    hinted = getattr(barrier.policy, "reads_hints", False)
    resting, said = barrier.rests(len(rounds)) if len(rounds) > 1 else (False, "")
    asked: list[tuple[RequestRound, Context]] = []
    for round in rounds:
        if (arm := round.request.arm) is not None:
            round.request.not_ready = pool.find_not_ready(round.request)
            round.decision, round.arm = replace(UNDECIDED, stops=arm.stops), arm
        elif not resting:
            round.request.not_ready = pool.find_not_ready(round.request)
            asked.append(
                (round, round.context(pool.collect_hints(round.request) if hinted else {}, len(rounds)))
            )
    if len(asked) > 1:
        said = barrier.plan([context for _, context in asked]) or said
    for round, context in asked:
        round.decision, round.arm, warning = barrier.choose(context, rng)
        round.warning = warning or said
    pool.reading.step(round.arm.drafter for round in rounds if round.arm.length)


def draft(
    rounds: Sequence[RequestRound], pool: DrafterPool, *, rows: bool = False, deterministic: bool = False
) -> None:
    """A draft for each request, with one call per drafter for all its requests."""
    jobs: dict[str, list[tuple[int, Job]]] = {}
    for i, round in enumerate(rounds):
        if (job := round.make_job(rows=rows, deterministic=deterministic)) is not None:
            jobs.setdefault(round.arm.drafter, []).append((i, job))
    for round, made, seconds in zip(rounds, *pool.draft(jobs, len(rounds)), strict=True):
        round.draft, round.draft_seconds = made, seconds


def unfailed(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the rounds, for callers that need either all texts or none.

    Raises:
        Exception: the error that ended one of the requests.
    """
    for round in rounds:
        if round.error is not None:
            raise round.error
    return rounds
