"""Runs any policy on a trace: the decoding loop itself, with the trace in place of all models.

The loop requests drafts, draws random numbers and learns exactly as in live decoding, so under greedy
decoding every round equals the live one: same arm, same draft, same accepted tokens. Times come from a table
of costs, so a policy that learns from measured times decides by this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.arms import Arm
from ...core.drafter_pool import DrafterPool
from ...core.drafts import Draft, Job, Verdict
from ...core.loop import Loop
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.roles import GradeJob, Scores
from ...core.round import Round, Seconds
from ...core.sampling import Sampling
from ...core.stops import needs
from ...errors import UserError
from ...policies.arms import TOGETHER
from ...policies.catalogue import Method, method
from ...policies.recorders.bandit import Bandit
from .cascades import Cascades
from .costs import Costs
from .files import FIELDS, Header, Recording, Trace, is_cascade
from .stage import UNKNOWN, Heard, Stage


class Target:
    """The target role: its tokens are the recorded text's."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.max_length = vocab_size, 1 << 60
        self.stage: Stage

    def open(self, request: Request) -> None:
        """Nothing to prepare."""

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """Compare every draft with the text."""
        return [Heard(self.stage, request.position, draft) for request, draft in batch]

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Nothing to roll back."""

    def close(self, request: Request) -> None:
        """Nothing to free."""


class Cast(DrafterPool):
    """The drafters of a trace: drafts come from the recording, seconds from the costs."""

    def __init__(self, header: Header, costs: Costs, cascades: Sequence[str] = ()) -> None:
        super().__init__({}, vocab_size=header.vocab_size)
        self.header = header
        self.cascades = Cascades(cascades, header.drafters, self._play, self._pay)
        self.names = {*header.drafters, *self.cascades.made, TOGETHER}
        self.costs = {name: costs.of(name) for name in header.drafters}
        self.behind = {name for name, cost in self.costs.items() if cost.catch_up}
        self.stage: Stage
        self.read: dict[str, int] = {}
        self.drew: tuple[str, ...] = ()
        self.paid = 0.0
        self.draft_now = Draft()

    def begin(self, stage: Stage) -> None:
        """Start the next text."""
        self.stage, self.read, self.drew = stage, {}, ()
        self.cascades.begin(stage)

    def hints(self, request: Request) -> dict[str, float]:
        """The recorded hints at this position; all drafters together are always ready."""
        at, cascades = request.position, self.cascades.hints(request)
        return {name: lines.hint[at] for name, lines in self.stage.lines.items()} | cascades | {TOGETHER: 1.0}

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        """The recorded drafts, and their cost in seconds."""
        drafts, spent = [Draft()] * n, [0.0] * n
        self.drew, self.draft_now = (), drafts[0]
        for name, mine in jobs.items():
            if name in self.cascades.made:
                for i, job in mine:
                    self.paid = 0.0
                    drafts[i] = self.draft_now = self.cascades.draft(name, job)
                    spent[i] = self.paid
                continue
            self.drew = tuple(self.header.drafters) if name == TOGETHER else (name,)
            for i, job in mine:
                drafts[i] = self.draft_now = draft = self.stage.draft(name, job.request.position, job)
                parts = [draft] if name != TOGETHER else self._apart(job)
                for who, part in zip(self.drew, parts, strict=True):
                    spent[i] += self.costs[who].draft(len(part.tokens)) + self._catch_up(who, job.request)
        return drafts, spent

    def observe(self, request: Request) -> None:
        """The drafter of the round has read the whole text."""
        self.cascades.observe(request)
        for name in self.drew:
            if name in self.behind:
                self.read[name] = len(request.tokens)

    def grades_itself(self, name: str) -> bool:
        """Whether the drafter graded itself when it was recorded."""
        return self.header.drafters.get(name, False)

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        """Grades from the first token of its draft at each position."""
        return [self._grade(name, job) for job in jobs]

    def width(self, name: str) -> int:
        """Only chains are recorded."""
        return 1

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        """The draft recorded there, or made again by a cascade."""
        if name in self.cascades.made:
            self.paid, view = 0.0, replace(request, tokens=request.tokens[:at])
            tokens = self.cascades.draft(name, Job(view, arm.length, arm.stops)).tokens
            self.graded_seconds += self.paid
            return tokens
        lines = self.stage.lines[name]
        first, n = lines.ends(at - request.prompt_length, arm.length, arm.stops)
        self.graded_seconds += self.costs[name].draft(n)
        return tuple(lines.tokens[first : first + n])

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        """The same as a draft."""
        tokens = self.guess(name, request, at, arm)
        return None if tokens is None else Draft.chain(tokens)

    def close(self, request: Request) -> None:
        """Drop the text."""
        self.cascades.close(request)

    def _play(self, name: str, job: Job) -> Draft:
        """A cascade's part drafts."""
        draft = self.stage.draft(name, job.request.position, job)
        self._pay(name, len(draft.tokens), job.request)
        return draft

    def _pay(self, name: str, tokens: int, request: Request) -> None:
        self.paid += self.costs[name].draft(tokens) + self._catch_up(name, request)
        self.drew = (*self.drew, name)

    def _apart(self, job: Job) -> list[Draft]:
        alone = replace(job, width=1)
        return [lines.draft(job.request.position, alone) for lines in self.stage.lines.values()]

    def _catch_up(self, name: str, request: Request, start: int | None = None) -> float:
        """Seconds for reading the tokens written since the drafter last read, or all from `start` on."""
        if name not in self.behind:
            return 0.0
        read, length = self.read.get(name, 0), len(request.tokens)
        return self.costs[name].catch_up * (length - (read if start is None else min(read, start)))

    def _grade(self, name: str, job: GradeJob) -> list[Grade]:
        lines, text = self.stage.lines[name], self.stage.text
        first, end = (x - job.request.prompt_length for x in (job.start, len(job.request.tokens)))
        own = len(job.draft.tokens) if job.draft else 0
        if end - first > own:  # its own draft tokens are in its cache
            self.graded_seconds += self.costs[name].grade
            self.graded_seconds += 0.0 if job.draft else self._catch_up(name, job.request, job.start)
        if name in self.behind:
            self.read[name] = len(job.request.tokens)
        return lines.grades(text, job.signals)[first:end]


