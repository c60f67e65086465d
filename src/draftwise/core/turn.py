"""The state of one request within the current round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from random import Random

from ..errors import one_line
from .accept import block, walk
from .arms import Arm, Context, Decision
from .drafts import NOTHING, Draft, Job, Verdict
from .guarded import PLAIN, UNDECIDED, Guarded
from .guide import guide_of
from .outcomes import Outcome, Spent
from .request import Request
from .roles import Ranked, Scores, Seen
from .round import Round, Seconds, Tops
from .team import EMPTY, Team

REJECTED = Verdict((), NOTHING)
ERROR = "error"  # the finish reason of a request that failed


@dataclass(slots=True, eq=False)
class Turn:
    """One request within the current round: each phase adds its results.

    `start` is the length of the text before the round. `decision` is `UNDECIDED` if the policy raised: the
    round is then decoded plainly and gives no feedback. `error` is what ended the request early; `trouble` is
    a fault that did not affect the text. `looked` is how many new tokens `Sampling.ends` was asked about
    while the draft was verified, and `stopped` is whether it ended the text with the last of them.
    """

    request: Request
    start: int
    decision: Decision = UNDECIDED
    arm: Arm = PLAIN
    draft: Draft = EMPTY
    drafting: float = 0.0
    scores: Scores | None = None
    verdict: Verdict = REJECTED
    tokens: tuple[int, ...] = ()
    spent: Spent | None = None
    seen: Seen | None = None
    error: Exception | None = None
    trouble: str = ""
    looked: int = 0
    stopped: bool = False

    @property
    def decided(self) -> bool:
        """Whether the policy made the decision, and is to learn from it."""
        return self.decision.arm != UNDECIDED.arm

    @property
    def over(self) -> bool:
        """Whether the text ended inside the draft, so that the rest of the draft was not verified."""
        return self.verdict.token == NOTHING

    def context(self, hints: Mapping[str, float], batch_size: int) -> Context:
        """The context for the policy."""
        request = self.request
        out = request.waits.union(request.out) if request.out else request.waits
        tokens = request.tokens
        return Context(
            request.id,
            batch_size,
            request.position,
            request.last_accepted,
            hints,
            out,
            len(tokens),
            tokens[-1] if tokens else -1,
            request.room,
        )

    def job(self, *, rows: bool, picked: bool) -> Job | None:
        """The draft to request; None if the round drafts nothing."""
        request, arm = self.request, self.arm
        length = min(arm.length, request.room - 1, request.reach, request.longest)
        if length <= 0 or arm.drafter in request.out or arm.drafter in request.waits:
            return None
        picked, guide = picked or request.picked, guide_of(request)
        decision = self.decision
        return Job(
            request, length, decision.stops, arm.width, rows, picked, guide, hand_overs=decision.hand_overs
        )

    def accept(self, scores: Scores) -> None:
        """Find the accepted path of the draft, and append the verified tokens."""
        self.scores = scores
        # A processor must not see tokens beyond the end of its text: it may have a state, or raise.
        over = self._over if self.request.sampling.processors else None
        path: list[int] = []
        try:
            try:
                token = walk(self.draft, scores, self.request.rng, path, over)
                self.verdict = Verdict(tuple(path), token)
            except Exception as error:
                self.verdict = self._kept(path, error, scores)
            self.write()
        except Exception as error:
            self.fail(error)

    def _over(self, path: Sequence[int]) -> bool:
        """Whether the text ends with the last token of this path, as plain decoding would find there."""
        request, sampling = self.request, self.request.sampling
        new = [self.draft.tokens[node] for node in path]
        if new[-1] in sampling.eos:
            return True
        if sampling.ends is not None:
            self.looked = len(new)
            self.stopped = sampling.ends([*request.tokens, *new], self.start + len(new) - 1) is not None
        return self.stopped

    def _kept(self, path: Sequence[int], error: Exception, scores: Scores) -> Verdict:
        """What a walk that raised had accepted: the next round continues from there without this drafter.

        If the target, or a processor, was what raised, it raises there again, as in plain decoding.
        """
        if not path and self.draft.dist is None:
            raise error
        self.trouble = self.trouble or f"{self.arm.drafter}: {one_line(error)}"
        self.request.out.add(self.arm.drafter)
        if path:
            return Verdict(tuple(path[:-1]), self.draft.tokens[path[-1]])
        return Verdict((), scores.choice(-1))

    def write(self) -> None:
        """Append the verified tokens, cut at the end of the text; returns whether the text ends."""
        request, verdict = self.request, self.verdict
        new = [self.draft.tokens[i] for i in verdict.path]
        if not self.over:
            new.append(verdict.token)
        keep = len(new)
        room, eos, ends = request.room, request.sampling.eos, request.sampling.ends
        reason = ""
        if keep >= room:
            keep, reason = room, "length"
        if eos:
            for i, token in enumerate(new[:keep]):
                if token in eos:
                    keep, reason = i + 1, "eos"
                    break
        request.tokens += new[:keep]
        if ends is not None:
            cut = None if self.stopped else ends(request.tokens, self.start + self.looked)
            if self.stopped or cut is not None:
                keep, reason = self.looked + (cut or 0), "stop"
                del request.tokens[self.start + keep :]
        request.done, request.finish_reason = bool(reason), reason
        self.tokens = tuple(new[:keep])

    def look(self, spent: Spent, *, timed: bool, overlap: bool, cut: bool = False) -> None:
        """Compute the outcome of the round, before the text is cut at its end.

        A round is not counted for its arm if its draft was shortened by the end of the text or for this pass
        alone, failed, was not ready, or was not verified to its end (`cut`). What shortens all drafts of a
        text does not matter: no arm would ever count. `timed` is false if the pass included a prefill.
        """
        self.spent = spent
        if self.scores is None or self.error is not None:
            return
        request, arm, drafted = self.request, self.arm, len(self.draft.tokens)
        most = min(request.room - 1 + len(self.tokens), request.reach, request.longest)
        out = arm.drafter in request.waits or arm.drafter in request.out
        cut = cut or (self.over and len(self.verdict.path) < drafted)
        asked = min(arm.length, request.longest_of_all)
        censored = cut or out or asked > most <= drafted or asked < min(arm.length, 1)
        overlaps = block(self.draft, self.verdict.path, self.scores.overlaps()) if overlap and drafted else ()
        seconds = spent.draft + spent.share(1 + drafted) if timed else nan
        outcome = Outcome(
            self.decision.arm,
            len(self.verdict.path),
            drafted,
            seconds,
            censored,
            overlaps=overlaps,
            signals=self.draft.signals,
            spent=spent,
            prefix_length=self.draft.prefix_length,
            match=self.draft.match,
            asked=asked,
        )
        # An engine may have written more tokens than it verified.
        walked, count = (-1, *self.verdict.path), len(self.tokens)
        nodes = walked[:count] if count <= len(walked) else (*walked, *range(outcome.accepted, count - 1))
        self.seen = Seen(request, self.decision, outcome, self.draft, self.tokens, nodes, self.scores)

    @property
    def cost(self) -> tuple[float, float]:
        """Seconds of drafting, and of this round's share of the target pass."""
        if self.spent is None:
            return 0.0, 0.0
        return self.spent.draft, self.spent.share(1 + len(self.draft.tokens))

    def record(self, seconds: Seconds) -> Round:
        """The record of the round for text, metrics, traces and plots."""
        request, accepted = self.request, len(self.verdict.path)
        logprobs: tuple[float, ...] = ()
        tops: tuple[Tops, ...] = ()
        if request.sampling.logprobs and self.seen is not None:
            pairs = zip(self.seen.nodes, self.tokens, strict=True)
            logprobs = tuple(self.seen.scores.logprob(node, token) for node, token in pairs)
            most = request.sampling.top_logprobs
            if most and isinstance(self.seen.scores, Ranked):
                tops = tuple(self.seen.scores.top(node, most) for node in self.seen.nodes)
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
            self.trouble,
            logprobs,
            self.error,
            tops,
        )

    def fail(self, error: Exception) -> None:
        """End the request with an error: its text stays as it was before this round."""
        del self.request.tokens[self.start :]
        self.tokens, self.verdict, self.error, self.trouble = (), REJECTED, error, one_line(error)
        self.request.done, self.request.finish_reason = True, ERROR


