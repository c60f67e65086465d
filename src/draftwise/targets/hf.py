"""Any decoder-only causal LM of Transformers, for batches of requests with different lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.drafts import Draft, Verdict
from ..core.passes import TargetInfo
from ..core.request import Request
from ..core.request_round import ERROR
from ..core.roles import Scores
from ..errors import UserError
from ..models.distributions import Chain, most_likely, on_host, top_tokens
from ..models.probe import check_trees, rows_of
from ..models.runner import PassInput, PassOutput
from ..models.runner.hidden_states import HiddenStates
from ..models.runner.positions import ENDLESS
from ..models.runner.prefix_cache import PrefixCache, PrefixMemory
from .device_scores import DeviceScores, read_all
from .prefill import Prefill
from .regimes import Regimes, warn_of
from .scores import GreedyScores, SampledScores, plain


class HFTarget(Prefill):
    """The target role for a loaded model, which is used unchanged: quantised, sharded, on any device.

    `probe` finds out how it can be run (see `draftwise.models.probe`).

    Raises:
        UserError: the model's cache cannot be rolled back, or it is not a plain causal LM.
    """

    def __init__(self, model: Any, *, chunk: int = 0, probe: bool = True) -> None:
        self.probe, self.info = probe, TargetInfo()
        self.runner = rows_of(model, probe=probe)
        self.vocab_size = int(self.runner.config.vocab_size)
        self.max_length, self.trained = self.runner.max_length, self.runner.trained
        self.window = self.trained
        self.regimes = Regimes(self.runner) if self.runner.rope.borders or self.runner.masks.late else None
        super().__init__(chunk)
        self.chains: dict[int, Chain] = {}
        self.reads_trees = False  # not known before the first tree
        self.recorded: dict[tuple[int, ...], HiddenStates] = {}
        self.latest: PassOutput | None = None  # its hidden states are not recorded yet
        self.guesses: dict[int, tuple[Draft, list[int]]] | None = None
        self.prefixes: PrefixCache | None = None
        self.first_row = 0  # of the latest pass

    def cache_prefixes(self, memory: PrefixMemory) -> None:
        """Keep what was read of texts that have ended there, unless the model has states."""
        if not self.runner.stateful:
            self.prefixes = PrefixCache(self.runner, memory, self.recorded.values)

    def hidden_states(self, layers: Sequence[int]) -> HiddenStates:
        """Return the hidden states of committed text at these layers, recorded from now on for open requests.

        Raises:
            UserError: the model has no such layer.
        """
        if tuple(layers) not in self.recorded:
            self.runner.request_hidden_states(layers)
            self.recorded[tuple(layers)] = HiddenStates(layers)
            if self.prefixes is not None:
                self.prefixes.tree.clear()  # it has no such states
        return self.recorded[tuple(layers)]

    def open(self, request: Request) -> None:
        """Give the request a row; its prompt is prefilled in its first round."""
        self._forget()
        if not self.runner.request_ids:
            self._adapt([])
        self.runner.open(request.id)

    def reach(self, request: Request) -> int:
        """The longest draft that the next pass can verify: rotary frequencies may not change within it."""
        return self.regimes.reach(request) if self.regimes else ENDLESS

    def can_read_trees(self) -> bool:
        """Return whether the model reads trees of drafted tokens; a probe finds out when first asked."""
        try:
            self._check_trees()
        except UserError:
            return False
        return True

    def _check_trees(self) -> None:
        if self.runner.is_exact:
            raise UserError("exact=True reads no trees of drafted tokens: use a policy that drafts chains")
        if not self.reads_trees:
            check_trees(self.runner, probe=self.probe)
            self.reads_trees = True

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """One forward pass over each request's last token and its draft, after a prefill of other new tokens.

        Raises:
            UserError: a draft is a tree, and the model cannot read trees.
        """
        return self.launch(batch)()

    @property
    def is_asynchronous(self) -> bool:
        """Whether the model computes on a device of its own, while the host works."""
        return self.runner.device.type != "cpu"

    def launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        """Start the pass of `verify`; the function that is returned waits for the device."""
        self._adapt([request for request, _ in batch])
        if self.began:
            self._rewind()
        if len(batch) == 1 and (logits := self._next(*batch[0])) is not None:
            ((request, draft),) = batch
            if self.guesses is None and plain(request.sampling) and on_host(logits):
                return lambda: [GreedyScores(draft, logits[0], None)]
            return self._scores(batch, [0], [logits.shape[1]], logits)
        return self._launch(batch)

    @torch.inference_mode()
    def _launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        requests = [request for request, _ in batch]
        rows, self.first_row = self.runner.move_to_front([request.id for request in requests]), 0
        held, n = self.runner.cached_lengths, len(batch)
        slots = max(len(r.tokens) + r.remaining for r in requests)
        lengths: list[int] = []
        for row, (request, _) in zip(rows, batch, strict=True):
            self._renew(row, request)
            if len(request.tokens) - held[row] > self._long(n):
                self._read(row, request, requests, alone=n == 1, slots=slots)
        if self.regimes:
            lengths = self._align(rows, batch, slots)
        texts: list[list[int]] = [[]] * n
        for row, (request, draft) in zip(rows, batch, strict=True):
            texts[row] = [*request.tokens[held[row] :], *draft.tokens]
        trees = {row: d.parents for row, (_, d) in zip(rows, batch, strict=True) if not d.is_chain}
        if trees:
            self._check_trees()
        keep = max(map(len, texts)) if n > 1 else 1 + len(batch[0][1].tokens)
        self.began = {request.id: held[row] for row, (request, _) in zip(rows, batch, strict=True)}
        guesses = any(draft.tokens for _, draft in batch)
        given = PassInput(0, texts, keep, slots, trees, rope_lengths=lengths, is_guess=guesses)
        logits = self._run(given)
        if max(len(request.tokens) for request in requests) > self.trained:
            warn_of(self.runner.model, self.trained)
            self.trained = ENDLESS
        return self._scores(batch, rows, [len(t) for t in texts], logits)

    def _next(self, request: Request, draft: Draft) -> Tensor | None:
        """The logits after the last token of a text and each of its draft, if that is all to read, as a
        chain, and by a compiled pass.

        What other passes need prepared takes more time than all else between two of these.
        """
        runner, start, n = self.runner, len(request.tokens) - 1, len(draft.tokens)
        if runner.executor is runner.eager or runner.free or self.regimes or not draft.is_chain:
            return None
        row = runner.request_ids.index(request.id)
        if runner.cached_lengths[row] != start or start + n >= self.trained:
            return None
        if row and runner.executor.is_bound:  # its graphs are of the first rows
            return None
        self.began, self.first_row = {request.id: start}, row
        return self._run(PassInput(row, [[request.tokens[start], *draft.tokens]], 1 + n))

    def _run(self, given: PassInput) -> Tensor:
        self.latest = output = self.runner.forward(given)
        self.info.latest, self.info.is_padded = output.info, self.padded
        # Quantiles are found in float64, which Apple's GPUs do not have.
        return output.logits.cpu() if output.logits.device.type == "mps" else output.logits

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Roll back what was rejected: every row holds its request's committed tokens but the last."""
        held, moves = self.runner.cached_lengths, list[tuple[int, int, int]]()
        for request, draft, verdict in batch:
            row, path = self.runner.request_ids.index(request.id), verdict.path
            if path and path[-1] >= len(path):  # numbers increase, so the last shows any gap
                begin = held[row] - len(draft.tokens)
                moves += [(row, begin + node, begin + k) for k, node in enumerate(path) if node != k]
            if self.recorded:
                self._record(row, request, draft, path)
        if moves:
            self.runner.cache.move(moves, self.runner.device)
        for request, _, _ in batch:
            row = self.runner.request_ids.index(request.id)
            self.runner.truncate(row, min(held[row], len(request.tokens) - 1))
            self.began.pop(request.id, None)
        self.latest = None

    def close(self, request: Request) -> None:
        """Free the request's row; what it held is kept for others, unless the request failed."""
        try:
            self._forget()
            if self.prefixes is not None and request.finish_reason != ERROR:
                self._store(self.prefixes, request)
        finally:  # it may warn, and warnings may be errors; or be interrupted
            self._release(request)

    def _release(self, request: Request) -> None:
        self.runner.close(request.id)
        kept: dict[int, Any]
        for kept in (self.began, self.info.reused, self.chains, self.runner.prompts):
            kept.pop(request.id, None)
        if self.regimes:
            self.regimes.close(request)
        for states in self.recorded.values():
            states.close(request.id)
        if self.guesses is not None:
            self.guesses.pop(request.id, None)

    def _store(self, prefixes: PrefixCache, request: Request) -> None:
        key, held = request.id, self.runner.cached_lengths[self.runner.request_ids.index(request.id)]
        most, mark = min(self.began.get(key, held), len(request.tokens) - 1), 0
        if self.regimes and most > 0:
            mark, most = self.regimes.lasting(key, most)
        prefixes.store(key, request.tokens, most, mark)

    def _record(self, row: int, request: Request, draft: Draft, path: Sequence[int]) -> None:
        """Record the hidden states of the committed text, up to its last token but one."""
        assert self.latest is not None  # that of the round
        start, end = self.began[request.id], len(request.tokens) - 1
        first = self.runner.cached_lengths[row] - len(draft.tokens) - start  # of the draft in the pass
        which: Any = [*range(first), *(first + node for node in path)][: end - start]
        if not path or path[-1] == len(path) - 1:  # a list of indices would make the host wait for a GPU
            which = slice(0, len(which))
        for recorded in self.recorded.values():
            recorded.record(request.id, self.latest.hidden_states, row - self.first_row, which, start)

    def _scores(
        self, batch: Sequence[tuple[Request, Draft]], rows: list[int], widths: list[int], logits: Tensor
    ) -> Callable[[], list[Scores]]:
        """Scores of each request from logits of shape (rows, keep, vocabulary), on their device.

        All that they need is computed there; the function that is returned reads it.
        """
        keep, widest = logits.shape[1], max(widths)
        greedy = [self._plain(r) for r, _ in batch]
        tokens: Tensor | None = None
        if any(greedy) and not on_host(logits):
            tokens = self.latest.choices if self.latest else None
            tokens = top_tokens(logits) if tokens is None else tokens
        parts: list[tuple[int, slice]] = []
        scores: list[Scores] = []
        for row, is_plain, (request, draft) in zip(rows, greedy, batch, strict=True):
            end = keep - (widest - widths[row])
            part = slice(end - 1 - len(draft.tokens), end)
            parts.append((row, part))
            if is_plain:
                scores.append(GreedyScores(draft, logits[row, part], None if tokens is None else ()))
            else:
                chain = self._chain(request)
                foresees = logits.device.type != "cpu" and not chain.historic
                kind = DeviceScores if foresees else SampledScores
                scores.append(kind(request, draft, logits[row, part], chain))
        foreseen = [one for one in scores if isinstance(one, DeviceScores)]
        for one in foreseen:
            one.compute()

        def read() -> list[Scores]:
            chosen = [] if tokens is None else tokens.tolist()
            for one, (row, part), (request, draft) in zip(scores, parts, batch, strict=True):
                if chosen and isinstance(one, GreedyScores):
                    one.choices = chosen[row][part]
                if self.guesses is not None:
                    self.guesses[request.id] = draft, most_likely(logits[row, part])
            read_all(foreseen)
            return scores

        return read

    def _plain(self, request: Request) -> bool:
        return plain(request.sampling)

    def _chain(self, request: Request) -> Chain:
        if request.rounds == 0 or request.id not in self.chains:
            self.chains[request.id] = Chain.of(request)
        return self.chains[request.id]
