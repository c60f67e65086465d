"""Drafts with a causal LM whose tokenizer is not the target's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Annotated, Any

import torch
from torch import Tensor

from ...core.drafts import Draft, Job, Signals
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob, Preparer
from ...errors import UserError
from ...models.runner.prefix_cache import PrefixMemory, StoresPrefixes
from ..lookup.picked import chain
from ..translation.border import continued
from ..translation.codec import codec_of
from ..translation.reading import Reading
from ..translation.shared import shared
from .chains import grades
from .inner import Model
from .lm import LMDrafter
from .translated_grades import Path, common, text_grades

WAYS = ("auto", "text", "shared")
ENOUGH = 0.25  # of the smaller vocabulary: with fewer shared tokens, drawn texts are drafted by text as well
FINEST = 3.0  # most tokens of the drafter for one of the target
Mine = Sequence[tuple[Reading, Job]]


@dataclass(slots=True)
class Held:
    """One request: its text in the drafter's tokens, and the tokens that the drafter was last given."""

    reading: Reading
    shown: list[int] = field(default_factory=list)


class TranslatedDrafter:
    """Drafts with a model that has another tokenizer than the target: by text, or by shared tokens.

    The target's text is decoded and read by the drafter. *By text* the drafter writes its most likely text,
    which the target's tokenizer turns into picked tokens; nothing is drafted where the target's last tokens
    would be others with that text after them. *By shared tokens* the drafter draws from its distribution over
    the tokens that both vocabularies have, each of which is one of the target's. `auto` drafts by text where
    the request is greedy, and else by shared tokens, if there are enough of them.

    Source: token-level intersection (arXiv 2502.05202).

    Raises:
        UserError: an unknown way, or a tokenizer that cannot be used.
    """

    def __init__(
        self,
        inner: Model,
        vocab_size: int,
        tokenizers: tuple[Any, Any],
        *,
        sample: bool = True,
        vocabulary: str = "auto",
    ) -> None:
        check(vocabulary)
        self.inner, self.vocab_size, self.sample = inner, vocab_size, sample
        self.ours, self.theirs = map(codec_of, tokenizers)
        pairs, part = shared(self.ours, self.theirs, (vocab_size, inner.vocab_size))
        if vocabulary == "shared" and not pairs:
            raise UserError("vocabulary=shared: the vocabularies share no token, choose vocabulary=text")
        self.way = "text" if vocabulary == "auto" and part < ENOUGH else vocabulary
        self.pairs = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        self.allowed = torch.zeros(inner.vocab_size, dtype=torch.bool).index_fill(0, self.pairs[:, 1], True)
        self.mine = {theirs: ours for ours, theirs in pairs}
        self.held: dict[int, Held] = {}

    @property
    def runner(self) -> Any:
        """The runner of the model, for packing and compiling; None if it is not Draftwise's own."""
        return getattr(self.inner, "runner", None)

    def cache_prefixes(self, memory: PrefixMemory) -> None:
        """Let the model keep what it has read of texts that have ended there, if it can."""
        if isinstance(self.inner, StoresPrefixes):
            self.inner.cache_prefixes(memory)

    @property
    def compiled(self) -> bool:
        """Whether passes are compiled at present."""
        return bool(getattr(self.inner, "compiled", False))

    def hint(self, request: Request) -> float:
        """That of the model."""
        return self.inner.hint(request)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: the text is read when a draft is requested."""

    def close(self, request: Request) -> None:
        """Free what is held of the request."""
        held = self.held.pop(request.id, None)
        self.inner.close(replace(request, tokens=held.shown if held is not None else []))

    @torch.inference_mode()
    def prepare(self, request: Request) -> bool:
        """Let the model read one piece of a long text, if it can; whether there is another one."""
        if not isinstance(self.inner, Preparer) or not (ids := self._read(request).ids):
            return False
        return self.inner.prepare(self._view(request, ids))

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job, none where there is no text; drafts by text and by shared tokens are two
        batches."""
        made = [Draft()] * len(jobs)
        ways: dict[Callable[[Mine], list[Draft]], list[int]] = {self._texts: [], self._shared: []}
        for at, job in enumerate(jobs):
            ways[
                self._texts if self._by_text(job.request, picked=job.deterministic) else self._shared
            ].append(at)
        for way, places in ways.items():
            mine = {at: (self._read(jobs[at].request), jobs[at]) for at in places}
            mine = {at: one for at, one in mine.items() if one[0].ids}
            drafts = way(list(mine.values())) if mine else []
            for at, draft in zip(mine, drafts, strict=True):
                made[at] = draft
        return made

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token.

        By text, a token is accepted if each of the drafter's tokens that have its text is the most likely
        one, in one pass over all of them. By shared tokens it is graded by the distribution at its place; a
        place that divides a token of the drafter takes a pass of its own.
        """
        paths = [Path.of(self._read(job.request, job.start), job) for job in jobs]
        by_text = [self._by_text(job.request, picked=job.request.deterministic) for job in jobs]
        asked = list(zip(jobs, paths, by_text, strict=True))
        apart = [{} if text else self._apart(job.request, path) for job, path, text in asked]
        rows = self._logits([(job.request, *path.stretch(by_text=text)) for job, path, text in asked])
        return [
            text_grades(job, path, own) if text else self._shared_grades(job, path, own, others)
            for (job, path, text), own, others in zip(asked, rows, apart, strict=True)
        ]

    def _by_text(self, request: Request, *, picked: bool = False) -> bool:
        if self.way == "auto":
            return picked or not self.sample or request.sampling.greedy
        return self.way == "text"

    def _read(self, request: Request, end: int | None = None) -> Reading:
        """The request's text, or the first `end` tokens of it, in the drafter's tokens."""
        if request.id not in self.held:
            self.held[request.id] = Held(Reading(self.ours, self.theirs))
        reading = self.held[request.id].reading
        reading.read(request.tokens[:end])
        return reading

    def _view(self, request: Request, ids: Sequence[int]) -> Request:
        """The request with the drafter's tokens as its text; the model forgets those that are others now."""
        held = self.held[request.id]
        same = common(held.shown, ids)
        if same < len(held.shown):
            self.inner.rewind(request, same)
        held.shown = list(ids)
        return replace(request, tokens=held.shown, prompt_length=len(ids) - request.position)

    def _texts(self, mine: Mine) -> list[Draft]:
        """Drafts by text, from as many tokens of the drafter as this text has had for those of the target."""
        jobs = []
        for reading, job in mine:
            most = ceil(job.length * min(FINEST, len(reading.ids) / max(1, reading.done)))
            view = self._view(job.request, reading.ids)
            jobs.append(
                replace(
                    job,
                    request=view,
                    length=most,
                    width=1,
                    deterministic=True,
                    rows=False,
                    constraint=None,
                    until=None,
                )
            )
        drafts = []
        for (reading, job), draft in zip(mine, self.inner.draft(jobs), strict=True):
            made = continued(reading, draft.tokens)
            if draft.signals:
                parts = (draft.signals[first:last] for first, last in made.sources)
                drafts.append(chain(job, zip(made.tokens, map(_least, parts), strict=True)))
            else:
                drafts.append(Draft.chain(made.tokens[: job.length]))
        return drafts

    def _shared(self, mine: Mine) -> list[Draft]:
        """Drafts by shared tokens: the drafter's own, under the ids that the target has for them."""
        views = [self._view(job.request, reading.ids) for reading, job in mine]
        pairs = zip(views, mine, strict=True)
        jobs = [
            replace(job, request=view, width=1, rows=False, constraint=None, until=None)
            for view, (_, job) in pairs
        ]
        self.inner.allowed = self.allowed
        try:
            drafts = self.inner.draft(jobs)
        finally:
            self.inner.allowed = None
        made = []
        for draft in drafts:
            tokens = tuple(self.mine[token] for token in draft.tokens)
            dist = None if draft.dist is None else self._ours(torch.stack(list(draft.dist)), 0.0)
            made.append(replace(draft, tokens=tokens, dist=dist))
        return made

    def _ours(self, rows: Tensor, rest: float) -> Tensor:
        """Rows over the drafter's vocabulary as rows over the target's, `rest` where it is not shared."""
        ours, theirs = self.pairs.to(rows.device).unbind(1)
        return rows.new_full((len(rows), self.vocab_size), rest).index_copy(1, ours, rows[:, theirs])

    def _shared_grades(
        self, job: GradeJob, path: Path, rows: Tensor, apart: Mapping[int, Tensor]
    ) -> list[Grade]:
        """Grades by the drafter's distributions over shared tokens; nothing is drafted before any text."""
        first = len(path.ids) + 1 - len(rows)
        before = [
            apart[i] if i in apart else rows[len(ids) - first] if ids else rows.new_zeros(rows.shape[1])
            for i, ids in enumerate(path.before)
        ]
        logits = self._ours(torch.stack(before), -inf)
        found = grades(job, logits, None, vocab_size=self.vocab_size, sample=self.sample)
        return [one if ids else Grade(0.0, 0.0) for one, ids in zip(found, path.before, strict=True)]

    def _apart(self, request: Request, path: Path) -> dict[int, Tensor]:
        """The logits at each place that divides a token of the drafter, in a pass each."""
        return {i: self._logits([(request, [*path.before[i], 0], 1)])[0][0] for i in path.divided}

    def _logits(self, wanted: Sequence[tuple[Request, Sequence[int], int]]) -> list[Tensor]:
        """The logits that predict the last n of some tokens, shape (n, vocabulary), in one pass for all."""
        views = [(self._view(request, ids), n) for request, ids, n in wanted if n > 0]
        read = iter(self.inner.read(views) if views else ())
        nothing = torch.zeros((0, self.inner.vocab_size), device=getattr(self.runner, "device", None))
        return [next(read).float() if n > 0 else nothing for *_, n in wanted]


