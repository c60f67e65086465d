"""Drafts with a smaller causal LM of the target's vocabulary, for any number of requests at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job, after
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob
from ...models.load import embedded
from ...models.probe import rows_of
from ...models.runner import PassInput, PassOutput
from ...models.runner.prefix_cache import PrefixCache, PrefixMemory, length
from .chains import Chain, RunsModel, draft_at_once, drafted_rows, extend, grades

LAST = -1  # the layer after the final norm
LONG = 16  # from this many pending tokens a row is prefilled in a pass of its own


@dataclass(slots=True)
class CachedText:
    """The contents of a row: the first `base` visible tokens of the request, then the drafted tokens `fed`.

    `skip` tokens of the request after its first ones are outside the window.
    """

    base: int = 0
    fed: list[int] = field(default_factory=list)
    skip: int = 0

    def cut(self, length: int) -> None:
        """Drop the request's tokens from `length` on, and the drafted ones."""
        self.set_base(max(0, min(self.base, length - self.skip)))

    def set_base(self, base: int) -> None:
        """Drop the drafted tokens."""
        self.base, self.fed = base, []

    def matched(self, tokens: Sequence[int]) -> int:
        """Return how many of the row's tokens are still the request's text."""
        same = self.base
        for token in self.fed:
            if same >= len(tokens) or tokens[same] != token:
                break
            same += 1
        return same


class CausalDrafter(Drafter):
    """A drafter that runs a whole model, which reads a request's tokens when a draft is requested."""

    guided = True
    vocab_size: int
    sample: bool

    def __init__(self) -> None:
        self.cached: dict[int, CachedText] = {}
        self.allowed: Tensor | None = None  # tokens that it may draft, shape (vocabulary,); None: all

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token: from its drafted row, or from one pass for all others."""
        constraints = [constraint_of(job.request, job.start) for job in jobs]
        jobs = [self._visible_job(job) for job in jobs]
        self._watch(job.signals for job in jobs)
        drafted = [drafted_rows(job) if "hidden" not in job.signals else [] for job in jobs]
        missing = [len(j.request.tokens) - j.start - len(r) for j, r in zip(jobs, drafted, strict=True)]
        parts = [(job.request, n) for job, n in zip(jobs, missing, strict=True) if n > 0]
        read = iter(self._read(parts) if parts else ())
        graded = []
        size, sample = self.vocab_size, self.sample
        for job, rows, n, constraint in zip(jobs, drafted, missing, constraints, strict=True):
            logits, states = next(read) if n > 0 else (torch.stack(rows), None)
            if rows and n > 0:
                logits = torch.cat((torch.stack(rows), logits))
            graded.append(grades(job, logits, states, vocab_size=size, sample=sample, constraint=constraint))
        return graded

    @torch.inference_mode()
    def read(self, parts: Sequence[tuple[Request, int]]) -> list[Tensor]:
        """Return the logits that predict the last n tokens of each text, shape (n, vocabulary) each."""
        visible = [(self._visible(request, len(request.tokens) - n), n) for request, n in parts]
        return [logits for logits, _ in self._read(visible)]

    def rewind(self, request: Request, length: int) -> None:
        """Forget what is cached of a request's tokens from `length` on, since these are others now."""
        if request.id in self.cached:
            self.cached[request.id].cut(length)

    def seat(self, whole: Request, view: Request) -> None:
        """Let a request begin with what is cached of another one, whose text begins alike."""
        if whole.id in self.cached:
            self._cached_text(view)
            length = min(len(view.tokens), self.cached[whole.id].base) - 1
            if length > 0 and self._share(view, whole, length):
                self.cached[view.id].set_base(length)

    def _visible(self, request: Request, start: int) -> Request:
        """Return the request cut to what the model sees, for a draft that continues from `start`."""
        return request

    def _visible_job(self, job: GradeJob) -> GradeJob:
        request = self._visible(job.request, job.start)
        hidden = len(job.request.tokens) - len(request.tokens)
        return replace(job, request=request, start=job.start - hidden) if hidden else job

    def _watch(self, read: Iterable[frozenset[str]]) -> None:
        """Let passes return hidden states from now on, if any of these rules read them."""

    @abstractmethod
    def _cached_text(self, request: Request) -> CachedText:
        """Return the contents of the request's row; a new row if it has none."""

    @abstractmethod
    def _share(self, view: Request, whole: Request, length: int) -> bool:
        """Copy the first tokens of a row to another; False where the model cannot."""

    @abstractmethod
    def _read(self, parts: Sequence[tuple[Request, int]]) -> Sequence[tuple[Tensor, Tensor | None]]:
        """Return the logits that predict each text's last `n` tokens, shape (n, vocabulary) each.

        With them come the hidden states that these came from, shape (n, width), if any rule reads them.
        """


