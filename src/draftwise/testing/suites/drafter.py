"""The conformance suite of a drafter: its drafts one by one, what it keeps, and how it grades itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, log
from numbers import Integral
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arms import Arm
from ...core.drafts import Signals
from ...core.outcomes import Feedback, Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob, Grader, Graders, RoundRecord, Target
from ...core.sampling import Sampling
from ...core.stops import factor, needs, stop
from ...errors import pluralize
from ..exact import uniformity
from .runs import NAME, PLAIN, SETTINGS, DraftRecord, Play, TextChecks
from .suite import GREEDY, SURE, drafting, fail, reachable, skip, suite_of

Row = NDArray[np.float64]

CLOSE = 2e-3  # of probabilities in float32, or half of it
OTHERS = "learns=True tells the suite that drafts depend on more than the text"


class DraftChecks(TextChecks):
    """Checks of single drafts and calls."""

    def test_it_has_every_method_of_the_role(self) -> None:
        """`hint`, `draft`, `observe`, `close`."""
        drafter: Any = self.fresh(type(self).target())
        methods = ("hint", "draft", "observe", "close")
        missing = [name for name in methods if not callable(getattr(drafter, name, None))]
        if missing or not isinstance(drafter, Drafter):
            fail(f"{type(drafter).__name__} lacks {', '.join(missing)}", "see draftwise.Drafter")

    def test_no_call_raises(self) -> None:
        """In loops of every kind."""
        for name, play in self.plays.items():
            for error in play.watch.errors[:1]:
                fail(f"{error} ({name})", "a drafter that has nothing to offer returns an empty Draft()")

    def test_hints_are_finite_numbers(self) -> None:
        """One per request and round."""
        for hint in (hint for play in self.plays.values() for hint in play.watch.hints):
            if not isinstance(hint, (int, float)) or not isfinite(hint):
                fail(f"a hint of {hint!r}", "return a finite float, 0.0 for nothing to offer")

    def test_every_job_gets_a_draft(self) -> None:
        """As many drafts as jobs, each a `Draft`."""
        for play in self.plays.values():
            for jobs, drafts in play.watch.counts:
                if jobs != drafts:
                    counts = f"{pluralize(drafts, 'draft')} for {pluralize(jobs, 'job')}"
                    fail(counts, "return one Draft per job, empty ones included")
            if sum(jobs for jobs, _ in play.watch.counts) > len(play.watch.records):
                fail("an answer that is no Draft", "return Draft.chain(...) or Draft() for each job")

    def test_drafts_are_no_longer_than_asked(self) -> None:
        """`job.length` tokens, times the width of a tree."""
        branches = int(getattr(self.fresh(type(self).target()), "branches", 1))
        for record in self.drafts:
            most = record.job.length * max(record.job.width, branches)
            if len(record.draft.tokens) > most:
                fail(f"{len(record.draft.tokens)} tokens where {most} were asked for", "cut at job.length")

    def test_drafted_tokens_are_ids_of_the_vocabulary(self) -> None:
        """Whole numbers from 0 to below the target's `vocab_size`."""
        size = type(self).target().vocab_size
        drafted: list[Any] = [token for record in self.drafts for token in record.draft.tokens]
        for token in drafted:
            if not isinstance(token, Integral) or not 0 <= int(token) < size:
                fail(f"token {token!r}", f"draft whole numbers from 0 to {size - 1}")

    def test_parents_come_before_their_children(self) -> None:
        """A draft is a tree with one parent per token; drawn tokens make a chain."""
        for draft in (record.draft for record in self.drafts):
            if len(draft.parents) != len(draft.tokens):
                fail(f"{len(draft.parents)} parents of {len(draft.tokens)} tokens", "use Draft.chain")
            if any(not -1 <= p < i for i, p in enumerate(draft.parents)):
                fail(f"parents {draft.parents}", "name earlier nodes, or -1 for the text itself")
            if draft.dist is not None and not draft.is_chain:
                fail("drawn tokens that are no chain", "pick siblings, and leave `dist` out")

    def test_probabilities_belong_to_their_distributions(self) -> None:
        """One probability and one distribution over the target's vocabulary for each drawn token."""
        size = type(self).target().vocab_size
        for draft in (record.draft for record in self.drafts):
            if not all(0.0 <= p <= 1.000001 for p in draft.probs):
                fail(f"probabilities {draft.probs}", "give numbers in [0, 1]")
            if draft.dist is None:
                continue
            if not len(draft.probs) == len(draft.dist) == len(draft.tokens):
                fail(f"{len(draft.dist)} distributions for {len(draft.tokens)} tokens", "give one for each")
            for token, p, q in zip(draft.tokens, draft.probs, map(_row, draft.dist), strict=True):
                if q.shape != (size,) or abs(q.sum() - 1.0) > CLOSE or q.min() < 0.0:
                    fail(f"a distribution of {q.size} numbers with sum {q.sum():.4f}", f"{size}, with sum 1")
                if abs(q[token] - p) > CLOSE:
                    fail(f"probability {p:.4f} of a token that has {q[token]:.4f}", "give dist[i][tokens[i]]")

    def test_tokens_are_drawn_from_the_distributions_they_come_with(self) -> None:
        """Each token's quantile in its own distribution is uniform (probability integral transform)."""
        lots, quantiles = Random(1), []
        for record in (record for record in self.drafts + self.many.watch.records if record.drawn):
            for token, q in zip(record.draft.tokens, map(_row, record.draft.dist), strict=False):
                if 0 <= token < len(q):
                    quantiles.append(float(q[:token].sum() + lots.random() * q[token]))
        if not quantiles:
            skip("it draws no tokens")
        if (p := uniformity(quantiles)) < SURE:
            fail(
                f"tokens are not drawn from `dist` (p = {p:.1e}, {len(quantiles)} tokens)",
                "draw each with job.request.rng from the row it comes with, and drop or choose none by its "
                "own probability",
            )

    def test_jobs_for_picked_tokens_get_no_drawn_ones(self) -> None:
        """`job.deterministic` asks for the most likely tokens where the request samples."""
        drafter = self.fresh(type(self).target())
        if hasattr(drafter, "ready"):
            skip("it waits for the target")
        for _, again in self.again(drafter, self.play("sampled").watch.records[:20], picked=True):
            if again.dist is not None:
                fail("drawn tokens where picked ones were asked for", "leave `dist` out if job.deterministic")

    def test_signals_are_probabilities_and_an_entropy(self) -> None:
        """Where a draft has signals, there is one for each token."""
        for record in self.drafts:
            signals, tokens = record.draft.signals, record.draft.tokens
            if signals and len(signals) != len(tokens):
                fail(f"{len(signals)} signals for {len(tokens)} tokens", "give one for each, or none")
            for now in signals:
                if wrong := _wrong(now, needs(record.job.stops)):
                    fail(f"{wrong} in {now}", "signals are those of the raw softmax at temperature 1")

    def test_drafts_end_where_a_stop_rule_fires(self) -> None:
        """With the token that fired it as the last one; by its own signals."""
        has_signals = False
        for record in (record for record in self.drafts if needs(record.job.stops) and record.draft.signals):
            has_signals, ends = True, _ends(record)
            if ends is not None and ends + 1 < len(record.draft.tokens) and record.draft.is_chain:
                rule, n = record.job.stop_at(ends).rule, len(record.draft.tokens)
                fail(f"{n} tokens where {rule} fired at number {ends + 1}", "end there")
        if not has_signals:
            skip("it gives no signals to stop by")

    def test_rows_are_the_logits_of_the_drafted_tokens(self) -> None:
        """If a draft has `rows`: raw logits, one row per token; their softmax is `dist` without warping."""
        rows = [(play, record) for play in ("greedy", "sampled") for record in self.play(play).watch.records]
        rows = [(play, record) for play, record in rows if record.draft.rows is not None]
        if not rows:
            skip("it gives no rows")
        for play, record in rows:
            if (n := len(record.draft.rows)) != len(record.draft.tokens):
                fail(f"{n} rows for {len(record.draft.tokens)} tokens", "give one for each")
            for i, row in enumerate(map(_row, record.draft.rows)):
                q = np.exp(row - row.max())
                if play == "sampled" and record.drawn:
                    own = _row(record.draft.dist[i])[: len(q)]
                    if np.abs(q / q.sum() - own).max() > CLOSE:
                        fail("rows whose softmax is not `dist`", "give the logits before any warping")


