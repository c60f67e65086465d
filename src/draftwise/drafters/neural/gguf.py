"""Drafts with a smaller model in a GGUF file, run by llama.cpp, for any number of requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...core.stops import needs
from ...errors import UserError
from ...models.gguf.model import GgufModel
from ...models.gguf.sequences import Part, Sequences
from ...models.load import disagreement
from .chains import Chain, drafted_rows, grades, picks
from .lm import CachedText
from .translated import TranslatedDrafter, check_unused

PIECE = 256  # tokens of a text that is read between the rounds of others


class GgufDrafter:
    """Drafts with a GGUF model, sampled where the request samples, else its most probable tokens.

    A request that was not drafted for some rounds is prefilled up to date at its next draft. With `sample`
    off it always drafts its most likely tokens.

    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).

    Raises:
        UserError: a model whose state llama.cpp cannot take back, an unusable option, or no memory.
    """

    guided = True

    def __init__(
        self,
        model: GgufModel,
        vocab_size: int,
        *,
        sample: bool = True,
        context: int = 0,
        threads: int = 0,
        cache: str = "auto",
    ) -> None:
        self.model, self.vocab_size, self.sample = model, vocab_size, sample
        if model.stateful:
            raise UserError(
                f"{model.name_or_path} keeps a state that llama.cpp cannot take back after a draft: "
                "name another drafter"
            )
        self.rows = Sequences(model, context=context, threads=threads, cache=cache)
        self.cached: dict[int, CachedText] = {}
        self.allowed: Tensor | None = None  # tokens that it may draft, shape (vocabulary,); None: all

    def hint(self, request: Request) -> float:
        """Return 1 while the text fits the context."""
        return float(self._room(request) > 0)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Do nothing yet: the request's tokens are read when a draft is requested."""

    def close(self, request: Request) -> None:
        """Free the request's sequence."""
        if self.cached.pop(request.id, None) is not None:
            self.rows.close(request.id)

    @torch.inference_mode()
    def prepare(self, request: Request) -> bool:
        """Read one piece of a long text; return if there is another one."""
        last = len(request.tokens) - 1
        if self._room(request) <= 0 or last <= PIECE:
            return False
        self._rewind(request, min(self._cached_text(request).matched(request.tokens), last))
        self.rows.reserve({request.id: len(request.tokens) + request.remaining})
        start = self.rows.cached_lengths[request.id]
        if last - start > PIECE:
            self.rows.feed([(request.id, request.tokens[start : start + PIECE], 0)])
            self.cached[request.id].set_base(self.rows.cached_lengths[request.id])
        return last - self.rows.cached_lengths[request.id] > PIECE

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job, none where the text fills the context; unfinished ones share a pass."""
        chains = [Chain(self._fitting(job), needs(job.stops)) for job in jobs]
        going = [chain for chain in chains if chain.job.length > 0]
        logits = self._catch_up([chain.job.request for chain in going])
        while going:
            logits = logits[:, : self.vocab_size]
            if self.allowed is not None:
                logits = logits.masked_fill(~self.allowed, -inf)
            for chain, row, pick in zip(going, logits, picks(going, logits, sample=self.sample), strict=True):
                chain.extend(row, pick, None, vocab_size=self.vocab_size, sample=self.sample)
            going = [chain for chain in going if not chain.done]
            if going:
                logits = self._step(going)
        return [chain.draft for chain in chains]

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token: from its drafted row, or from one pass for all others."""
        drafted = [drafted_rows(job) for job in jobs]
        missing = [len(j.request.tokens) - j.start - len(r) for j, r in zip(jobs, drafted, strict=True)]
        read = self._read([(job.request, n) for job, n in zip(jobs, missing, strict=True) if n > 0])
        graded, end = [], 0
        for job, rows, n in zip(jobs, drafted, missing, strict=True):
            begin, end = end, end + n
            logits = read[begin:end]
            if rows:
                logits = torch.cat((torch.stack(rows), logits))
            constraint, size = constraint_of(job.request, job.start), self.vocab_size
            graded.append(
                grades(job, logits, None, vocab_size=size, sample=self.sample, constraint=constraint)
            )
        return graded

    @torch.inference_mode()
    def read(self, ends: Sequence[tuple[Request, int]]) -> list[Tensor]:
        """Return the logits that predict the last n tokens of each text, shape (n, vocabulary) each."""
        return list(torch.split(self._read(ends), [n for _, n in ends]))

    def rewind(self, request: Request, length: int) -> None:
        """Forget what is held of a request's tokens from `length` on, since these are others now."""
        if request.id in self.cached:
            self.cached[request.id].cut(length)

    def seat(self, whole: Request, view: Request) -> None:
        """Let a request begin with what is held of another one whose text begins alike."""
        if whole.id in self.cached:
            self._cached_text(view)
            length = min(len(view.tokens), self.cached[whole.id].base) - 1
            if length > 0 and self.rows.share(view.id, whole.id, length):
                self.cached[view.id].set_base(length)

    def _room(self, request: Request) -> int:
        """Return how many more tokens of a text the context holds."""
        return self.rows.max_length - len(request.tokens)

    def _fitting(self, job: Job) -> Job:
        room = self._room(job.request)
        return job if job.length <= room else replace(job, length=room)

    def _catch_up(self, requests: Sequence[Request]) -> Tensor:
        """Read every text to its end; returns the logits after it, shape (requests, vocabulary)."""
        parts: list[Part] = []
        if requests:
            self.rows.reserve({r.id: len(r.tokens) + r.remaining for r in requests})
        for request in requests:
            place, tokens = self._cached_text(request), request.tokens
            self._rewind(request, min(place.matched(tokens), len(tokens) - 1))
            parts.append((request.id, tokens[self.rows.cached_lengths[request.id] :], 1))
        logits = self.rows.feed(parts)
        for request in requests:
            self.cached[request.id].set_base(len(request.tokens))
        return logits

    def _step(self, chains: Sequence[Chain]) -> Tensor:
        """Feed each chain its newest token; returns the next logits, shape (chains, vocabulary)."""
        logits = self.rows.feed([(chain.job.request.id, chain.tokens[-1:], 1) for chain in chains])
        for chain in chains:
            self.cached[chain.job.request.id].fed.append(chain.tokens[-1])
        return logits

    def _read(self, ends: Sequence[tuple[Request, int]]) -> Tensor:
        """Return the logits that predict each request's last `n` tokens, one after the other."""
        parts: list[Part] = []
        for request, n in ends:
            place, tokens = self._cached_text(request), request.tokens
            first = len(tokens) - n - 1  # the token before the first of them
            self._rewind(request, min(place.matched(tokens), first))
            parts.append((request.id, tokens[self.rows.cached_lengths[request.id] : -1], n))
        logits = self.rows.feed(parts)[:, : self.vocab_size] if parts else torch.empty((0, 0))
        for request, _ in ends:
            self.cached[request.id].set_base(len(request.tokens) - 1)
        return logits

    def _rewind(self, request: Request, length: int) -> None:
        self.rows.rewind(request.id, length)
        self.cached[request.id].set_base(self.rows.cached_lengths[request.id])

    def _cached_text(self, request: Request) -> CachedText:
        """Return the contents of the request's sequence; a new one if it has none."""
        if request.id not in self.cached:
            self.rows.open(request.id)
            self.cached[request.id] = CachedText()
        return self.cached[request.id]