def check(vocabulary: str) -> None:
    """Raise a UserError unless this is a way to draft with another tokenizer."""
    if vocabulary not in WAYS:
        raise UserError(f"vocabulary={vocabulary}: choose from {', '.join(WAYS)}")


def check_unused(vocabulary: str) -> None:
    """Raise a UserError if a way is chosen for a drafter that has the target's tokenizer."""
    check(vocabulary)
    if vocabulary != "auto":
        raise UserError(f"vocabulary={vocabulary}: the drafter has the target's tokenizer, leave it out")


def _least(parts: Sequence[Signals]) -> Signals:
    """The signals of the drafter's least certain token."""
    return min(parts, key=lambda signals: signals.chosen)


def lm(
    model: Any,
    vocab_size: int,
    tokenizers: tuple[Any, Any] | None = None,
    *,
    sample: Annotated[bool, "draw drafts where the request draws; false: always the most probable"] = True,
    window: Annotated[int, "latest tokens that it sees; 0: all"] = 0,
    sinks: Annotated[int, "first tokens that it sees beside the window"] = 4,
    vocabulary: Annotated[
        str, "with another tokenizer than the target's: text, shared tokens, or auto"
    ] = "auto",
    probe: Annotated[bool, "check how the model can be read"] = True,
) -> LMDrafter | TranslatedDrafter:
    """Drafts with a smaller causal LM, for any number of requests at once.

    It samples where the request samples, else it drafts its most probable tokens. A request that was not
    drafted for some rounds is prefilled up to date in one pass at its next draft. With `sample` off it always
    drafts its most likely tokens: the acceptance rate is lower, but a seed then gives the same text whatever
    the policy decides. With a `window` it attends to a text's first `sinks` tokens and one to two windows of
    its last (StreamingLLM, arXiv 2309.17453), with position ids counted within these. A model whose tokenizer
    is not the target's drafts by `text`, which the target's tokenizer turns into tokens, or by the tokens
    that both vocabularies have (`shared`, arXiv 2502.05202); `auto` is text for greedy requests, and shared
    tokens for others if a quarter of the smaller vocabulary is shared.

    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).

    Raises:
        UserError: an option out of its range, a model whose cache cannot be rolled back, or a tokenizer that
            cannot be used.
    """
    more: dict[str, Any] = {"sample": sample, "window": window, "sinks": sinks, "probe": probe}
    if tokenizers is None:
        check_unused(vocabulary)
        return LMDrafter(model, vocab_size, **more)
    own = int(model.config.get_text_config(decoder=True).vocab_size)
    inner = LMDrafter(model, own, **more)
    return TranslatedDrafter(inner, vocab_size, tokenizers, sample=sample, vocabulary=vocabulary)