def _size(thing: Any, inner: Sequence[Any]) -> int:
    """The references of an object, and the bytes of an array."""
    return len(inner) + (int(thing.nbytes) if hasattr(type(thing), "nbytes") else 0)


def _row(row: Any) -> Row:
    """Numbers out of a NumPy array, a tensor on any device, or a list."""
    return np.asarray(row.tolist() if hasattr(row, "tolist") else row, dtype=np.float64)


def _wrong(now: Signals, read: frozenset[str]) -> str:
    """Return what cannot be right about signals, of which `read` are those that a rule reads."""
    if not -1e-6 <= now.chosen <= 1.0 + 1e-6:
        return f"chosen = {now.chosen}"
    if not -1e-6 <= now.top2 <= now.top1 + 1e-6 <= 1.0 + 2e-6:
        return f"top1 = {now.top1}, top2 = {now.top2}"
    if not -1e-6 <= now.entropy < log(1e9):
        return f"entropy = {now.entropy}"
    if "top1" in read and now.chosen > now.top1 + CLOSE:
        return f"chosen = {now.chosen} above top1 = {now.top1}"
    return ""


def _ends(record: DraftRecord) -> int | None:
    """The position at which the job's rules end a draft with these signals; None for nowhere."""
    previous, joint = None, 1.0
    for position, now in enumerate(record.draft.signals):
        rule = record.job.stop_at(position)
        joint *= factor(rule, now, position=position)
        if stop(rule, now, position=position, previous=previous, joint=joint):
            return position
        previous = now
    return None


