"""Drafts with a causal LM whose tokenizer is not the target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nan
from operator import attrgetter
from typing import Annotated, Any

import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob, Preparer
from ...errors import UserError
from ...models.distributions import most_likely
from ...models.runner.prefix_cache import PrefixMemory, StoresPrefixes
from ...registry import Within
from ..lookup.picked import chain
from ..translation import Reading, codec_of, continued, shared_tokens
from .chains import grades, signals
from .lm import LMDrafter

WAYS = ("auto", "text", "shared")
ENOUGH = 0.25  # of the smaller vocabulary: with fewer shared tokens, sampled texts are drafted by text, too
CERTAINTY = attrgetter("chosen")
FINEST = 3.0  # most tokens of the drafter for one of the target


class TranslatedDrafter(Drafter):
    """Drafts with a model that has another tokenizer than the target: by text, or by shared tokens.

    The target's text is decoded and read by the drafter. *By text* the drafter writes its most likely text,
    which the target's tokenizer turns into deterministic tokens; nothing is drafted where the target's last
    tokens would be others with that text after them. *By shared tokens* the drafter samples from its
    distribution over the tokens that both vocabularies have, each of which is one of the target's. `auto`
    drafts by text where the request is greedy, and else by shared tokens, if there are enough of them.

    Source: token-level intersection (arXiv 2502.05202).

    Raises:
        UserError: an unknown way, or a tokenizer that cannot be used.
    """

    def __init__(
        self,
        inner: Any,
        vocab_size: int,
        tokenizers: tuple[Any, Any],
        *,
        sample: bool = True,
        vocabulary: str = "auto",
    ) -> None:
        check(vocabulary)
        self.inner, self.vocab_size, self.sample = inner, vocab_size, sample
        self.codecs = codec_of(tokenizers[0]), codec_of(tokenizers[1])
        pairs, share = shared_tokens(*self.codecs, (vocab_size, inner.vocab_size))
        if vocabulary == "shared" and not pairs:
            raise UserError("vocabulary=shared: the vocabularies share no token, choose vocabulary=text")
        self.way = "text" if vocabulary == "auto" and share < ENOUGH else vocabulary
        self.pairs = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        allowed = torch.zeros(inner.vocab_size, dtype=torch.bool).index_fill(0, self.pairs[:, 1], True)
        self.allowed = allowed.to(getattr(getattr(inner, "runner", None), "device", "cpu"))
        self.target_ids = {drafted: token for token, drafted in pairs}
        self.views: dict[int, Reading] = {}  # texts in the drafter's tokens
        self.shown: dict[int, list[int]] = {}  # the tokens that the drafter was last given of each

    @property
    def runner(self) -> Any:
        """The runner of the model, for packing and compiling; None if it is not Draftwise's own."""
        return getattr(self.inner, "runner", None)

    def cache_prefixes(self, memory: PrefixMemory) -> None:
        """Let the model keep what it has read of texts that have ended there, if it can."""
        if isinstance(self.inner, StoresPrefixes):
            self.inner.cache_prefixes(memory)

    @property
    def pass_kind(self) -> str:
        return str(getattr(self.inner, "pass_kind", ""))

    @property
    def setup_seconds(self) -> float:
        return float(getattr(self.inner, "setup_seconds", 0.0))

    def hint(self, request: Request) -> float:
        return float(self.inner.hint(request))

    def close(self, request: Request) -> None:
        self.views.pop(request.id, None)
        self.inner.close(replace(request, tokens=self.shown.pop(request.id, [])))

    @torch.inference_mode()
    def prepare(self, request: Request) -> bool:
        """Let the model read one piece of a long text, if it can; return if there is another one."""
        if not isinstance(self.inner, Preparer) or not (ids := self._read(request).ids):
            return False
        return self.inner.prepare(self._translate(request, ids))

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job, none where there is no text; both ways are a batch each."""
        drafts = [Draft()] * len(jobs)
        for by_text, draft in ((True, self._draft_by_text), (False, self._draft_shared)):
            places = [
                i
                for i, job in enumerate(jobs)
                if self._is_by_text(job.request, job.deterministic) == by_text and self._read(job.request).ids
            ]
            for i, one in zip(places, draft([jobs[i] for i in places]) if places else (), strict=True):
                drafts[i] = one
        return drafts

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token.

        By text, a token is accepted if each of the drafter's tokens that have its text is the most likely
        one, in one pass over all of them. By shared tokens it is graded by the distribution at its place; a
        place that divides a token of the drafter takes a pass of its own.
        """
        paths = [Path.of(self._read(job.request, job.start), job) for job in jobs]
        by_text = [self._is_by_text(job.request, job.request.deterministic) for job in jobs]
        apart = [
            {}
            if text
            else {i: self._logits([(job.request, [*path.before[i], 0], 1)])[0][0] for i in path.divided}
            for job, path, text in zip(jobs, paths, by_text, strict=True)
        ]
        rows = self._logits(
            [
                (job.request, *path.stretch(by_text=text))
                for job, path, text in zip(jobs, paths, by_text, strict=True)
            ]
        )
        return [
            text_grades(job, path, own) if text else self._shared_grades(job, path, own, others)
            for job, path, text, own, others in zip(jobs, paths, by_text, rows, apart, strict=True)
        ]

    def _is_by_text(self, request: Request, deterministic: bool) -> bool:
        if self.way == "auto":
            return deterministic or not self.sample or request.sampling.greedy
        return self.way == "text"

    def _read(self, request: Request, end: int | None = None) -> Reading:
        """Return the request's text, or the first `end` tokens of it, in the drafter's tokens."""
        if request.id not in self.views:
            self.views[request.id] = Reading(*self.codecs)
        self.views[request.id].read(request.tokens[:end])
        return self.views[request.id]

    def _translate(self, request: Request, ids: Sequence[int]) -> Request:
        """Return the request with the drafter's tokens as its text; the model forgets those that changed."""
        shown = self.shown.get(request.id, [])
        same = common_length(shown, ids)
        if same < len(shown):
            self.inner.rewind(request, same)
        self.shown[request.id] = tokens = list(ids)
        return replace(request, tokens=tokens, prompt_length=len(ids) - request.position)

    def _inner_job(self, job: Job) -> Job:
        view = self._translate(job.request, self.views[job.request.id].ids)
        return replace(job, request=view, width=1, rows=False, constraint=None, until=None)

    def _draft_by_text(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft by text, from as many tokens of the drafter as this text has had for those of the target."""
        readings = [self.views[job.request.id] for job in jobs]
        inner = []
        for reading, job in zip(readings, jobs, strict=True):
            most = ceil(job.length * min(FINEST, len(reading.ids) / max(1, reading.done)))
            inner.append(replace(self._inner_job(job), length=most, deterministic=True))
        drafts = []
        for reading, job, draft in zip(readings, jobs, self.inner.draft(inner), strict=True):
            more = continued(reading, draft.tokens)
            if draft.signals:
                least = (min(draft.signals[a:b], key=CERTAINTY) for a, b in more.sources)
                drafts.append(chain(job, zip(more.tokens, least, strict=True)))
            else:
                drafts.append(Draft.chain(more.tokens[: job.length]))
        return drafts

    def _draft_shared(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft by shared tokens: the drafter's own, under the ids that the target has for them."""
        self.inner.allowed = self.allowed
        try:
            drafts = self.inner.draft([self._inner_job(job) for job in jobs])
        finally:
            self.inner.allowed = None
        renamed = []
        for draft in drafts:
            tokens = tuple(self.target_ids[token] for token in draft.tokens)
            dist = None if draft.dist is None else self._target_rows(torch.stack(list(draft.dist)), 0.0)
            renamed.append(replace(draft, tokens=tokens, dist=dist))
        return renamed

    def _target_rows(self, rows: Tensor, rest: float) -> Tensor:
        """Return rows over the drafter's vocabulary over the target's, `rest` where it is not shared."""
        tokens, drafted = self.pairs.to(rows.device).unbind(1)
        return rows.new_full((len(rows), self.vocab_size), rest).index_copy(1, tokens, rows[:, drafted])

    def _shared_grades(
        self, job: GradeJob, path: Path, rows: Tensor, apart: Mapping[int, Tensor]
    ) -> list[Grade]:
        """Grade by the drafter's distributions over shared tokens; nothing is drafted before any text."""
        first = len(path.ids) + 1 - len(rows)
        before = [
            apart[i] if i in apart else rows[len(ids) - first] if ids else rows.new_zeros(rows.shape[1])
            for i, ids in enumerate(path.before)
        ]
        logits = self._target_rows(torch.stack(before), -inf)
        graded = grades(job, logits, None, vocab_size=self.vocab_size, sample=self.sample)
        return [one if ids else Grade(0.0, 0.0) for one, ids in zip(graded, path.before, strict=True)]

    def _logits(self, stretches: Sequence[tuple[Request, Sequence[int], int]]) -> list[Tensor]:
        """Return the logits that predict the last n of some tokens, shape (n, vocabulary), in one pass."""
        views = [(self._translate(request, ids), n) for request, ids, n in stretches if n > 0]
        read = iter(self.inner.read(views) if views else ())
        nothing = torch.zeros((0, self.inner.vocab_size), device=getattr(self.runner, "device", None))
        return [next(read).float() if n > 0 else nothing for *_, n in stretches]


def check(vocabulary: str) -> None:
    """Raise a UserError unless this is a way to draft with another tokenizer."""
    if vocabulary not in WAYS:
        raise UserError(f"vocabulary={vocabulary}: choose from {', '.join(WAYS)}")


def check_unused(vocabulary: str) -> None:
    """Raise a UserError if a way is chosen for a drafter that has the target's tokenizer."""
    check(vocabulary)
    if vocabulary != "auto":
        raise UserError(f"vocabulary={vocabulary}: the drafter has the target's tokenizer, leave it out")


@dataclass(frozen=True, slots=True)
class Path:
    """The tokens of a job of grading as the drafter reads them.

    Attributes:
        ids: The drafter's tokens of the whole text.
        first: How many of them were there before the committed tokens, at least 1.
        before: The drafter's tokens of the text before each committed token.
        under: For each committed token the places in `ids` of those that have its text.
    """

    ids: list[int]
    first: int
    before: list[list[int]]
    under: list[list[int]]

    @classmethod
    def of(cls, reading: Reading, job: GradeJob) -> Path:
        """Read the committed tokens one by one."""
        tokens, start = job.request.tokens, job.start
        before, lengths = list[list[int]](), list[int]()
        for end in range(start, len(tokens) + 1):
            reading.read(tokens[:end])
            lengths.append(reading.length)
            before.append(list(reading.ids))
        ids = before.pop()
        first = max(1, common_length(before[0], ids))
        under = [_under(reading, first, token, lengths[i:]) for i, token in enumerate(tokens[start:])]
        return cls(ids, first, before, under)

    @property
    def divided(self) -> list[int]:
        """The committed tokens that begin within one of the drafter's tokens."""
        return [i for i, ids in enumerate(self.before) if ids != self.ids[: len(ids)]]

    def stretch(self, *, by_text: bool) -> tuple[list[int], int]:
        """Return the tokens to read, and how many of them to predict.

        Those are the ones with the committed text, or from the first committed token that begins with one of
        them up to what follows the text.
        """
        if by_text:
            return self.ids, len(self.ids) - self.first
        begins = [len(ids) for ids in self.before if ids and ids == self.ids[: len(ids)]]
        return [*self.ids, 0], len(self.ids) + 1 - begins[0] if begins else 0


def _under(reading: Reading, first: int, token: int, lengths: Sequence[int]) -> list[int]:
    """Return the drafter's tokens, from the `first` on, that have the text of one token of the target."""
    begin, places = lengths[0], range(first, len(reading.ids))
    if token == reading.target.end:
        end = reading.drafter.end
        return [j for j in places if reading.ids[j] == end and reading.spans[j] == (begin, begin)]
    if token in reading.target.special:
        return []
    # A part of a character goes with the whole.
    end = next((length for length in lengths[1:] if length > begin), begin)
    return [j for j in places if reading.spans[j][0] < end and reading.spans[j][1] > begin]


def text_grades(job: GradeJob, path: Path, rows: Tensor) -> list[Grade]:
    """Return one grade per committed token: 1 if the drafter's most likely text continues with the token's.

    `rows` are the logits that predict `path.ids[path.first:]`, shape (tokens, vocabulary). Where the job has
    the drafter's own draft, that decides.
    """
    picks = most_likely(rows) if len(rows) else []
    right = [pick == token for pick, token in zip(picks, path.ids[path.first :], strict=True)]
    position = job.start - job.request.prompt_length
    greedy = job.request.sampling.greedy
    drafted = None if job.draft is None else job.draft.tokens
    graded = []
    for i, (token, places) in enumerate(zip(job.request.tokens[job.start :], path.under, strict=True)):
        accept = float(bool(places) and all(right[j - path.first] for j in places))
        if drafted is not None and i < max(1, len(drafted)):
            accept = float(drafted[i : i + 1] == (token,))
            drafted = drafted if accept else None
        least = None
        if job.signals and places:
            ours = [j - path.first for j in places]
            read = (signals(rows[j], picks[j], job.signals, position + i, None) for j in ours)
            least = min(read, key=CERTAINTY)
        graded.append(Grade(accept, accept if greedy else nan, least))
    return graded


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike; texts that grow differ near their ends."""
    most = min(len(one), len(other))
    begin = max(0, most - 64)
    begin = begin if one[:begin] == other[:begin] else 0
    return next((i for i in range(begin, most) if one[i] != other[i]), most)


def lm(
    model: Any,
    vocab_size: int,
    tokenizers: tuple[Any, Any] | None = None,
    *,
    sample: Annotated[bool, "sample drafts where the request samples; false: most probable tokens"] = True,
    window: Annotated[int, "latest tokens that it sees; 0: all", Within(0)] = 0,
    sinks: Annotated[int, "first tokens that it sees beside the window", Within(0)] = 4,
    vocabulary: Annotated[
        str, "with another tokenizer than the target's: text, shared tokens, or auto"
    ] = "auto",
    width: Annotated[int, "nodes for each token: it, and the most likely others", Within(1)] = 1,
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
        UserError: a model whose cache cannot be rolled back, or a tokenizer that cannot be used.
    """
    more: dict[str, Any] = {"sample": sample, "window": window, "sinks": sinks, "probe": probe}
    if tokenizers is None:
        check_unused(vocabulary)
        return LMDrafter(model, vocab_size, width=width, **more)
    if width > 1:
        raise UserError(f"width={width}: the model has another tokenizer than the target; leave width out")
    own = int(model.config.get_text_config(decoder=True).vocab_size)
    inner = LMDrafter(model, own, **more)
    return TranslatedDrafter(inner, vocab_size, tokenizers, sample=sample, vocabulary=vocabulary)
