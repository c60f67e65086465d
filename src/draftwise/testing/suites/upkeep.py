"""What a drafter keeps, what it draws with, and how it grades itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.arms import Arm
from ...core.outcomes import Feedback, Grade
from ...core.request import Request
from ...core.roles import GradeJob, Grader, Graders, RoundRecord
from ...core.sampling import Sampling
from ..world import drafting
from .checks import fail, size_of, skip
from .drafts import CLOSE, _row
from .plays import GREEDY, NAME, PLAIN, SETTINGS, Plays
from .watch import Made

OTHERS = "learns=True tells the suite that drafts depend on more than the text"


class UpkeepChecks(Plays):
    """Checks across calls."""

    def test_requests_are_left_as_they_are(self) -> None:
        """No call changes the text, the settings or the generators; `draft` may draw from `rng`."""
        for name, play in self.plays.items():
            for method in play.watch.changed[:1]:
                fail(f"{method} changed its request ({name})", "copy what you change; draw in `draft` only")

    def test_the_order_of_jobs_does_not_matter(self) -> None:
        """Each job gets the draft that is its own."""
        if self.learns:
            skip("it learns from other texts")
        plain, turned = self.play("greedy batch"), self.run(SETTINGS["greedy batch"], reverse=True)
        self._alike(plain.watch.made, turned.watch.made, "in another order", "return drafts in job order")

    def test_the_same_seed_gives_the_same_drafts(self) -> None:
        """A new drafter drafts what the one before it drafted."""
        for name in ("greedy", "sampled"):
            again = self.run(SETTINGS[name])
            self._alike(
                self.play(name).watch.made,
                again.watch.made,
                "in a second run",
                "draw from job.request.rng alone, and share nothing between drafters",
            )

    def test_drafts_after_rejections_are_those_of_a_fresh_drafter(self) -> None:
        """What was rejected, or drafted by others, leaves no trace."""
        if self.learns:
            skip("it learns from what it drafted")
        drafter: Any = self.fresh(type(self).target())
        if hasattr(drafter, "ready"):
            skip("it waits for the target")
        for at, made in enumerate(self.play("greedy").watch.made):
            request = replace(made.job.request, id=10_000 + at, tokens=list(made.text))
            drafter.observe(request, request.tokens)
            (draft,) = drafter.draft([replace(made.job, request=request)])
            drafter.close(request)
            if draft.tokens != made.draft.tokens:
                fail(
                    f"{made.draft.tokens} after {made.text[-4:]}, where a fresh drafter has {draft.tokens}",
                    f"forget rejected tokens; {OTHERS}",
                )

    def test_closed_requests_leave_nothing_behind(self) -> None:
        """After some texts, more texts of the same kind take no more memory."""
        if self.learns:
            skip("what it learns may grow")
        play = self.start(drafting(NAME, (3,)), graded=True)
        sizes = []
        for _ in range(4):
            list(play.loop.run(self.prompts, replace(GREEDY, max_new_tokens=12), batch=2))
            list(play.loop.run(self.prompts, Sampling(max_new_tokens=6, temperature=1.0, seed=3), batch=2))
            sizes.append(size_of(play.watch.inner))
        if sizes[-1] > sizes[1]:
            fail(
                f"it holds {(sizes[-1] - sizes[1]) / 4 / len(self.prompts):.0f} more references a request",
                f"free in close() what observe() and draft() keep; {OTHERS}",
            )

    def test_a_request_that_it_never_saw_can_be_closed(self) -> None:
        """A drafter that is out of use is shown no text, and is still told of the end."""
        request = replace(self._some(), id=77_777)
        try:
            self.fresh(type(self).target()).close(request)
        except Exception as error:
            fail(f"close raised {error!r}", "let close() pass over requests that it does not know")

    def test_grades_are_what_its_distributions_say(self) -> None:
        """min(1, q / p) of each committed token, and the overlap of q with the target's distribution."""
        for got, accept, overlap, at in self._grades.compared:
            if abs(got.accept - accept) > CLOSE:
                fail(
                    f"accept {got.accept:.4f} at place {at}, where min(1, q / p) is {accept:.4f}", "see Grade"
                )
            if abs(got.overlap - overlap) > CLOSE:
                fail(f"overlap {got.overlap:.4f} at place {at}, where it is {overlap:.4f}", "see Grade")

    def test_grades_have_the_signals_that_are_asked_for(self) -> None:
        """`GradeJob.signals` names fields of `Signals`."""
        for got, *_ in self._grades.compared:
            if got.signals is None or not 0.0 < got.signals.top1 <= 1.0 + 1e-6 or got.signals.entropy < 0.0:
                fail(f"signals {got.signals}", "give each grade the signals of the row that it was read from")

    @property
    def _grades(self) -> Probe:
        """What the drafter says of its own drafts, greedy and sampled."""
        drafter: Any = self.fresh(type(self).target())
        if not isinstance(drafter, Grader):
            skip("it does not grade itself")

        def probed() -> Probe:
            probe = Probe(waits=hasattr(drafter, "ready"))
            for sampling in (GREEDY, PLAIN):
                play = self.start((Arm(NAME, 3),), recorder=probe)
                list(play.loop.run(self.prompts, sampling, batch=2))
            return probe

        found: Probe = self.once("grades", probed)
        if found.refused:
            fail("grade() raised or gave no grades", "return one Grade in [0, 1] for each token of each job")
        if not found.compared:
            skip("no draft of its own could be graded")
        return found

    def _some(self) -> Request:
        return self.play("greedy").loop.add(self.prompts[0], GREEDY)

    def _alike(self, one: Sequence[Made], other: Sequence[Made], when: str, remedy: str) -> None:
        __tracebackhide__ = True
        first = {(made.place, made.job.length): made.draft for made in one}
        for made in other:
            draft = first.get((made.place, made.job.length))
            if draft is not None and draft.tokens != made.draft.tokens:
                fail(f"{made.draft.tokens} {when}, {draft.tokens} before", remedy)


