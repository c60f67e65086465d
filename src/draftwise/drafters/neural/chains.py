"""Chains that are drafted token by token from logits, and the grades of such drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan

import torch
from torch import Tensor

from ...core.constraint import Constraint
from ...core.drafts import Draft, Job, Signals
from ...core.outcomes import Grade
from ...core.roles import GradeJob
from ...core.sampling import Sampling
from ...core.stops import TOP, factor, needs, stop
from ...models.distributions import draw, most_likely, warp, warpers
from ...models.runner import ModelRunner
from ...models.runner.drafts import MOST_STEPS, DraftInput, DraftOutput

CHOSEN = frozenset({"chosen"})  # alone, one operation is enough
PIECE = 4  # tokens that are drafted without a read where a rule may cut the draft


class RunsModel:
    """What the loop reads of a drafter that has a model of its own."""

    runner: ModelRunner

    @property
    def pass_kind(self) -> str:
        """How passes are run at present."""
        return self.runner.executor.kind

    @property
    def setup_seconds(self) -> float:
        """Seconds of work that is done once, such as compiling passes: no price of a draft."""
        return self.runner.setup_seconds


@dataclass(slots=True)
class Chain:
    """A chain while it is drafted, over `vocab_size` tokens, by a drafter that may `sample`."""

    job: Job
    vocab_size: int
    sample: bool = True
    needs: frozenset[str] = field(init=False)
    tokens: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    dist: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)
    siblings: list[list[int]] = field(default_factory=list)  # of each token, if the job wants a tree
    joint: float = 1.0
    done: bool = False
    read: int = 0  # tokens that the drafting model has read

    def __post_init__(self) -> None:
        self.needs = needs(self.job.stops)

    @property
    def is_sampled(self) -> bool:
        """True where tokens are sampled; else they are the most likely ones."""
        return self.sample and not self.job.deterministic and not self.job.request.sampling.greedy

    @property
    def reads_chosen(self) -> bool:
        """True where rules read nothing but the most likely token's probability."""
        return self.needs == CHOSEN and self.job.constraint is None and not self.is_sampled

    def extend(self, row: Tensor, pick: int, hidden: Tensor | None, chosen: float | None = None) -> None:
        """Choose one more token, append it, and check whether to stop after it.

        `row` are the raw logits of the token, shape (drafted vocabulary,), `pick` their argmax, `hidden` the
        hidden state that they came from, and `chosen` the pick's probability if the chain `reads_chosen`.
        Where the job has a constraint it chooses among the allowed tokens, and ends if it has none.
        """
        job, vocab_size = self.job, self.vocab_size
        if job.constraint is not None:
            row = job.constraint.mask(self.tokens, row)
            pick = int(row[:vocab_size].argmax())
            if not float(row[pick]) > -inf:
                self.done = True
                return
        if self.is_sampled:
            q = distributions(job.request.sampling, row[None], vocab_size)[0]
            pick = job.choose(self.tokens, q) if job.choose else draw(q, job.request.rng.random())
            self.dist.append(q)
            self.probs.append(float(q[pick]))
        if job.rows:
            self.rows.append(row[:vocab_size])
        if job.width > 1:
            best = row[:vocab_size].topk(min(job.width, vocab_size, len(row)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            self._add_siblings([token for token, value in pairs if value > -inf], pick)
        now = None
        if self.needs:
            place = job.request.position + len(self.tokens)
            if chosen is not None:
                now = Signals(0.0, 0.0, 0.0, chosen, place)
            else:
                now = signals(row[:vocab_size], pick, self.needs, place, hidden)
        self._append(pick, now)

    def uniforms(self, n: int) -> list[float]:
        """Return the numbers that the next tokens are drawn with, which stay in the request's generator."""
        rng = self.job.request.rng
        state = rng.getstate()
        numbers = [rng.random() for _ in range(n)]
        rng.setstate(state)
        return numbers

    def take(self, output: DraftOutput, row: int) -> None:
        """Append tokens that were drafted at once, up to the one after which a rule stops."""
        for step, token in enumerate(output.tokens[row]):
            probability, *numbers = output.signals[row][step]
            if self.is_sampled and output.distributions is not None:
                self.job.request.rng.random()
                self.dist.append(padded(output.distributions[row, step], self.vocab_size))
                self.probs.append(probability)
            if self.job.rows:
                self.rows.append(output.rows[row, step])
            if self.job.width > 1:
                self._add_siblings([other for other in output.best[row][step] if other >= 0], token)
            now = None
            if self.needs:
                entropy, chosen, *top = numbers
                place = self.job.request.position + len(self.tokens)
                now = Signals(top[0], (*top, 0.0)[1], entropy, chosen, place, tuple(top))
            self._append(token, now)
            self.read = len(self.tokens) - 1
            if self.done:
                return

    def _add_siblings(self, best: Sequence[int], pick: int) -> None:
        """Draft the most likely tokens beside the next one: they cost the drafter nothing."""
        self.siblings.append([token for token in best if token != pick][: self.job.width - 1])

    def _append(self, token: int, now: Signals | None) -> None:
        job = self.job
        self.tokens.append(token)
        position = len(self.tokens) - 1
        self.done = len(self.tokens) >= job.length
        if now is not None:
            previous = self.signals[-1] if self.signals else None
            self.signals.append(now)
            rule = job.stop_at(position)
            self.joint *= factor(rule, now, position=position)
            self.done |= stop(rule, now, position=position, previous=previous, joint=self.joint)
        if job.until is not None and not self.done:
            self.done = job.until(self.tokens)

    def unread(self) -> list[int]:
        """Return the tokens that the drafting model is to read next."""
        begin, self.read = self.read, len(self.tokens)
        return self.tokens[begin:]

    def force(self, device: torch.device) -> None:
        """Append tokens as long as the constraint leaves one: they need no logits.

        They are read with the tokens before them.
        """
        job, vocab_size = self.job, self.vocab_size
        if job.constraint is None or self.done or "hidden" in self.needs:
            return
        for token in job.constraint.forced(self.tokens, job.length - len(self.tokens)):
            if self.is_sampled:
                self.dist.append(
                    torch.zeros(vocab_size, device=device).index_fill(0, _index(token, device), 1)
                )
                self.probs.append(1.0)
            if job.rows:
                row = torch.full((vocab_size,), -inf, device=device)
                self.rows.append(row.index_fill(0, _index(token, device), 0.0))
            if job.width > 1:
                self.siblings.append([])  # nothing else may come
            self.tokens.append(token)
            if self.needs:
                place = job.request.position + len(self.tokens) - 1
                self.signals.append(Signals(1.0, 0.0, 0.0, 1.0, place, (1.0,)))
        self.done = len(self.tokens) >= job.length

    @property
    def draft(self) -> Draft:
        return Draft.with_siblings(
            self.tokens,
            self.siblings,
            probs=tuple(self.probs),
            dist=self.dist or None,
            signals=tuple(self.signals),
            rows=self.rows or None,
        )


def extend(chains: Sequence[Chain], logits: Tensor, states: Tensor | None) -> None:
    """Add a token to each unfinished chain, from the logits after each, shape (chains, vocabulary).

    What several chains need of their rows is computed for all of them at once.
    """
    unfinished = [row for row, chain in enumerate(chains) if not chain.done]
    within = logits[:, : chains[0].vocab_size] if chains else logits
    best = [0] * len(chains)
    if not all(chains[row].is_sampled for row in unfinished):
        best = most_likely(within)
    chosen = dict[int, float]()
    if len(chains) > 1 and (reads := [row for row in unfinished if chains[row].reads_chosen]):
        rows = within if len(reads) == len(within) else within[reads]
        chosen = dict(zip(reads, rows.softmax(-1, torch.float32).amax(-1).tolist(), strict=True))
    for row in unfinished:
        chains[row].extend(logits[row], best[row], None if states is None else states[row], chosen.get(row))


def _index(token: int, device: torch.device) -> Tensor:
    return torch.tensor([token], device=device)


Step = Callable[
    [Sequence[Sequence[int]], Sequence[Sequence[int]], Sequence[Sequence[int]] | None],
    tuple[Tensor, Tensor | None],
]
"""Runs one more drafting step for all jobs.

Its arguments are the tokens of each job, none if it is done; the indices of their parents among the tokens
read before; and for trees the parents of all tokens read in this draft. Returns raw logits, shape (jobs, most
tokens of a job, vocabulary), and the hidden states that these came from, if rules may read them.
"""


AtOnce = Callable[[Sequence[Chain], Tensor], bool]
"""Adds tokens to chains, from the logits after each, shape (chains, vocabulary); False if it cannot."""


def draft_chains(
    jobs: Sequence[Job],
    logits: Tensor,
    states: Tensor | None,
    step: Step,
    *,
    vocab_size: int,
    sample: bool,
    at_once: AtOnce | None = None,
) -> list[Draft]:
    """Draft a chain for each job; `logits` (jobs, 1, vocabulary) and `states` are those after its text."""
    chains = [Chain(job, vocab_size, sample) for job in jobs]
    while True:
        if at_once is None or not at_once(chains, logits[:, 0]):
            extend(chains, logits[:, 0], None if states is None else states[:, 0])
        if all(chain.done for chain in chains):
            return [chain.draft for chain in chains]
        logits, states = step([[] if c.done else c.tokens[-1:] for c in chains], [[0]] * len(jobs), None)


def draft_at_once(
    runner: ModelRunner,
    chains: Sequence[Chain],
    logits: Tensor,
    *,
    size: int,
    allowed: Tensor | None = None,
    states: Tensor | None = None,
    ids: Tensor | None = None,
) -> DraftOutput | None:
    """Draft several tokens without reading the device between them; None where the executor cannot.

    The chains are those of the first rows, in order, and `logits` their rows' after all tokens so far. A rule
    that reads a token's signals cuts the draft afterwards, so with rules it is made in pieces. The other
    arguments are those of `DraftInput`.
    """
    unfinished = [chain for chain in chains if not chain.done]
    is_cut = any(chain.needs or chain.job.until for chain in unfinished)
    longest = min(chain.job.length - len(chain.tokens) for chain in unfinished)
    steps = min(longest, PIECE if is_cut else MOST_STEPS)
    if steps < 2 or any(c.job.constraint or c.job.choose or "hidden" in c.needs for c in unfinished):
        return None
    given = DraftInput(
        logits,
        steps,
        chains[0].vocab_size,
        size,
        [c.uniforms(steps) if not c.done and c.is_sampled else None for c in chains],
        [chain.job.request.sampling for chain in chains],
        allowed,
        any(chain.needs for chain in unfinished),
        states,
        ids,
        max(chain.job.width for chain in unfinished),
    )
    output: DraftOutput | None = runner.executor.try_draft(runner, given)
    if output is not None:
        for row, chain in enumerate(chains):
            if not chain.done:
                chain.take(output, row)
    return output


def distributions(sampling: Sampling, rows: Tensor, vocab_size: int) -> Tensor:
    """Return the distributions that tokens are sampled from, over the target's vocabulary, float32."""
    q = warp(warpers(sampling), rows[:, :vocab_size])
    return padded(q, vocab_size)


def padded(q: Tensor, vocab_size: int) -> Tensor:
    """Distributions over a smaller vocabulary as ones over the target's, shape (..., vocabulary)."""
    missing = vocab_size - q.shape[-1]
    return torch.nn.functional.pad(q, (0, missing)) if missing > 0 else q


def drafted_rows(job: GradeJob) -> list[Tensor]:
    """Return the rows of this round's own draft that the committed text passed through, from `start` on."""
    if job.draft is None or not job.draft.rows:
        return []
    tokens, drafted = job.request.tokens[job.start :], job.draft.tokens
    same = next((k for k, pair in enumerate(zip(tokens, drafted, strict=False)) if pair[0] != pair[1]), None)
    through = min(len(tokens), len(drafted)) if same is None else same + 1
    return list(job.draft.rows[:through])


def masked(constraint: Constraint | None, tokens: Sequence[int], logits: Tensor) -> Tensor:
    """Return the logits of committed tokens, shape (tokens, vocabulary), under the draft's constraint."""
    if constraint is None or not len(logits):
        return logits
    rows = [constraint.mask(tokens[:n], row) for n, row in enumerate(logits)]
    # A drafter may have none of the tokens that are allowed.
    return torch.stack(
        [new if bool((new > -inf).any()) else row for new, row in zip(rows, logits, strict=True)]
    )


def grades(
    job: GradeJob,
    logits: Tensor,
    states: Tensor | None,
    *,
    vocab_size: int,
    sample: bool = True,
    constraint: Constraint | None = None,
) -> list[Grade]:
    """Return grades of the job's tokens from the logits at these positions, shape (tokens, vocabulary)."""
    tokens = job.request.tokens[job.start :]
    logits = masked(constraint, tokens, logits)
    sampling = job.request.sampling
    if sample and not sampling.greedy and not job.request.deterministic:
        q = distributions(sampling, logits, vocab_size)
        chances = q.gather(1, torch.tensor(tokens, device=q.device)[:, None])[:, 0].tolist()
        accept = [min(1.0, c / p) if p > 0.0 else 1.0 for c, p in zip(chances, job.probs, strict=True)]
        best = tokens
        overlap = [nan] * len(tokens)
        if job.distributions is not None:
            overlap = torch.minimum(q, job.distributions.to(q.device)).sum(-1).tolist()
    else:
        best = most_likely(logits)
        accept = [float(pick == token) for pick, token in zip(best, tokens, strict=True)]
        overlap = accept if sampling.greedy else [nan] * len(tokens)
        if job.distributions is not None:
            ids = torch.tensor(best, device=job.distributions.device)
            overlap = job.distributions.gather(1, ids[:, None])[:, 0].tolist()
    read = _signals(job, logits, best, states) if job.signals else [None] * len(tokens)
    return [Grade(*grade) for grade in zip(accept, overlap, read, strict=True)]


def _signals(
    job: GradeJob, logits: Tensor, picks: Sequence[int], states: Tensor | None
) -> Sequence[Signals | None]:
    """Return the signals of each graded token; one that the drafter does not have gets a probability of 0."""
    first, width = job.start - job.request.prompt_length, logits.shape[1]
    if job.signals == CHOSEN:
        which = torch.tensor([[min(pick, width - 1)] for pick in picks], device=logits.device)
        chosen = logits.softmax(-1, torch.float32).gather(1, which)[:, 0].tolist()
        chosen = [p if pick < width else 0.0 for p, pick in zip(chosen, picks, strict=True)]
        return [Signals(0.0, 0.0, 0.0, p, first + i) for i, p in enumerate(chosen)]
    hidden = states if states is not None else [None] * len(picks)
    rows = enumerate(zip(logits, picks, hidden, strict=True))
    return [signals(row, pick, job.signals, first + i, state) for i, (row, pick, state) in rows]


@dataclass(slots=True)
class Drift:
    """A measure of how much lower the acceptance rate of a drafter's later tokens is than its grades predict.

    Grades come from the target's states, later tokens of a draft from the drafter's own. One factor for each
    position in a draft: the ratio of the two on the drafts that were verified, with a prior of 1 that has the
    weight of `prior` accepted tokens.
    """

    prior: float = 4.0
    verified: list[float] = field(default_factory=list)
    graded: list[float] = field(default_factory=list)

    def learn(self, job: GradeJob, graded: Sequence[Grade], *, vocab_size: int, sample: bool) -> None:
        """Compare the rows of the job's own draft, if it has one, with the grades of the same tokens."""
        rows = drafted_rows(job)
        if len(rows) < 2:
            return
        request = replace(job.request, tokens=job.request.tokens[: job.start + len(rows)])
        distributions = None if job.distributions is None else job.distributions[: len(rows)]
        own = replace(
            job,
            request=request,
            probs=job.probs[: len(rows)],
            distributions=distributions,
            signals=frozenset(),
        )
        truth = grades(own, torch.stack(rows), None, vocab_size=vocab_size, sample=sample)
        missing = len(rows) - 1 - len(self.verified)
        self.verified += [0.0] * missing
        self.graded += [0.0] * missing
        for place, (actual, grade) in enumerate(zip(truth[1:], graded[1:], strict=False)):
            self.verified[place] += actual.accept
            self.graded[place] += grade.accept

    def applied(self, grade: Grade) -> Grade:
        """Return a grade with the factors of the draft positions applied."""
        pairs = zip(self.verified, self.graded, strict=True)
        factors = [min(1.0, (a + self.prior) / (b + self.prior)) for a, b in pairs]
        if not factors:
            return grade
        return replace(grade, deeper=tuple((grade.accept * f, grade.overlap * f) for f in factors))


def signals(row: Tensor, pick: int, names: frozenset[str], place: int, hidden: Tensor | None) -> Signals:
    """Return the stop signals of the raw softmax at temperature 1; those that no rule reads are omitted."""
    if names == CHOSEN:
        return Signals(0.0, 0.0, 0.0, row.softmax(-1, torch.float32)[pick].item(), place)
    logp = row.float().log_softmax(-1)
    top: list[float] = []
    if names & {"top1", "top2", "top"}:
        top = logp.topk(min(TOP if "top" in names else 2, len(logp))).values.exp().tolist()
    entropy = float(-(logp.exp() * logp).nansum()) if "entropy" in names else 0.0
    first, second = (*top, 0.0, 0.0)[:2]
    state = hidden.float().numpy(force=True) if hidden is not None and "hidden" in names else None
    likeliest = tuple(top) if "top" in names else ()
    chosen = float(logp[pick].exp()) if pick < len(logp) else 0.0  # the text has tokens that it lacks
    return Signals(first, second, entropy, chosen, place, likeliest, state)