class UpkeepChecks(TextChecks):
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
        turned = self.run(SETTINGS["greedy batch"], reverse=True)
        self._alike(self.play("greedy batch"), turned, "in another order", "return drafts in job order")

    def test_the_same_seed_gives_the_same_drafts(self) -> None:
        """A new drafter drafts what the one before it drafted."""
        remedy = "draw from job.request.rng alone, and share nothing between drafters"
        for name in ("greedy", "sampled"):
            self._alike(self.play(name), self.run(SETTINGS[name]), "in a second run", remedy)

    def test_drafts_after_rejections_are_those_of_a_fresh_drafter(self) -> None:
        """What was rejected, or drafted by others, leaves no trace."""
        if self.learns:
            skip("it learns from what it drafted")
        drafter: Any = self.fresh(type(self).target())
        if hasattr(drafter, "ready"):
            skip("it waits for the target")
        for record, again in self.again(drafter, self.play("greedy").watch.records, picked=False):
            if again.tokens != record.draft.tokens:
                fail(
                    f"{record.draft.tokens} after {record.text[-4:]}, and {again.tokens} of a fresh drafter",
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
            sizes.append(sum(_size(*one) for one in reachable(play.watch.inner)))
        if sizes[-1] > sizes[1]:
            fail(
                f"it holds {(sizes[-1] - sizes[1]) / 4 / len(self.prompts):.0f} more references a request",
                f"free in close() what observe() and draft() keep; {OTHERS}",
            )

    def test_a_request_that_it_never_saw_can_be_closed(self) -> None:
        """A drafter that is out of use is shown no text, and is still told of the end."""
        request = replace(self.play("greedy").loop.add(self.prompts[0], GREEDY), id=77_777)
        try:
            self.fresh(type(self).target()).close(request)
        except Exception as error:
            fail(f"close raised {error!r}", "let close() pass over requests that it does not know")

    def test_grades_are_what_its_distributions_say(self) -> None:
        """min(1, q / p) of each committed token, and the overlap of q with the target's distribution."""
        for got, accept, overlap, at in self._grades.compared:
            for name, grade, own in (("accept", got.accept, accept), ("overlap", got.overlap, overlap)):
                if abs(grade - own) > CLOSE:
                    fail(f"{name} {grade:.4f} at place {at}, where it is {own:.4f}", "see draftwise.Grade")

    def test_grades_have_the_signals_that_are_asked_for(self) -> None:
        """`GradeJob.signals` names fields of `Signals`."""
        for got, *_ in self._grades.compared:
            if got.signals is None or not 0.0 < got.signals.top1 <= 1.0 + 1e-6 or got.signals.entropy < 0.0:
                fail(f"signals {got.signals}", "give each grade the signals of the row that it was read from")

    @property
    def _grades(self) -> Probe:
        """The drafter's grades of its own drafts, greedy and sampled."""
        drafter: Any = self.fresh(type(self).target())
        if not isinstance(drafter, Grader):
            skip("it does not grade itself")

        def probed() -> Probe:
            probe = Probe(waits=hasattr(drafter, "ready"))
            for sampling in (GREEDY, PLAIN):
                play = self.start((Arm(NAME, 3),), recorder=probe)
                list(play.loop.run(self.prompts, sampling, batch=2))
            return probe

        filled_probe: Probe = self.once("grades", probed)
        if filled_probe.refused:
            fail("grade() raised or gave no grades", "return one Grade in [0, 1] for each token of each job")
        if not filled_probe.compared:
            skip("no draft of its own could be graded")
        return filled_probe

    def _alike(self, one: Play, other: Play, when: str, remedy: str) -> None:
        __tracebackhide__ = True
        first = {(record.place, record.job.length): record.draft for record in one.watch.records}
        for record in other.watch.records:
            draft = first.get((record.place, record.job.length))
            if draft is not None and draft.tokens != record.draft.tokens:
                fail(f"{record.draft.tokens} {when}, {draft.tokens} before", remedy)


class Probe:
    """A recorder that asks the drafter for grades of the text that its own drafts are about."""

    reads = frozenset({"rows"})

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits  # its later distributions are not those of the text
        self.refused = 0
        self.compared: list[tuple[Grade, float, float, int]] = []

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> list[Feedback]:
        """Hold each grade against the draft's distributions."""
        for record in batch:
            draft, n = record.draft, len(record.tokens)
            if draft.tokens and draft.is_chain:
                pairs = zip(record.nodes, record.tokens, strict=True)
                probs = [record.scores.chance(node, token) for node, token in pairs]
                own = draft if record.request.rounds % 2 else None
                start, rows = len(record.request.tokens) - n, record.scores.distributions(record.nodes)
                job = GradeJob(record.request, start, probs, rows, own, frozenset({"top1", "entropy"}))
                grades = graders.grade(NAME, [job])
                self.refused += grades is None
                self._compare(record, probs, grades[0] if grades else ())
        return [Feedback(record.request.id, record.decision) for record in batch]

    def close(self, request: Request) -> tuple[Feedback, ...]:
        """Nothing is late."""
        return ()

    def _compare(self, record: RoundRecord, probs: Sequence[float], grades: Sequence[Grade]) -> None:
        draft, size = record.draft, len(record.draft.tokens)
        most = 1 if self.waits or any(grade.deeper for grade in grades) else min(size, len(record.tokens))
        for k, grade in enumerate(grades[:most]):
            token, node = record.tokens[k], record.nodes[k]
            if draft.dist is None:
                accept = float(draft.tokens[k] == token)
                overlap = record.scores.chance(node, draft.tokens[k])
            else:
                q = _row(draft.dist[k])
                p = np.array([record.scores.chance(node, t) for t in range(len(q))])
                accept, overlap = min(1.0, float(q[token]) / probs[k]), float(np.minimum(p, q).sum())
            self.compared.append((grade, accept, overlap, k))


class DrafterSuite(DraftChecks, UpkeepChecks):
    """The duties of a drafter, as checks that pytest collects; `drafter_suite` makes one."""


def drafter_suite(
    make: Callable[..., Any],
    *,
    target: Callable[[], Target] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    learns: bool = False,
    samples: int | None = None,
) -> type[DrafterSuite]:
    """A test class for a drafter: the text stays exact, drafts keep their contract, nothing leaks.

    `make` makes a drafter; it is given the target if it has a parameter `target`. `target` makes the target:
    by default a numpy one over four tokens that is hard to draft for. `prompts` are lists of token ids.
    `learns` says that drafts depend on more than the text before them. `samples` texts are drawn to see their
    distribution, 2000 by default.

        TestEcho = drafter_suite(Echo)
    """
    options = {"make": make, "target": target, "prompts": prompts, "learns": learns, "samples": samples}
    return suite_of(DrafterSuite, options)