def decide(turns: Sequence[Turn], team: Team, guarded: Guarded, rng: Random) -> None:
    """A decision for each request that has no arm of its own; none, and no draft, if the policy raises."""
    hinted = getattr(guarded.policy, "reads_hints", False)
    resting, said = guarded.rests(len(turns)) if len(turns) > 1 else (False, "")
    asked: list[tuple[Turn, Context]] = []
    for turn in turns:
        if (arm := turn.request.arm) is not None:
            turn.request.waits = team.waiting(turn.request)
            turn.decision, turn.arm = replace(UNDECIDED, stops=arm.stops), arm
        elif not resting:
            turn.request.waits = team.waiting(turn.request)
            asked.append((turn, turn.context(team.hints(turn.request) if hinted else {}, len(turns))))
    if len(asked) > 1:
        said = guarded.plan([context for _, context in asked]) or said
    for turn, context in asked:
        turn.decision, turn.arm, trouble = guarded.choose(context, rng)
        turn.trouble = trouble or said
    team.reading.step(turn.arm.drafter for turn in turns if turn.arm.length)


def draft(turns: Sequence[Turn], team: Team, *, rows: bool = False, picked: bool = False) -> None:
    """A draft for each request, with one call per drafter for all its requests."""
    jobs: dict[str, list[tuple[int, Job]]] = {}
    for i, turn in enumerate(turns):
        if (job := turn.job(rows=rows, picked=picked)) is not None:
            jobs.setdefault(turn.arm.drafter, []).append((i, job))
    for turn, made, seconds in zip(turns, *team.draft(jobs, len(turns)), strict=True):
        turn.draft, turn.drafting = made, seconds


def unfailed(rounds: Sequence[Round]) -> Sequence[Round]:
    """The rounds, for callers that need either all texts or none.

    Raises:
        Exception: the error that ended one of the requests.
    """
    for round in rounds:
        if round.error is not None:
            raise round.error
    return rounds