class Probe:
    """A recorder that asks the drafter for grades of the text that its own drafts are about."""

    reads = frozenset({"rows"})

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits  # its later distributions are not those of the text
        self.refused = 0
        self.compared: list[tuple[Grade, float, float, int]] = []

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> list[Feedback]:
        """Hold each grade against the draft's distributions."""
        for seen in batch:
            draft, n = seen.draft, len(seen.tokens)
            if draft.tokens and draft.is_chain:
                probs = [seen.scores.chance(node, t) for node, t in zip(seen.nodes, seen.tokens, strict=True)]
                own = draft if seen.request.rounds % 2 else None
                start = len(seen.request.tokens) - n
                job = GradeJob(
                    seen.request,
                    start,
                    probs,
                    seen.scores.distributions(seen.nodes),
                    own,
                    frozenset({"top1", "entropy"}),
                )
                made = graders.grade(NAME, [job])
                self.refused += made is None
                self._compare(seen, probs, made[0] if made else ())
        return [Feedback(seen.request.id, seen.decision) for seen in batch]

    def close(self, request: Request) -> tuple[Feedback, ...]:
        """Nothing is late."""
        return ()

    def _compare(self, seen: RoundRecord, probs: Sequence[float], grades: Sequence[Grade]) -> None:
        draft, size = seen.draft, len(seen.draft.tokens)
        most = 1 if self.waits or any(grade.deeper for grade in grades) else min(size, len(seen.tokens))
        for k, grade in enumerate(grades[:most]):
            token, node = seen.tokens[k], seen.nodes[k]
            if draft.dist is None:
                accept = float(draft.tokens[k] == token)
                overlap = seen.scores.chance(node, draft.tokens[k])
            else:
                q = _row(draft.dist[k])
                p = np.array([seen.scores.chance(node, t) for t in range(len(q))])
                accept, overlap = min(1.0, float(q[token]) / probs[k]), float(np.minimum(p, q).sum())
            self.compared.append((grade, accept, overlap, k))