class LMDrafter(RunsModel, CausalDrafter):
    """Drafts with a causal LM, sampled where the request samples, else its most probable tokens.

    `probe` finds out how the model can be run (see `draftwise.models.probe`); for the other options see `lm`.

    Raises:
        UserError: a model whose cache cannot be rolled back.
    """

    hidden_states = True  # for stop rules that read them

    def __init__(
        self,
        model: Any,
        vocab_size: int,
        *,
        sample: bool = True,
        window: int = 0,
        sinks: int = 4,
        width: int = 1,
        probe: bool = True,
    ) -> None:
        super().__init__()
        self.window, self.sinks = window, sinks
        self.runner = rows_of(model, probe=probe, drafts=True)
        self.vocab_size, self.sample, self.branches = vocab_size, sample, width
        self.size = embedded(self.runner.model)
        small = self.runner.device.type == "cpu" and not self.runner.steps
        self.chunk = 96 if small else 2048  # bounds the memory of long catch-ups
        self.hidden: Tensor | None = None  # states that the latest logits came from, shape (rows, width)
        self.prefixes: PrefixCache | None = None

    def cache_prefixes(self, memory: PrefixMemory) -> None:
        """Keep what was read of texts that have ended there, where all of a text is read and has no state."""
        if not self.window and not self.runner.stateful:
            self.prefixes = PrefixCache(self.runner, memory)

    def drafts_siblings(self) -> bool:
        """Return whether a wider arm gets a chain with siblings."""
        return self.branches == 1

    def hint(self, request: Request) -> float:
        return 1.0

    def close(self, request: Request) -> None:
        """Free the request's row; what it cached is kept for others."""
        if self.prefixes is not None:
            self._forget()
        if (place := self.cached.pop(request.id, None)) is not None:
            try:
                if self.prefixes is not None:
                    cached = self.runner.cached_lengths[self.runner.request_ids.index(request.id)]
                    matched = min(cached, place.matched(request.tokens))
                    self.prefixes.store(request.id, request.tokens, matched)
            finally:  # it may warn, and warnings may be errors
                self.runner.close(request.id)

    @torch.inference_mode()
    def prepare(self, request: Request) -> bool:
        """Read one piece of a long text; return if there is another one. A window is short anyway."""
        tokens = request.tokens
        if self.window or len(tokens) <= LONG:
            return False
        (row,), cached = self._rows_of([request]), self.runner.cached_lengths
        if len(tokens) - 1 - cached[row] > LONG:
            self._read_piece(row, tokens[:-1], len(tokens) + request.remaining)
            self.cached[request.id].set_base(cached[row])
        return len(tokens) - 1 - cached[row] > LONG

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job; every row takes part in each pass until all drafts are complete."""
        if self.window:
            jobs = [replace(job, request=self._visible(job.request, len(job.request.tokens))) for job in jobs]
        if self.branches > 1:
            jobs = [replace(job, width=max(job.width, self.branches)) for job in jobs]
        drafted = [Chain(job, self.vocab_size, self.sample) for job in jobs]
        for chain in drafted:
            chain.force(self.runner.device)
        chains = [chain for chain in drafted if not chain.done]
        self._watch(chain.needs for chain in chains)
        if chains:
            rows = self._rows_of([chain.job.request for chain in chains])
            self._extend([chain for _, chain in sorted(zip(rows, chains, strict=True), key=itemgetter(0))])
        return [chain.draft for chain in drafted]

    def _extend(self, chains: Sequence[Chain]) -> None:
        """Draft until all chains are complete; they are those of the first rows, in order."""
        logits = self._catch_up(chains)
        while True:
            if not (self.runner.executor.drafts and self._draft_at_once(chains, logits)):
                if self.allowed is not None:
                    logits = logits.masked_fill(~self.allowed.to(logits.device), -inf)
                extend(chains, logits, self.hidden)
                for chain in chains:
                    chain.force(self.runner.device)
            if all(chain.done for chain in chains):
                return
            logits = self._step(chains)

    def _draft_at_once(self, chains: Sequence[Chain], logits: Tensor) -> bool:
        """Draft several tokens without reading the device between them, where the executor can."""
        done = [chain.done for chain in chains]
        output = draft_at_once(self.runner, chains, logits, size=self.size, allowed=self.allowed)
        if output is None:
            return False
        for row, chain in enumerate(chains):
            if done[row]:
                self.runner.cached_lengths[row] -= len(output.tokens[row]) - 1
            else:
                self.cached[chain.job.request.id].fed += output.tokens[row][:-1]
        return True

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """Draft one chain per job after these tokens, and forget them: the target may reject them."""
        drafts = self.draft([after(job, tokens) for job, tokens in zip(jobs, written, strict=True)])
        for job in jobs:
            self.rewind(job.request, len(job.request.tokens))
        return drafts

    def _visible(self, request: Request, start: int) -> Request:
        if not self.window:
            return request
        place, tokens = self._cached_text(request), request.tokens
        if not self.sinks < start - place.skip <= self.sinks + 2 * self.window:
            skip = max(0, start - self.sinks - self.window)
            if skip != place.skip:
                place.base, place.fed, place.skip = min(place.base, self.sinks), [], skip
        visible = [*tokens[: self.sinks], *tokens[self.sinks + place.skip :]]
        return replace(request, tokens=visible, prompt_length=request.prompt_length - place.skip)

    def _cached_text(self, request: Request) -> CachedText:
        if request.id not in self.cached:
            self._forget()
            self.runner.open(request.id)
            self.cached[request.id] = CachedText()
            path = [] if self.prefixes is None else self.prefixes.find(request.tokens[:-1])
            if self.prefixes is not None and length(path) > LONG:
                self.prefixes.restore(request.id, path, len(request.tokens) + request.remaining)
                self.cached[request.id].set_base(length(path))
        return self.cached[request.id]

    def _share(self, view: Request, whole: Request, length: int) -> bool:
        if not self.window:  # else each position sees another text
            row, other = map(self.runner.request_ids.index, (view.id, whole.id))
            self.runner.share(row, other, length)
        return not self.window

    def _forget(self) -> None:
        """Drop all that was read with other weights."""
        if self.runner.has_changed():
            for place in self.cached.values():
                place.cut(0)
            if self.prefixes is not None:
                self.prefixes.tree.clear()

    def _read(self, parts: Sequence[tuple[Request, int]]) -> list[tuple[Tensor, Tensor | None]]:
        rows, cached = self._rows_of([request for request, _ in parts]), self.runner.cached_lengths
        texts: list[Sequence[int]] = [[]] * len(parts)
        for row, (request, n) in zip(rows, parts, strict=True):
            tokens = request.tokens
            first = len(tokens) - n - 1  # the token before the first of them
            cached[row] = min(cached[row], first)
            while first - cached[row] > LONG:
                self._read_piece(row, tokens[:first], len(tokens) + request.remaining)
            texts[row] = self._ids(tokens[cached[row] : -1])
        widest = max(map(len, texts))
        slots = max(len(request.tokens) + request.remaining for request, _ in parts)
        output = self.runner.forward(PassInput(0, texts, widest, slots=slots))
        logits, states = output.logits[..., : self.vocab_size], output.hidden_states.get(LAST)
        for request, _ in parts:
            self.cached[request.id].set_base(len(request.tokens) - 1)
        ends = [
            (row, slice(len(texts[row]) - n, len(texts[row])))
            for row, (_, n) in zip(rows, parts, strict=True)
        ]
        return [(logits[end], None if states is None else states[end]) for end in ends]

    def _catch_up(self, chains: Sequence[Chain]) -> Tensor:
        """Prefill every request up to its last token, and the tokens that its chain has already.

        Returns the logits after them, shape (rows, vocabulary).
        """
        cached, texts = self.runner.cached_lengths, list[Sequence[int]]()
        slots = max(len(chain.job.request.tokens) + chain.job.request.remaining for chain in chains)
        for row, chain in enumerate(chains):
            tokens = chain.job.request.tokens
            while len(tokens) - cached[row] > (LONG if len(chains) > 1 else self.chunk):
                self._read_piece(row, tokens[:-1], slots)
            texts.append(self._ids([*tokens[cached[row] :], *chain.unread()]))
            self.cached[chain.job.request.id].set_base(len(tokens))
        widths = [len(t) for t in texts]
        keep = max(widths) - min(widths) + 1
        output = self.runner.forward(PassInput(0, texts, keep, slots=slots))
        for chain in chains:
            self.cached[chain.job.request.id].fed = list(chain.tokens)
        return self._ends(output, [keep - 1 - max(widths) + w for w in widths])

    def _read_piece(self, row: int, tokens: Sequence[int], slots: int) -> None:
        """Prefill the next chunk of a row, whose text these tokens begin."""
        piece = tokens[self.runner.cached_lengths[row] :][: self.chunk]
        self.runner.forward(PassInput(row, [self._ids(piece)], 1, slots=slots))

    def _ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens with 0 in place of ids that only the target has."""
        if not tokens or max(tokens) < self.size:
            return tokens
        return [token if token < self.size else 0 for token in tokens]

    def _ends(self, output: PassOutput, ends: Sequence[int]) -> Tensor:
        """Return the logits at each row's end, and keep the hidden states there."""
        logits, states = output.logits, output.hidden_states.get(LAST)
        device, keep = logits.device, logits.shape[1]
        which: Any = (slice(None), 0)
        if keep > 1:
            places = torch.tensor(ends).to(device, non_blocking=True)
            which = (torch.arange(len(ends), device=device), places)
        self.hidden = None if states is None else states[:, -keep:][which]
        return logits[which]

    def _watch(self, read: Iterable[frozenset[str]]) -> None:
        if not self.runner.layers and any("hidden" in names for names in read):
            self.runner.request_hidden_states((LAST,))

    def _rows_of(self, requests: Sequence[Request]) -> list[int]:
        """Return each request's row, moved to the front and rolled back to the request's text."""
        for request in requests:
            self._cached_text(request)
        rows = self.runner.move_to_front([r.id for r in requests])
        for row, request in zip(rows, requests, strict=True):
            matched = self.cached[request.id].matched(request.tokens)
            self.runner.truncate(row, min(matched, len(request.tokens) - 1))
        return rows

    def _step(self, chains: Sequence[Chain]) -> Tensor:
        """Feed each unfinished chain its new tokens; returns the next logits, shape (rows, vocabulary)."""
        if len(chains) == 1 and not self.runner.layers and len(chains[0].tokens) == chains[0].read + 1:
            (token,) = chains[0].unread()
            self.cached[chains[0].job.request.id].fed.append(token)
            return self.runner.forward(PassInput(0, [self._ids([token])], 1, is_guess=True)).logits[0]
        idle = [] if self.runner.stateful else [0]  # a state would have to take it back
        texts = [idle if chain.done else self._ids(chain.unread()) for chain in chains]
        widths = [len(text) for chain, text in zip(chains, texts, strict=True) if not chain.done]
        keep = max(widths) - min(widths) + 1
        ends = [max(0, keep - 1 - max(widths) + len(text)) for text in texts]
        logits = self._ends(self.runner.forward(PassInput(0, texts, keep, is_guess=True)), ends)
        for row, chain in enumerate(chains):
            if chain.done:
                self.runner.cached_lengths[row] -= len(idle)
            else:
                self.cached[chain.job.request.id].fed = list(chain.tokens)
        return logits
