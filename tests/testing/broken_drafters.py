"""Drafters that break one rule each. Each names the checks that must fail, and no other may."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

from draftwise.core.drafts import Draft, Job
from draftwise.core.outcomes import Grade
from draftwise.core.request import Request
from draftwise.testing import SimDrafter, shape, softmax
from draftwise.testing.suites.suite import VOCABULARY, second_order

BROKEN: list[Any] = []
TEXT = "greedy_text_is_the_targets_own"
JOIN = "requests_that_join_and_leave_get_their_own_text"
WINDOW = "text_up_to_the_end_of_the_window_is_the_targets_own"
TURNS = "a_text_that_goes_on_after_its_end_is_the_targets_own"
SAMPLED = "sampled_text_has_the_targets_distribution"
FAULTS = "faults_cost_no_text"
LEFT = "requests_are_left_as_they_are"
FRESH = "drafts_after_rejections_are_those_of_a_fresh_drafter"
PICKED = "jobs_for_picked_tokens_get_no_drawn_ones"
UNSEEN = "a_request_that_it_never_saw_can_be_closed"
GRADES = "grades_are_what_its_distributions_say"


class Sound(SimDrafter):
    """A drafter in order: the others differ from it by one fault."""

    fails: frozenset[str] = frozenset()
    samples = 500

    def __init__(self) -> None:
        super().__init__(second_order(seed=8))


def fails(*checks: str, into: list[Any] = BROKEN) -> Any:
    """Names what must fail, without its `test_`."""

    def mark(kind: Any) -> Any:
        kind.fails = frozenset(f"test_{check}" for check in checks)
        into.append(kind)
        return kind

    return mark


def broken(
    name: str, *checks: str, base: type = Sound, into: list[Any] = BROKEN, **methods: Callable[..., Any]
) -> None:
    """Add a kind with these methods, which are given those of the sound one."""

    def method(of: str, function: Callable[..., Any]) -> Any:
        return lambda self, *given: function(partial(getattr(base, of), self), *given)

    body = {of: method(of, function) for of, function in methods.items()}
    fails(*checks, into=into)(type(name, (base,), body))


def each(change: Callable[[Draft], Any]) -> Callable[..., Any]:
    """A change of each draft."""
    return lambda sound, jobs: [change(draft) for draft in sound(jobs)]


def each_job(change: Callable[[Job], Job]) -> Callable[..., Any]:
    """A change of what each draft is made for."""
    return lambda sound, jobs: sound([change(job) for job in jobs])


def each_grade(change: Callable[[Grade], Grade]) -> Callable[..., Any]:
    """A change of each grade."""
    return lambda sound, jobs: [[change(grade) for grade in grades] for grades in sound(jobs)]


def misplaced(sound: Any, jobs: Sequence[Job]) -> Any:
    """Drafts of three requests, two of them exchanged."""
    if len(jobs) == 3:
        jobs = [replace(jobs[i], request=jobs[j].request) for i, j in enumerate((0, 2, 1))]
    return sound(jobs)


LOTS = random.Random(5)
broken(
    "Raises",
    "no_call_raises",
    draft=lambda sound, jobs: sound(jobs) if all(len(j.request.tokens) % 11 != 10 for j in jobs) else 1 / 0,
)
broken(
    "HintsNothing",
    "hints_are_finite_numbers",
    hint=lambda sound, request: nan if request.position == 7 else 1.0,
)
broken(
    "LeavesOutTheLast",
    "every_job_gets_a_draft",
    draft=lambda sound, jobs: sound(jobs)[: 1 + len(jobs) // 2],
)
broken("DraftsNoDraft", "every_job_gets_a_draft", draft=each(lambda d: d if d.tokens[0] != 2 else None))
broken("DraftsInItsOwnOrder", "the_order_of_jobs_does_not_matter", draft=misplaced)
broken(
    "TooLong",
    "drafts_are_no_longer_than_asked",
    draft=each_job(lambda job: replace(job, length=6, width=1) if job.length == 5 else job),
)
broken(
    "OutsideTheVocabulary",
    "drafted_tokens_are_ids_of_the_vocabulary",
    draft=each(lambda d: Draft.chain([VOCABULARY]) if len(d.tokens) == 1 and d.dist is None else d),
)
broken(
    "ParentsAhead",
    "parents_come_before_their_children",
    draft=each(lambda d: replace(d, parents=tuple(range(len(d.tokens)))) if d.dist is None else d),
)
broken(
    "ProbabilityOfTheLikeliest",
    "probabilities_belong_to_their_distributions",
    draft=each(
        lambda d: (
            replace(d, probs=tuple(float(q.max()) for q in d.dist))
            if d.dist is not None and len(d.tokens) > 3
            else d
        )
    ),
)
broken(  # draws with a generator of the whole program
    "DrawsElsewhere",
    "the_same_seed_gives_the_same_drafts",
    draft=each_job(lambda job: replace(job, request=replace(job.request, rng=LOTS))),
)
broken("AlwaysDraws", PICKED, draft=each_job(lambda job: replace(job, deterministic=False)))
broken(
    "SureBeyondMeasure",
    "signals_are_probabilities_and_an_entropy",
    draft=each(lambda d: replace(d, signals=tuple(replace(s, chosen=1.5) for s in d.signals))),
)
broken(
    "NeverStops",
    "drafts_end_where_a_stop_rule_fires",
    draft=each_job(lambda j: Job(j.request, j.length, rows=j.rows, deterministic=j.deterministic)),
)
broken(
    "RowsOfProbabilities",
    "rows_are_the_logits_of_the_drafted_tokens",
    draft=each(lambda d: replace(d, rows=d.dist if d.rows is not None else None)),
)
broken("DrawsInHint", LEFT, hint=lambda sound, request: request.rng.random())
broken("NeverDrafts", "drafts_are_accepted_and_rejected", draft=each(lambda d: Draft()))
broken("FlattersItself", GRADES, grade=each_grade(lambda g: replace(g, accept=g.accept**0.5)))
broken("OverlapsTooMuch", GRADES, grade=each_grade(lambda g: replace(g, overlap=min(1.0, g.overlap + 0.1))))
broken(
    "GradesTooFew",
    GRADES,
    "grades_have_the_signals_that_are_asked_for",
    grade=lambda sound, jobs: [grades[1:] for grades in sound(jobs)],
)
broken(
    "GradesWithoutSignals",
    "grades_have_the_signals_that_are_asked_for",
    grade=each_grade(lambda g: replace(g, signals=None)),
)


@fails("it_has_every_method_of_the_role", UNSEEN, PICKED, FRESH)  # the last two close their requests
class NoClose:
    """Lacks a method."""

    def __init__(self) -> None:
        sound = Sound()
        self.hint, self.draft, self.observe, self.grade = sound.hint, sound.draft, sound.observe, sound.grade


@fails("tokens_are_drawn_from_the_distributions_they_come_with", SAMPLED)
class PickedAsDrawn(Sound):
    """Declares its most likely token as a draw."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = []
        for job in jobs:
            if not self._samples(job.request) or job.deterministic:
                made.append(self._chain(job))
                continue
            draft = self._chain(replace(job, deterministic=True))
            history, dist = list(job.request.tokens), []
            for token in draft.tokens:
                dist.append(softmax(self.distribution(history)))
                history.append(token)
            probs = [float(q[t]) for q, t in zip(dist, draft.tokens, strict=True)]
            made.append(Draft.chain(draft.tokens, probs=probs, dist=dist, signals=draft.signals))
        return made


