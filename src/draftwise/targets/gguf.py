"""Any causal language model in a GGUF file, run by llama.cpp, for batches of requests."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from ..core.drafts import Draft, Verdict
from ..core.passes import TargetInfo
from ..core.request import Request
from ..core.roles import Scores
from ..errors import DraftwiseWarning, UserError
from ..models.distributions import Chain
from ..models.gguf.model import GgufModel
from ..models.gguf.sequences import Part, Sequences
from ..models.runner.positions import ENDLESS
from ..registry import Within
from .scores import GreedyScores, SampledScores, plain

LONG = 16  # from this many pending tokens a text of several is read ahead of the pass of all
PIECE = 256  # tokens of a prompt that is read between the rounds of others


class GgufTarget:
    """The target role for a GGUF file: each request is a sequence of one llama_context.

    If `exact`, on a CPU, its text does not depend on drafts, on other requests or on the number of threads.
    `max_length` is `context`, or what the model was trained for. A model whose state llama.cpp cannot take
    back is decoded without drafts, with a warning.

    Raises:
        UserError: an unusable option, or not enough memory.
    """

    def __init__(
        self, model: GgufModel, *, context: int = 0, threads: int = 0, cache: str = "auto", exact: bool = True
    ) -> None:
        self.model, self.info = model, TargetInfo()
        self.rows = Sequences(model, context=context, threads=threads, cache=cache, exact=exact)
        self.vocab_size, self.max_length = model.vocab_size, self.rows.max_length
        self.window = min(model.trained, self.max_length)
        self.chains: dict[int, Chain] = {}
        self.pass_starts: dict[int, int] = {}  # tokens of each text before an uncommitted pass
        if self.rows.rollback == 0:
            warnings.warn(
                f"{model.name_or_path} keeps a state that llama.cpp cannot take back: it is decoded without "
                "drafts",
                DraftwiseWarning,
                stacklevel=2,
            )

    def open(self, request: Request) -> None:
        """Give the request a sequence; its prompt is read in its first round."""
        self.rows.open(request.id)

    def reach(self, request: Request) -> int:
        """The longest draft that the next pass can verify: as many tokens as can be taken back."""
        return ENDLESS if self.rows.rollback < 0 else self.rows.rollback

    @torch.inference_mode()
    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """One pass over each request's last token and its draft, after those of other new tokens.

        Raises:
            UserError: a draft is a tree.
        """
        self._rewind()
        rows, lengths = self.rows, self.rows.cached_lengths
        _refuse_trees(batch)
        rows.reserve({r.id: len(r.tokens) + r.remaining for r, _ in batch})
        self.pass_starts = {request.id: lengths[request.id] for request, _ in batch}
        if len(batch) > 1:
            for request, _ in batch:
                if len(request.tokens) - lengths[request.id] > LONG:
                    self._read(request, [other for other, _ in batch])
        parts: list[Part] = []
        for request, draft in batch:
            new = [*request.tokens[lengths[request.id] :], *draft.tokens]
            parts.append((request.id, new, 1 + len(draft.tokens)))
        return self._scores(batch, rows.feed(parts))

    @torch.inference_mode()
    def read(self, request: Request, others: Sequence[Request]) -> bool:
        """Read one piece of a long prompt; whether there is another one before the next `verify`."""
        self._rewind()
        rows, last = self.rows, len(request.tokens) - 1
        if last - rows.cached_lengths[request.id] > LONG:
            rows.reserve({request.id: last + 1 + request.remaining})
            if rows.cached_lengths[request.id] == 0:
                self._share(request, others)
        if last - rows.cached_lengths[request.id] > LONG:
            start = rows.cached_lengths[request.id]
            rows.feed([(request.id, request.tokens[start : min(start + PIECE, last)], 0)])
        return last - rows.cached_lengths[request.id] > LONG

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Take back what was rejected: every text holds its request's committed tokens but the last."""
        for request, _, _ in batch:
            self.rows.rewind(request.id, len(request.tokens) - 1)
            self.pass_starts.pop(request.id, None)

    def close(self, request: Request) -> None:
        """Free the request's sequence."""
        self.rows.close(request.id)
        self.pass_starts.pop(request.id, None)
        self.chains.pop(request.id, None)

    def _rewind(self) -> None:
        """Take back passes that were never committed, because something raised in between."""
        for key, held in self.pass_starts.items():
            self.rows.rewind(key, held)
        self.pass_starts.clear()

    def _read(self, request: Request, others: Sequence[Request]) -> None:
        """Read a long prompt up to its last token; what another text of the batch holds is shared."""
        if self.rows.cached_lengths[request.id] == 0:
            self._share(request, others)
        start = self.rows.cached_lengths[request.id]
        self.rows.feed([(request.id, request.tokens[start:-1], 0)])

    def _share(self, request: Request, others: Sequence[Request]) -> None:
        """Begin with the longest prefix that another text of the batch holds."""
        best, length = request.id, LONG
        for other in others:
            most = min(self.rows.cached_lengths[other.id], len(request.tokens) - 1)
            if other is not request and most > length and other.tokens[:length] == request.tokens[:length]:
                same = next((i for i in range(most) if other.tokens[i] != request.tokens[i]), most)
                if same > length:
                    best, length = other.id, same
        if best != request.id:
            self.rows.share(request.id, best, length)

    def _scores(self, batch: Sequence[tuple[Request, Draft]], logits: Tensor) -> list[Scores]:
        """Scores of each request from logits of shape (nodes of all, vocabulary)."""
        scores: list[Scores] = []
        end = 0
        for request, draft in batch:
            begin, end = end, end + 1 + len(draft.tokens)
            if plain(request.sampling):
                scores.append(GreedyScores(draft, logits[begin:end], None))
            else:
                scores.append(SampledScores(request, draft, logits[begin:end], self._chain(request)))
        return scores

    def _chain(self, request: Request) -> Chain:
        if request.rounds == 0 or request.id not in self.chains:
            self.chains[request.id] = Chain.of(request)
        return self.chains[request.id]


def _refuse_trees(batch: Sequence[tuple[Request, Draft]]) -> None:
    if not all(draft.is_chain for _, draft in batch):
        raise UserError("a GGUF target cannot read a tree of drafted tokens: use a policy that drafts chains")


def gguf(
    path: str,
    *,
    context: Annotated[int, "most tokens of a text; 0: what the model was trained for", Within(0)] = 0,
    threads: Annotated[int, "threads of llama.cpp; 0: as many as PyTorch has", Within(0)] = 0,
    gpu_layers: Annotated[
        int, "layers on the GPU, where llama.cpp was built for one; -1: all", Within(-1)
    ] = -1,
    cache: Annotated[str, "precision of keys and values: auto, f32, f16, bf16 or q8_0"] = "auto",
    exact: Annotated[bool, "on a CPU: texts depend on no draft, other text or number of threads"] = True,
) -> GgufTarget:
    """A GGUF file as target, run by llama.cpp.

    Raises:
        UserError: no such file, or one that llama.cpp cannot run.
    """
    model = GgufModel(path, gpu_layers=gpu_layers, repack=not exact)
    return GgufTarget(model, context=context, threads=threads, cache=cache, exact=exact)