def gguf(
    path: str,
    vocab_size: int,
    tokenizer: Any = None,
    *,
    sample: Annotated[bool, "draw drafts where the request draws; false: always the most probable"] = True,
    context: Annotated[int, "most tokens of a text; 0: what the model was trained for"] = 0,
    threads: Annotated[int, "threads of llama.cpp; 0: as many as PyTorch has"] = 0,
    gpu_layers: Annotated[int, "layers on the GPU, where llama.cpp was built for one; -1: all"] = -1,
    cache: Annotated[str, "precision of keys and values: auto, f32, f16, bf16 or q8_0"] = "auto",
    vocabulary: Annotated[
        str, "with another tokenizer than the target's: text, shared tokens, or auto"
    ] = "auto",
) -> GgufDrafter | TranslatedDrafter:
    """Drafts with a smaller model in a GGUF file, run by llama.cpp.

    One whose tokenizer is not the target's drafts as `lm` does: by `text`, or by `shared` tokens.

    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).

    Raises:
        UserError: no such file, or one that llama.cpp cannot run, or that cannot draft.
    """
    model = GgufModel(path, gpu_layers=gpu_layers)
    more: dict[str, Any] = {"sample": sample, "context": context, "threads": threads, "cache": cache}
    has_tokenizers = tokenizer is not None and model.has_vocabulary
    if has_tokenizers and disagreement(model.tokenizer, tokenizer) is not None:
        inner, pair = GgufDrafter(model, model.vocab_size, **more), (tokenizer, model.tokenizer)
        return TranslatedDrafter(inner, vocab_size, pair, sample=sample, vocabulary=vocabulary)
    check_unused(vocabulary)
    return GgufDrafter(model, vocab_size, **more)