class Meddles(Sound):
    """Changes the text it is shown, now and then."""

    together = False

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = super().draft(jobs)
        self.together |= len(jobs) > 1
        for job in jobs:
            if self.meddles(job.request, len(jobs)):
                job.request.tokens[-1] = (job.request.tokens[-1] + 1) % VOCABULARY
        return made

    def meddles(self, request: Request, batch: int) -> bool:
        raise NotImplementedError


@fails(LEFT, TEXT)
class MeddlesAlone(Meddles):
    """Only where a text is decoded by itself from beginning to end."""

    def meddles(self, request: Request, batch: int) -> bool:
        ends = request.sampling.max_new_tokens
        return not self.together and ends == 40 and request.id == 3 and request.position > 30


@fails(LEFT, TEXT, JOIN, FAULTS)
class MeddlesInBatches(Meddles):
    def meddles(self, request: Request, batch: int) -> bool:
        return batch > 1 and request.sampling.greedy and request.position == 3


@fails(JOIN)
class MeddlesWithLateOnes(Meddles):
    def meddles(self, request: Request, batch: int) -> bool:
        return request.id > 3 and request.sampling.max_new_tokens == 40


@fails(WINDOW)
class MeddlesAtTheEnd(Meddles):
    def meddles(self, request: Request, batch: int) -> bool:
        return request.sampling.max_new_tokens == 10


