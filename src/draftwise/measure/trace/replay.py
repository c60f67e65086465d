"""Runs any policy on a trace: the decoding loop itself, with the trace in place of all models.

The loop requests drafts, draws random numbers and learns exactly as in live decoding, so under greedy
decoding every round equals the live one: same arm, same draft, same accepted tokens. Times come from a table
of costs, so a policy that learns from measured times decides by this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any, cast

from ... import registry
from ...core.arms import NEVER, Arm
from ...core.drafter_pool import DrafterPool
from ...core.drafts import Draft, Job, Verdict, after
from ...core.loop import Loop
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import GradeJob, Scores
from ...core.round import Round, Seconds
from ...core.stops import needs
from ...drafters.cascade import CascadeDrafter, merged
from ...errors import UserError, one_line
from ...policies.arms import TOGETHER
from ...policies.catalogue import Method
from ...policies.recorders.bandit import Bandit
from ...specs import parse_drafter
from .costs import Costs
from .files import FIELDS, Header, Trace, is_cascade
from .state import UNKNOWN, RecordedDrafter, ReplayState


class ReplayScores:
    """The scores of one draft: the text has the target's choice after every node on its path.

    A sampled draft is accepted with the recorded probabilities given the text, or, of a head, where it equals
    the text, given which it was sampled. Since they are conditional on the text, texts and random numbers
    together have exactly the distribution of live rounds.
    """

    __slots__ = ("at", "depths", "draft", "state", "text")

    def __init__(self, state: ReplayState, at: int, draft: Draft) -> None:
        self.state, self.at, self.draft, self.text = state, at, draft, state.text
        self.depths = None if draft.is_chain else find_depths(draft.parents)

    def choice(self, node: int) -> int:
        depth = node + 1 if self.depths is None or node < 0 else self.depths[node]
        return self.text[self.at + depth]

    def prob(self, node: int) -> float:
        """Return the probability that a sampled `node` is accepted."""
        drafter: RecordedDrafter = self.draft.dist
        return drafter.accept[self.at + node]

    def residual(self, node: int) -> int:
        return self.choice(self.draft.parents[node])

    def logprob(self, node: int, token: int) -> float:
        """Return the log-probability of a token; tokens not in the trace count as impossible."""
        return log(self.chance(node, token) or 5e-324)

    def chance(self, node: int, token: int) -> float:
        """Return the target's probability of a token of the text, or of one that a lookup drafted there."""
        if not self.state.chances:
            return float(self.choice(node) == token)
        return self.state.chances.get((self.at + node + 1, token), 0.0)

    def distributions(self, nodes: Sequence[int]) -> None:
        """Return nothing: grades were computed when recording."""

    def overlaps(self) -> Sequence[float]:
        drafter, first = self.draft.rows
        overlaps: list[float] = drafter.overlap[first : first + len(self.draft.tokens)]
        return overlaps


