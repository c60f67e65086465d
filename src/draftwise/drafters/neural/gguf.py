"""Drafts with a smaller model in a GGUF file, run by llama.cpp, for any number of requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...errors import UserError
from ...models.gguf.model import GgufModel
from ...models.gguf.sequences import Sequences
from ...models.load import disagreement
from ...registry import Within
from .chains import Chain, extend
from .lm import CachedText, CausalDrafter
from .translated import TranslatedDrafter, check_unused

PIECE = 256  # tokens of a text that is read between the rounds of others


class GgufDrafter(CausalDrafter):
    """Drafts with a GGUF model, sampled where the request samples, else its most probable tokens.

    Raises:
        UserError: a model whose state llama.cpp cannot take back, an unusable option, or no memory.
    """

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
        super().__init__()
        self.model, self.vocab_size, self.sample = model, vocab_size, sample
        if model.stateful:
            raise UserError(
                f"{model.name_or_path} keeps a state that llama.cpp cannot take back after a draft: "
                "name another drafter"
            )
        self.rows = Sequences(model, context=context, threads=threads, cache=cache)

    def hint(self, request: Request) -> float:
        return float(self._room(request) > 0)

    def close(self, request: Request) -> None:
        if self.cached.pop(request.id, None) is not None:
            self.rows.close(request.id)

    @torch.inference_mode()
    def prepare(self, request: Request) -> bool:
        """Read one piece of a long text; return if there is another one."""
        last = len(request.tokens) - 1
        if self._room(request) <= 0 or last <= PIECE:
            return False
        self.rows.reserve({request.id: len(request.tokens) + request.remaining})
        start = self._roll_back(request, last)
        if last - start > PIECE:
            self.rows.feed([(request.id, request.tokens[start : start + PIECE], 0)])
            self.cached[request.id].set_base(self.rows.cached_lengths[request.id])
        return last - self.rows.cached_lengths[request.id] > PIECE

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job, none where a text fills the context or has no sequence of llama.cpp's;
        unfinished ones share a pass."""
        rooms = [self._seated(job.request) for job in jobs]
        jobs = [replace(job, length=min(job.length, room)) for job, room in zip(jobs, rooms, strict=True)]
        chains = [Chain(job, self.vocab_size, self.sample) for job in jobs]
        going = [chain for chain in chains if chain.job.length > 0]
        logits = self._catch_up([chain.job.request for chain in going]) if going else torch.empty((0, 0))
        while going:
            logits = logits[:, : self.vocab_size]
            if self.allowed is not None:
                logits = logits.masked_fill(~self.allowed, -inf)
            extend(going, logits, None)
            going = [chain for chain in going if not chain.done]
            if going:
                logits = self._step(going)
        return [chain.draft for chain in chains]

    def _room(self, request: Request) -> int:
        """Return how many more tokens of a text the context holds; -1 if llama.cpp has no sequence for it."""
        if request.id not in self.cached and self.rows.is_full:
            return -1
        return self.rows.max_length - len(request.tokens)

    def _seated(self, request: Request) -> int:
        """Return the room of a text, which has a sequence from now on if there is any."""
        room = self._room(request)
        if room >= 0:
            self._cached_text(request)
        return room

    def _catch_up(self, requests: Sequence[Request]) -> Tensor:
        """Read every text to its end; returns the logits after it, shape (requests, vocabulary)."""
        self.rows.reserve({r.id: len(r.tokens) + r.remaining for r in requests})
        starts = [self._roll_back(r, len(r.tokens) - 1) for r in requests]
        logits = self.rows.feed(
            [(r.id, r.tokens[start:], 1) for r, start in zip(requests, starts, strict=True)]
        )
        for request in requests:
            self.cached[request.id].set_base(len(request.tokens))
        return logits

    def _step(self, chains: Sequence[Chain]) -> Tensor:
        logits = self.rows.feed([(chain.job.request.id, chain.tokens[-1:], 1) for chain in chains])
        for chain in chains:
            self.cached[chain.job.request.id].fed.append(chain.tokens[-1])
        return logits

    def _read(self, parts: Sequence[tuple[Request, int]]) -> list[tuple[Tensor, None]]:
        """All tokens are equally likely in a text that the context does not hold."""
        fits = [self._seated(request) >= 0 for request, _ in parts]
        fitting = list(compress(parts, fits))
        starts = [self._roll_back(request, len(request.tokens) - n - 1) for request, n in fitting]
        logits = self.rows.feed(
            [(r.id, r.tokens[start:-1], n) for (r, n), start in zip(fitting, starts, strict=True)]
        )[:, : self.vocab_size]
        for request, _ in fitting:
            self.cached[request.id].set_base(len(request.tokens) - 1)
        rows = iter(torch.split(logits, [n for _, n in fitting]))
        return [
            (next(rows) if fit else logits.new_zeros(n, logits.shape[1]), None)
            for fit, (_, n) in zip(fits, parts, strict=True)
        ]

    def _roll_back(self, request: Request, most: int) -> int:
        """Keep what is cached of a request's text, up to `most` tokens; returns how many these are."""
        place = self._cached_text(request)
        self.rows.rewind(request.id, min(place.matched(request.tokens), most))
        place.set_base(self.rows.cached_lengths[request.id])
        return place.base

    def _cached_text(self, request: Request) -> CachedText:
        if request.id not in self.cached:
            self.rows.open(request.id)
            self.cached[request.id] = CachedText()
        return self.cached[request.id]

    def _share(self, view: Request, whole: Request, length: int) -> bool:
        return self.rows.share(view.id, whole.id, length)


def gguf(
    path: str,
    vocab_size: int,
    tokenizer: Any = None,
    *,
    sample: Annotated[bool, "sample drafts where the request samples; false: most probable tokens"] = True,
    context: Annotated[int, "most tokens of a text; 0: what the model was trained for", Within(0)] = 0,
    threads: Annotated[int, "threads of llama.cpp; 0: as many as PyTorch has", Within(0)] = 0,
    gpu_layers: Annotated[
        int, "layers on the GPU, where llama.cpp was built for one; -1: all", Within(-1)
    ] = -1,
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