class Priced:
    """The clock of a replay: costs from a table instead of measurements."""

    def __init__(self, costs: Costs, team: Cast, learn: float) -> None:
        self.costs, self.pool, self.learn = costs, team, learn
        self._graded = 0.0

    def target(self, seconds: float, tokens: int) -> float:
        """The cost of a pass over `tokens` tokens."""
        return self.costs.target(tokens)

    def round(self, seconds: Seconds) -> Seconds:
        """Drafting, verifying and grading at their costs; nothing else takes time."""
        grading, self._graded = self.pool.graded_seconds - self._graded, self.pool.graded_seconds
        return Seconds(draft=seconds.draft, verify=seconds.verify, grade=grading, learn=self.learn)


class Replay:
    """One method on all texts of a trace, in their order, with the random numbers of a live run."""

    def __init__(self, trace: Trace, made: Method, costs: Costs, *, seed: int = 0) -> None:
        check(made, trace.header)
        played = dict.fromkeys(arm.drafter for arm in made.policy.arms if is_cascade(arm.drafter))
        cascades = list(dict.fromkeys(trace.cascades) | played)
        self.header, self.costs, self.policy = trace.header, costs, made.policy
        self.target, self.pool = Target(trace.header.vocab_size), Cast(trace.header, costs, cascades)
        clock = Priced(costs, self.pool, 0.0 if isinstance(made.recorder, Bandit) else costs.learn)
        self.loop = Loop(self.target, self.pool, made.policy, made.recorder, seed=seed, clock=clock)

    def play(self, stage: Stage) -> Iterator[Round]:
        """The rounds of one text.

        Raises:
            UserError: the policy or its recorder failed, so that its seconds would be wrong.
        """
        one, header = stage.recording, self.header
        self.target.stage = stage
        self.pool.begin(stage)
        settings = Sampling(
            max_new_tokens=one.budget, temperature=header.temperature, eos=frozenset(header.eos)
        )
        self.loop.add(one.prompt.tolist(), settings)
        while self.loop.open:
            for round in unfailed(self.loop.step()):
                if round.fault:
                    raise UserError(f"replay: {round.fault}")
                yield round


def replay(
    trace: Trace, names: Sequence[str], costs: Costs, *, seed: int = 0
) -> Iterator[tuple[str, Recording, list[Round]]]:
    """Every text by every named policy, text by text, with its rounds.

    Raises:
        UserError: an unknown policy, or one that needs data missing in the trace.
    """
    loops = {name: Replay(trace, method(name, trace.team(name)), costs, seed=seed) for name in names}
    for recording in trace:
        stage = Stage(recording)
        for name, loop in loops.items():
            yield name, recording, list(loop.play(stage))


def check(made: Method, header: Header) -> None:
    """Check that a trace has everything that a policy uses.

    Raises:
        UserError: something is missing; says what to record.
    """
    arms = made.policy.arms
    longest = max(arm.length for arm in arms)
    if not header.greedy and any(is_cascade(arm.drafter) for arm in arms):
        raise UserError(UNKNOWN)
    stopped = [arm for arm in arms if arm.drafter == TOGETHER or any(s.rule != "never" for s in arm.stops)]
    if longest > header.length:
        raise UserError(
            f"the policy drafts up to {longest} tokens and the trace holds {header.length}: record with "
            f"--length {longest}, or give the policy a shorter one, such as ?length={header.length}"
        )
    if not header.greedy and any(
        header.drafters.get(arm.drafter, arm.drafter == TOGETHER) for arm in stopped
    ):
        raise UserError(UNKNOWN)
    if "overlap" in made.recorder.reads and not header.overlap:
        raise UserError("the policy learns from block divergence: record the trace with --overlap")
    if unknown := needs(tuple(rule for arm in arms for rule in arm.stops)) - set(FIELDS):
        raise UserError(
            f"the policy's stop rules read {', '.join(sorted(unknown))}, which a trace does not hold: "
            "measure it with `draftwise bench`"
        )
