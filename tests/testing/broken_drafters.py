"""Drafters that break one rule each. Each names the checks that must fail, and no other may."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

from draftwise.core.drafts import Draft, Job
from draftwise.core.outcomes import Grade
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.testing import SimDrafter, shape, softmax
from draftwise.testing.suites.suite import VOCABULARY, second_order


class Sound(SimDrafter):
    """A drafter in order: the others differ from it by one fault."""

    fails: frozenset[str] = frozenset()
    samples = 500

    def __init__(self) -> None:
        super().__init__(second_order(seed=8))


def fails(*checks: str) -> Any:
    """Names what must fail, without its `test_`."""

    def mark(kind: type) -> type:
        kind.fails = frozenset(f"test_{check}" for check in checks)  # type: ignore[attr-defined]
        return kind

    return mark


@fails(
    "it_has_every_method_of_the_role",
    "a_request_that_it_never_saw_can_be_closed",
    "jobs_for_picked_tokens_get_no_drawn_ones",  # two that close their requests
    "drafts_after_rejections_are_those_of_a_fresh_drafter",
)
class NoClose:
    """Lacks a method."""

    def __init__(self) -> None:
        sound = Sound()
        self.hint, self.draft, self.observe, self.grade = sound.hint, sound.draft, sound.observe, sound.grade


@fails("no_call_raises")
class Raises(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        if any(len(job.request.tokens) % 11 == 10 for job in jobs):
            raise IndexError("list index out of range")
        return super().draft(jobs)


@fails("hints_are_finite_numbers")
class HintsNothing(Sound):
    def hint(self, request: Request) -> float:
        return nan if request.position == 7 else 1.0


@fails("every_job_gets_a_draft")
class LeavesOutTheLast(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return super().draft(jobs)[: 1 + len(jobs) // 2]


@fails("every_job_gets_a_draft")
class DraftsNoDraft(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        none: Any = None
        return [draft if draft.tokens[0] != 2 else none for draft in super().draft(jobs)]


@fails("the_order_of_jobs_does_not_matter")
class DraftsInItsOwnOrder(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        if len(jobs) == 3:
            jobs = [replace(jobs[i], request=jobs[j].request) for i, j in enumerate((0, 2, 1))]
        return super().draft(jobs)


@fails("drafts_are_no_longer_than_asked")
class TooLong(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        longer = [replace(job, length=6, width=1) if job.length == 5 else job for job in jobs]
        return super().draft(longer)


@fails("drafted_tokens_are_ids_of_the_vocabulary")
class OutsideTheVocabulary(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft.chain([VOCABULARY]) if job.length == 1 else self._chain(job) for job in jobs]


@fails("parents_come_before_their_children")
class ParentsAhead(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [
            replace(d, parents=tuple(range(len(d.tokens)))) if d.dist is None else d
            for d in super().draft(jobs)
        ]


@fails("probabilities_belong_to_their_distributions")
class ProbabilityOfTheLikeliest(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [
            replace(d, probs=tuple(float(q.max()) for q in d.dist))
            if d.dist is not None and len(d.tokens) > 3
            else d
            for d in super().draft(jobs)
        ]


@fails(
    "tokens_are_drawn_from_the_distributions_they_come_with",
    "sampled_text_has_the_targets_distribution",
    "sampled_text_in_batches_has_the_targets_distribution",
)
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


LOTS = random.Random(5)


@fails("the_same_seed_gives_the_same_drafts")
class DrawsElsewhere(Sound):
    """Draws with a generator of the whole program."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return super().draft([replace(job, request=replace(job.request, rng=LOTS)) for job in jobs])