@fails(TURNS)
class MeddlesWithLaterTurns(Meddles):
    def meddles(self, request: Request, batch: int) -> bool:
        return request.prompt_length > 12


@fails(SAMPLED)
class CopiesTheGenerator(Sound):
    """Draws with a copy of the request's generator, so that the test of its token sees the same number."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return super().draft([self.copied(job) if self.copies(len(jobs)) else job for job in jobs])

    def copied(self, job: Job) -> Job:
        lots = random.Random()
        lots.setstate(job.request.rng.getstate())
        return replace(job, request=replace(job.request, rng=lots))

    def copies(self, batch: int) -> bool:
        return batch == 1


@fails(SAMPLED)
class CopiesInBatches(CopiesTheGenerator):
    samples = 3000

    def copies(self, batch: int) -> bool:
        return batch > 1


@fails(FRESH, GRADES)  # its draft is of another text than its grades
class KeepsRejectedTokens(Sound):
    """Continues from its own draft, whatever became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.mine: dict[int, tuple[int, ...]] = {}

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = []
        for job in jobs:
            old = self.mine.get(job.request.id, ())
            view = replace(job.request, tokens=[*job.request.tokens, *old[-1:]])
            draft = self._chain(replace(job, request=view if job.request.sampling.greedy else job.request))
            made.append(draft)
            self.mine[job.request.id] = draft.tokens
        return made

    def close(self, request: Request) -> None:
        self.mine.pop(request.id, None)


class Counts(Sound):
    """Counts the tokens that it was shown of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.seen[request.id] = self.seen.get(request.id, 0) + len(new)


@fails(FAULTS)
class NeedsEveryCall(Counts):
    """Trusts that it is told of every round until the end."""

    def close(self, request: Request) -> None:
        seen = self.seen.pop(request.id, 0)
        if seen and seen != len(request.tokens):
            raise KeyError(seen)


@fails("closed_requests_leave_nothing_behind")
class KeepsALog(Counts):
    """Forgets nothing."""


@fails(UNSEEN, FAULTS)
class ForgetsOnlyWhatItKnows(Counts):
    def close(self, request: Request) -> None:
        del self.seen[request.id]


@fails("drafts_are_accepted_and_rejected")
class AlwaysRight(Sound):
    """Picks what the target picks."""

    grade: Any = None

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [self._own(job) if job.request.sampling.greedy else Draft() for job in jobs]

    def _own(self, job: Job) -> Draft:
        request, distribution = job.request, second_order()
        history = list(request.tokens)
        while len(history) < len(request.tokens) + job.length:
            p = shape(distribution(history), history, request.prompt_length, request.sampling)
            history.append(int(p.argmax()))
        return Draft.chain(history[len(request.tokens) :])