def find_depths(parents: Sequence[int]) -> list[int]:
    """Return for each node of a tree the tokens from the last committed one down to it, itself included."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


class ReplayTarget:
    """The target role: its tokens are the recorded text's."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.max_length = vocab_size, 1 << 60
        self.state: ReplayState

    def open(self, request: Request) -> None:
        """Nothing to prepare."""

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        return [ReplayScores(self.state, request.position, draft) for request, draft in batch]

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Nothing to roll back."""

    def close(self, request: Request) -> None:
        """Nothing to free."""


class FirstPart:
    """A recorded drafter that may begin a cascade's drafts; a head cannot continue another's."""

    lookup: Any = None

    def __init__(self, name: str, pool: ReplayPool) -> None:
        self.name, self.pool = name, pool

    def hint(self, request: Request) -> float:
        return self.pool.state.drafters[self.name].hint[request.position]


class CascadePart(FirstPart):
    """A recorded drafter that may also continue a cascade's drafts.

    A lookup's continuation of other tokens is looked up again, in the text so far. A model's is its recorded
    draft where those tokens are the text's; elsewhere the text rejects them before it, so that its length
    alone counts.
    """

    def __init__(self, name: str, pool: ReplayPool, *, grades: bool) -> None:
        super().__init__(name, pool)
        self.lookup = None if grades else registry.build("drafters", parse_drafter(name))

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """Return one draft per job, after these tokens.

        Raises:
            UserError: stop rules decide how long a model's draft after wrong tokens is.
        """
        if self.lookup is None:
            return [self._draft_after(job, tokens) for job, tokens in zip(jobs, written, strict=True)]
        drafts: list[Draft] = self.lookup.draft_after(jobs, written)
        for job, draft in zip(jobs, drafts, strict=True):
            self.pool.pay(self.name, len(draft.tokens), job.request)
        return drafts

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        match: int = self.lookup.match_after(request, written)
        return match

    def _draft_after(self, job: Job, tokens: Sequence[int]) -> Draft:
        state, at = self.pool.state, job.request.position
        end = at + len(tokens)
        if state.text[at:end] == list(tokens) and end < state.recording.committed:
            return self.pool.draft_part(self.name, after(job, tokens))
        if job.stops != (NEVER,):
            raise UserError(
                f"a trace does not hold what {self.name} drafts after wrong tokens: give no stop rule"
            )
        self.pool.pay(self.name, job.length, job.request)
        return Draft.chain((0,) * job.length)


class ReplayPool(DrafterPool):
    """The drafters of a trace: drafts come from the recording, seconds from the costs.

    Raises:
        UserError: a cascade's parts are not recorded, or the second cannot continue a draft.
    """

    def __init__(self, header: Header, costs: Costs, cascades: Sequence[str] = ()) -> None:
        super().__init__({}, vocab_size=header.vocab_size)
        self.header, self.waits = header, frozenset(header.waits)
        self.parts: dict[str, FirstPart] = {}
        self.drafters = cast(Any, self.parts)  # which cascades look up
        self.cascades = {name: self._join(name) for name in cascades}
        self.names = {*header.drafters, *self.cascades, TOGETHER}
        self.costs = {name: costs.of(name) for name in header.drafters}
        self.behind = {name for name, cost in self.costs.items() if cost.catch_up}
        self.state: ReplayState
        self.read: dict[str, int] = {}
        self.drew: tuple[str, ...] = ()
        self.observed, self.paid, self.last_draft = 0, 0.0, Draft()

    def _join(self, name: str) -> CascadeDrafter:
        spec = parse_drafter(name)
        cascade: CascadeDrafter = registry.build("drafters", spec, spec.path)
        for part in cascade.parts:
            if part in self.header.drafters and part not in self.parts:
                grades = self.header.drafters[part]
                waits = part in self.waits
                self.parts[part] = FirstPart(part, self) if waits else CascadePart(part, self, grades=grades)
        cascade.join(self)
        return cascade

    def begin(self, state: ReplayState) -> None:
        self.state, self.read, self.drew, self.observed = state, {}, (), 0

    def collect_hints(self, request: Request) -> dict[str, float]:
        """Return the recorded hints at this position; all drafters together are always ready."""
        hints = {name: drafter.hint[request.position] for name, drafter in self.state.drafters.items()}
        hints |= {name: cascade.hint(request) for name, cascade in self.cascades.items()}
        return hints | {TOGETHER: 1.0}

    def find_not_ready(self, request: Request) -> frozenset[str]:
        """Return the heads, in a text's first round: the target has no hidden states yet."""
        return frozenset() if request.position else self.waits

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        drafts, spent = [Draft()] * n, [0.0] * n
        self.drew, self.last_draft = (), drafts[0]
        for name, batch in jobs.items():
            for i, job in batch:
                self.paid = 0.0
                drafts[i] = self.last_draft = self._draft_one(name, job)
                spent[i] = self.paid
        return drafts, spent

    def _draft_one(self, name: str, job: Job) -> Draft:
        if name in self.cascades:
            return self.cascades[name].draft([job])[0]
        if name != TOGETHER:
            return self.draft_part(name, job)
        alone = Job(job.request, job.length, job.stops)
        return merged((self.draft_part(part, alone) for part in self.state.drafters), job.length * job.width)

    def ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        return [self.draft_part(name, job) for job in jobs]

    def draft_part(self, name: str, job: Job) -> Draft:
        """Return a recorded draft, and add its cost."""
        draft = self.state.draft(name, job.request.position, job)
        self.pay(name, len(draft.tokens), job.request)
        return draft

    def pay(self, name: str, tokens: int, request: Request) -> None:
        """Add the cost of a draft of so many tokens."""
        self.paid += self.costs[name].draft(tokens) + self._catch_up(name, request)
        self.drew = (*self.drew, name)

    def observe(self, request: Request) -> None:
        """Note that the drafters of the round have read the text, and show it to the lookups of cascades."""
        for part in self.parts.values():
            if part.lookup is not None:
                part.lookup.observe(request, request.tokens[self.observed :])
        self.observed = len(request.tokens)
        self.read |= {name: self.observed for name in self.drew if name in self.behind}

    def grades_itself(self, name: str) -> bool:
        return self.header.drafters.get(name, False)

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        return [self._grade(name, job) for job in jobs]

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        """Return the draft recorded there, or made again by a cascade."""
        if name in self.cascades:
            self.paid, view = 0.0, replace(request, tokens=request.tokens[:at])
            tokens = self.cascades[name].draft([Job(view, arm.length, arm.stops)])[0].tokens
            self.graded_seconds += self.paid
            return tokens
        drafter = self.state.drafters[name]
        first, n = drafter.stopped_span(at - request.prompt_length, arm.length, arm.stops)
        self.graded_seconds += self.costs[name].draft(n)
        return tuple(drafter.tokens[first : first + n])

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        tokens = self.guess(name, request, at, arm)
        return None if tokens is None else Draft.chain(tokens)

    def close(self, request: Request) -> None:
        for part in self.parts.values():
            if part.lookup is not None:
                part.lookup.close(request)

    def fault(self, name: str, request: Request, what: str | Exception) -> None:
        """Refuse a part that failed: the seconds of a replay would be wrong."""
        raise UserError(f"replay: {name}: {what if isinstance(what, str) else one_line(what)}")

    def _catch_up(self, name: str, request: Request, start: int | None = None) -> float:
        """Return seconds for reading what was written since the drafter last read, or all from `start` on."""
        if name not in self.behind:
            return 0.0
        read, length = self.read.get(name, 0), len(request.tokens)
        return self.costs[name].catch_up * (length - (read if start is None else min(read, start)))

    def _grade(self, name: str, job: GradeJob) -> list[Grade]:
        first, end = (x - job.request.prompt_length for x in (job.start, len(job.request.tokens)))
        own = len(job.draft.tokens) if job.draft else 0
        if end - first > own:  # its own draft tokens are in its cache
            self.graded_seconds += self.costs[name].grade
            self.graded_seconds += 0.0 if job.draft else self._catch_up(name, job.request, job.start)
        if name in self.behind:
            self.read[name] = len(job.request.tokens)
        return self.state.drafters[name].grades(job.signals)[first:end]