@fails("jobs_for_picked_tokens_get_no_drawn_ones")
class AlwaysDraws(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return super().draft([replace(job, deterministic=False) for job in jobs])


@fails("signals_are_probabilities_and_an_entropy")
class SureBeyondMeasure(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [
            replace(d, signals=tuple(replace(s, chosen=1.5) for s in d.signals)) for d in super().draft(jobs)
        ]


@fails("drafts_end_where_a_stop_rule_fires")
class NeverStops(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return super().draft(
            [Job(j.request, j.length, rows=j.rows, deterministic=j.deterministic) for j in jobs]
        )


@fails("rows_are_the_logits_of_the_drafted_tokens")
class RowsOfProbabilities(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [replace(d, rows=d.dist if d.rows is not None else None) for d in super().draft(jobs)]


@fails("requests_are_left_as_they_are")
class DrawsInHint(Sound):
    def hint(self, request: Request) -> float:
        return request.rng.random()


class Meddles(Sound):
    """Changes the text it is shown, now and then."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = super().draft(jobs)
        for job in jobs:
            if self.meddles(job.request, len(jobs)):
                job.request.tokens[-1] = (job.request.tokens[-1] + 1) % VOCABULARY
        return made

    def meddles(self, request: Request, batch: int) -> bool:
        raise NotImplementedError


ALONE = "greedy_text_is_the_targets_own"
BATCH = "greedy_text_in_a_batch_is_the_targets_own"
JOIN = "requests_that_join_and_leave_get_their_own_text"
WINDOW = "text_up_to_the_end_of_the_window_is_the_targets_own"
LEFT = "requests_are_left_as_they_are"


@fails(LEFT, ALONE)
class MeddlesAlone(Meddles):
    """Only where a text is decoded by itself from beginning to end."""

    together = False

    def meddles(self, request: Request, batch: int) -> bool:
        self.together |= batch > 1
        ends = request.sampling.max_new_tokens
        return not self.together and ends == 40 and request.id == 3 and request.position > 30


@fails(LEFT, BATCH, JOIN, "faults_cost_no_text")
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
        return request.sampling.max_new_tokens == 9


@fails("a_text_that_goes_on_after_its_end_is_the_targets_own")
class MeddlesWithLaterTurns(Meddles):
    def meddles(self, request: Request, batch: int) -> bool:
        return request.prompt_length > 12


class CopiesTheGenerator(Sound):
    """Draws with a copy of the request's generator, so that the test of its token sees the same number."""

    batches = range(1, 99)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        copied = [job for job in jobs]
        if len(jobs) in self.batches:
            for i, job in enumerate(jobs):
                lots = random.Random()
                lots.setstate(job.request.rng.getstate())
                copied[i] = replace(job, request=replace(job.request, rng=lots))
        return super().draft(copied)


@fails("sampled_text_has_the_targets_distribution")
class CopiesAlone(CopiesTheGenerator):
    batches = range(1, 2)


@fails("sampled_text_in_batches_has_the_targets_distribution")
class CopiesInBatches(CopiesTheGenerator):
    samples = 3000
    batches = range(2, 99)


@fails(
    "drafts_after_rejections_are_those_of_a_fresh_drafter",
    "grades_are_what_its_distributions_say",  # its draft is of another text than its grades
)
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


@fails("faults_cost_no_text")
class NeedsEveryCall(Sound):
    """Trusts that it is told of every round until the end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.seen[request.id] = self.seen.get(request.id, 0) + len(new)

    def close(self, request: Request) -> None:
        seen = self.seen.pop(request.id, 0)
        if seen and seen != len(request.tokens):
            raise KeyError(seen)


@fails("closed_requests_leave_nothing_behind")
class KeepsALog(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        self.log.append(len(jobs))
        return super().draft(jobs)


@fails("a_request_that_it_never_saw_can_be_closed", "faults_cost_no_text")
class ForgetsOnlyWhatItKnows(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, bool] = {}

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.seen[request.id] = True

    def close(self, request: Request) -> None:
        del self.seen[request.id]


@fails("grades_are_what_its_distributions_say")
class FlattersItself(Sound):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        return [[replace(g, accept=g.accept**0.5) for g in grades] for grades in super().grade(jobs)]


@fails("grades_are_what_its_distributions_say")
class OverlapsTooMuch(Sound):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        made = super().grade(jobs)
        return [[replace(g, overlap=min(1.0, g.overlap + 0.1)) for g in grades] for grades in made]


@fails("grades_are_what_its_distributions_say", "grades_have_the_signals_that_are_asked_for")
class GradesTooFew(Sound):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        return [grades[1:] for grades in super().grade(jobs)]


@fails("grades_have_the_signals_that_are_asked_for")
class GradesWithoutSignals(Sound):
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        return [[replace(g, signals=None) for g in grades] for grades in super().grade(jobs)]


@fails("drafts_are_accepted_and_rejected")
class NeverDrafts(Sound):
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft()] * len(jobs)


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


KINDS = [kind for kind in list(globals().values()) if isinstance(kind, type)]
BROKEN: list[Any] = [kind for kind in KINDS if vars(kind).get("fails")]
