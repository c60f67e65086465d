"""What a draft must be like: a drafter's side of the contract, draft by draft."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, log
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.drafts import Draft, Signals
from ...core.roles import Drafter
from ...core.stops import factor, needs, stop
from ..exact import uniformity
from .checks import SURE, fail, skip
from .texts import TextChecks
from .watch import Made, generator

Row = NDArray[np.float64]

CLOSE = 2e-3  # of probabilities in float32, or half of it


class DraftChecks(TextChecks):
    """Checks of single drafts and calls."""

    def test_it_has_every_method_of_the_role(self) -> None:
        """`hint`, `draft`, `observe`, `close`."""
        drafter: Any = self.fresh(type(self).target())
        wanted = ("hint", "draft", "observe", "close")
        missing = [name for name in wanted if not callable(getattr(drafter, name, None))]
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
            for asked, got in play.watch.counts:
                if asked != got:
                    fail(f"{got} drafts for {asked} jobs", "return one Draft per job, empty ones included")
            if sum(asked for asked, _ in play.watch.counts) > len(play.watch.made):
                fail("an answer that is no Draft", "return Draft.chain(...) or Draft() for each job")

    def test_drafts_are_no_longer_than_asked(self) -> None:
        """`job.length` tokens, times the width of a tree."""
        branches = int(getattr(self.fresh(type(self).target()), "branches", 1))
        for made in self.drafts:
            most = made.job.length * max(made.job.width, branches)
            if len(made.draft.tokens) > most:
                fail(f"{len(made.draft.tokens)} tokens where {most} were asked for", "cut at job.length")

    def test_drafted_tokens_are_ids_of_the_vocabulary(self) -> None:
        """Whole numbers from 0 to below the target's `vocab_size`."""
        size = type(self).target().vocab_size
        drafted: list[Any] = [token for made in self.drafts for token in made.draft.tokens]
        for token in drafted:
            if not isinstance(token, Integral) or not 0 <= int(token) < size:
                fail(f"token {token!r}", f"draft whole numbers from 0 to {size - 1}")

    def test_parents_come_before_their_children(self) -> None:
        """A draft is a tree with one parent per token; drawn tokens make a chain."""
        for draft in (made.draft for made in self.drafts):
            if len(draft.parents) != len(draft.tokens):
                fail(f"{len(draft.parents)} parents of {len(draft.tokens)} tokens", "use Draft.chain")
            if any(not -1 <= p < i for i, p in enumerate(draft.parents)):
                fail(f"parents {draft.parents}", "name earlier nodes, or -1 for the text itself")
            if draft.dist is not None and not draft.is_chain:
                fail("drawn tokens that are no chain", "pick siblings, and leave `dist` out")

    def test_probabilities_belong_to_their_distributions(self) -> None:
        """One probability and one distribution over the target's vocabulary for each drawn token."""
        size = type(self).target().vocab_size
        for draft in (made.draft for made in self.drafts):
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
        lots, quantiles = generator(1), []
        for made in (made for made in self.drafts + self.many.watch.made if made.drawn):
            for token, q in zip(made.draft.tokens, map(_row, made.draft.dist), strict=False):
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
        for made in self._again(drafter, self.play("sampled").watch.made[:20], picked=True):
            if made.drawn:
                fail("drawn tokens where picked ones were asked for", "leave `dist` out if job.deterministic")

    def test_signals_are_probabilities_and_an_entropy(self) -> None:
        """Where a draft has signals, there is one for each token."""
        for made in self.drafts:
            signals, tokens = made.draft.signals, made.draft.tokens
            if signals and len(signals) != len(tokens):
                fail(f"{len(signals)} signals for {len(tokens)} tokens", "give one for each, or none")
            for now in signals:
                if wrong := _wrong(now, needs(made.job.stops)):
                    fail(f"{wrong} in {now}", "signals are those of the raw softmax at temperature 1")

    def test_drafts_end_where_a_stop_rule_fires(self) -> None:
        """With the token that fired it as the last one; by its own signals."""
        given = False
        for made in (made for made in self.drafts if needs(made.job.stops) and made.draft.signals):
            given, ends = True, _ends(made)
            if ends is not None and ends + 1 < len(made.draft.tokens) and made.draft.is_chain:
                rule = made.job.stop_at(ends).rule
                fail(f"{len(made.draft.tokens)} tokens where {rule} fired at number {ends + 1}", "end there")
        if not given:
            skip("it gives no signals to stop by")

    def test_rows_are_the_logits_of_the_drafted_tokens(self) -> None:
        """If a draft has `rows`: raw logits, one row per token; their softmax is `dist` without warping."""
        rows = [(play, made) for play in ("greedy", "sampled") for made in self.play(play).watch.made]
        rows = [(play, made) for play, made in rows if made.draft.rows is not None]
        if not rows:
            skip("it gives no rows")
        for play, made in rows:
            if len(made.draft.rows) != len(made.draft.tokens):
                fail(f"{len(made.draft.rows)} rows for {len(made.draft.tokens)} tokens", "give one for each")
            for i, row in enumerate(map(_row, made.draft.rows)):
                q = np.exp(row - row.max())
                if play == "sampled" and made.drawn:
                    own = _row(made.draft.dist[i])[: len(q)]
                    if np.abs(q / q.sum() - own).max() > CLOSE:
                        fail("rows whose softmax is not `dist`", "give the logits before any warping")

    def _again(self, drafter: Drafter, drafts: list[Made], *, picked: bool) -> list[Made]:
        """Drafts of a fresh drafter for the same texts."""
        again = []
        for i, made in enumerate(drafts):
            request = replace(made.job.request, id=10_000 + i, tokens=list(made.text))
            drafter.observe(request, request.tokens)
            (draft,) = drafter.draft([replace(made.job, request=request, deterministic=picked)])
            if isinstance(draft, Draft):
                again.append(Made(made.job, made.text, draft))
            drafter.close(request)
        return again


def _row(row: Any) -> Row:
    """Numbers out of a NumPy array, a tensor on any device, or a list."""
    return np.asarray(row.tolist() if hasattr(row, "tolist") else row, dtype=np.float64)


def _wrong(now: Signals, read: frozenset[str]) -> str:
    """What cannot be right about signals, of which `read` are those that a rule reads."""
    if not -1e-6 <= now.chosen <= 1.0 + 1e-6:
        return f"chosen = {now.chosen}"
    if not -1e-6 <= now.top2 <= now.top1 + 1e-6 <= 1.0 + 2e-6:
        return f"top1 = {now.top1}, top2 = {now.top2}"
    if not -1e-6 <= now.entropy < log(1e9):
        return f"entropy = {now.entropy}"
    if "top1" in read and now.chosen > now.top1 + CLOSE:
        return f"chosen = {now.chosen} above top1 = {now.top1}"
    return ""


def _ends(made: Made) -> int | None:
    """The position at which the job's rules end a draft with these signals; None for nowhere."""
    previous, joint = None, 1.0
    for position, now in enumerate(made.draft.signals):
        rule = made.job.stop_at(position)
        joint *= factor(rule, now, position=position)
        if stop(rule, now, position=position, previous=previous, joint=joint):
            return position
        previous = now
    return None