class PricedClock:
    """The clock of a replay: costs from a table instead of measurements."""

    def __init__(self, costs: Costs, pool: DrafterPool, learn: float) -> None:
        self.costs, self.pool, self.learn = costs, pool, learn
        self._graded = 0.0

    def target(self, seconds: float, tokens: int) -> float:
        return self.costs.target(tokens)

    def round(self, seconds: Seconds) -> Seconds:
        """Return drafting, verifying and grading at their costs; nothing else takes time."""
        grading, self._graded = self.pool.graded_seconds - self._graded, self.pool.graded_seconds
        return Seconds(draft=seconds.draft, verify=seconds.verify, grade=grading, learn=self.learn)


class Replay:
    """One method on all texts of a trace, in their order, with the random numbers of a live run."""

    def __init__(self, trace: Trace, method: Method, costs: Costs, *, seed: int = 0) -> None:
        check_method(method, trace.header)
        named = dict.fromkeys(arm.drafter for arm in method.policy.arms if is_cascade(arm.drafter))
        self.header, self.costs, self.policy = trace.header, costs, method.policy
        self.target = ReplayTarget(trace.header.vocab_size)
        self.pool = ReplayPool(trace.header, costs, list(dict.fromkeys(trace.cascades) | named))
        clock = PricedClock(costs, self.pool, 0.0 if isinstance(method.recorder, Bandit) else costs.learn)
        self.loop = Loop(self.target, self.pool, method.policy, method.recorder, seed=seed, clock=clock)

    def replay(self, state: ReplayState) -> Iterator[Round]:
        """Yield the rounds of one text."""
        recording = state.recording
        self.target.state = state
        self.pool.begin(state)
        settings = replace(self.header.sampling, max_new_tokens=recording.budget)
        self.loop.add(recording.prompt.tolist(), settings)
        while self.loop.open:
            for round in unfailed(self.loop.step()):
                if round.fault:
                    raise UserError(f"replay: {round.fault}")
                yield round


def check_method(method: Method, header: Header) -> None:
    """Check that a trace has everything that a policy uses."""
    arms = method.policy.arms
    longest = max(arm.length for arm in arms)
    stopped = [arm for arm in arms if arm.drafter == TOGETHER or any(s.rule != "never" for s in arm.stops)]
    if longest > header.length:
        raise UserError(
            f"the policy drafts up to {longest} tokens and the trace holds {header.length}: record with "
            f"--length {longest}, or give the policy a shorter one, such as ?length={header.length}"
        )
    unrecorded = {TOGETHER} | {name for name, grades in header.drafters.items() if grades} - {*header.waits}
    reads_overlap = "overlap" in method.recorder.reads
    samples = any(arm.drafter in unrecorded for arm in (arms if reads_overlap else stopped))
    if not header.greedy and (samples or any(is_cascade(arm.drafter) for arm in arms)):
        raise UserError(UNKNOWN)
    if reads_overlap and not header.overlap:
        raise UserError("the policy learns from block divergence: record the trace with --overlap")
    if unknown := needs(tuple(rule for arm in arms for rule in arm.stops)) - set(FIELDS):
        raise UserError(
            f"the policy's stop rules read {', '.join(sorted(unknown))}, which a trace does not hold: "
            "measure it with `draftwise bench`"
        )
