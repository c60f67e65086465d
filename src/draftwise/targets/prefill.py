"""How a target of Transformers reads prompts: in chunks, after what other texts have in common with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.drafts import Draft
from ..core.passes import TargetInfo
from ..core.request import Request
from ..models.runner import ModelRunner, PassInput
from ..models.runner.hidden_states import HiddenStates
from ..models.runner.prefix_cache import PrefixCache, length
from ..models.steady import Steady
from ..models.threads import THREADS
from .regimes import Regimes

LONG = 16  # from this many pending tokens a row has a pass of its own, so that others need no padding


class Prefill:
    """The part of `HFTarget` that fills the cache before a verification pass.

    A prompt is read `chunk` tokens at a time, `piece` at a time between the rounds of others.
    """

    runner: ModelRunner
    info: TargetInfo
    regimes: Regimes | None
    recorded: dict[tuple[int, ...], HiddenStates]
    prefixes: PrefixCache | None

    def __init__(self, chunk: int) -> None:
        # Chunks bound the memory of activations; larger ones are faster on a GPU.
        small = self.runner.device.type == "cpu"
        self.chunk = chunk or (192 if small and not self.runner.steps else 2048)
        self.piece = self.chunk // 2 if small else self.chunk  # while others wait
        self.spare = 32 if small else 512  # tokens of padding that take about as long as another pass
        self.began: dict[int, int] = {}  # tokens in each row before an uncommitted pass
        self.steady = Steady()

    @property
    def padded(self) -> bool:
        """True if a pass takes as long as if all its rows were as long as the longest."""
        return self.runner.together and not self.runner.stateful

    @torch.inference_mode()
    def read(self, request: Request, others: Sequence[Request]) -> bool:
        """Prefill one chunk of a long prompt; whether there is another one before the next `verify`."""
        self._adapt([request, *others])
        self._rewind()
        row, held = self.runner.request_ids.index(request.id), self.runner.cached_lengths
        self._renew(row, request)
        last, long = len(request.tokens) - self.runner.least, self._long(1 + len(others))
        if held[row] == 0 and last > LONG:
            self._share(row, request, others)
        if last - held[row] >= long:
            most = self.piece if others else self.chunk
            self._piece(row, request, last, len(request.tokens) + request.remaining, most)
        return last - held[row] >= long

    def _adapt(self, requests: Sequence[Request]) -> None:
        """Take as many threads as the machine has room for: within a text only if that changes no logit.

        Exact passes keep the number that they were found for.
        """
        runner = self.runner
        if runner.device.type == "cpu" and not runner.is_exact and THREADS.pending():
            within = any(request.rounds for request in requests)
            if not within or self.steady.holds(runner, (torch.get_num_threads(), THREADS.wanted)):
                THREADS.apply()

    def _long(self, rows: int) -> int:
        """From this many pending tokens a row of so many has a pass of its own."""
        return max(1, min(LONG, self.spare // rows)) if self.padded else LONG

    def _rewind(self) -> None:
        """Roll back passes that were never committed, because something raised in between."""
        for key, held in self.began.items():
            row = self.runner.request_ids.index(key)
            self.runner.cached_lengths[row] = held
            self.runner.cache.erase(row, held)
        self.began.clear()

    def _forget(self) -> None:
        """Drop all that was read with other weights."""
        if self.runner.has_changed():
            self.began.clear()
            for row in range(len(self.runner.request_ids)):
                self.runner.truncate(row, 0)
            if self.prefixes is not None:
                self.prefixes.tree.clear()

    def _renew(self, row: int, request: Request) -> None:
        """Drop the tokens of a row that the model's own decoding would now read differently."""
        if request.rounds == 0 and self.runner.cached_lengths[row]:  # a conversation continues
            self._forget()
        if self.regimes:
            self.regimes.renew(row, request)
        if self.runner.free and (before := self.runner.prompts.get(request.id, 0)) != request.prompt_length:
            lengths = self.runner.cached_lengths
            lengths[row] = min(lengths[row], before)  # what was written is prompt now
            self.runner.prompts[request.id] = request.prompt_length

    def _read(
        self, row: int, request: Request, others: Sequence[Request], *, alone: bool, slots: int
    ) -> None:
        """Prefill a long prompt; the last chunk is left to the verification pass if no other row waits."""
        held, tokens = self.runner.cached_lengths, request.tokens
        if held[row] == 0:
            self._share(row, request, others)
        last = len(tokens) - (min(self.chunk, len(tokens) - held[row]) if alone else self.runner.least)
        while held[row] < last:
            self._piece(row, request, last, slots, self.chunk)

    def _piece(self, row: int, request: Request, last: int, slots: int, chunk: int) -> None:
        """Prefill the next chunk of a text, and a short rest, at most up to its token `last` (exclusive)."""
        start, length = self.runner.cached_lengths[row], 0
        end = last if last - start <= chunk + chunk // 6 else start + chunk
        if 0 < last - end < self.runner.least:
            end -= 1
        if self.regimes:
            end, length = self.regimes.piece(start, end, request)
        lengths = [length] if length else ()
        given = PassInput(row, [request.tokens[start:end]], 1, slots, rope_lengths=lengths)
        output = self.runner.forward(given)
        for recorded in self.recorded.values():
            recorded.record(request.id, output.hidden_states, 0, slice(end - start), start)

    def _align(self, rows: list[int], batch: Sequence[tuple[Request, Draft]], slots: int) -> list[int]:
        """Prefill until the rest of every text has the same rotary frequencies as its last token.

        Returns the text length whose frequencies each row's rest is read with.
        """
        assert self.regimes is not None
        lengths = [0] * len(batch)
        for row, (request, _) in zip(rows, batch, strict=True):
            n = len(request.tokens)
            while True:
                end, lengths[row] = self.regimes.piece(self.runner.cached_lengths[row], n, request)
                if end == n:
                    break
                self._piece(row, request, end, slots, self.chunk)
        return lengths

    def _share(self, row: int, request: Request, others: Sequence[Request]) -> None:
        """Copy the longest prefix that another row holds, or that was kept of a text that has ended: a prompt
        with several samples is prefilled once."""
        key, tokens, prefixes = request.id, request.tokens, self.prefixes
        best, most = longest(self.runner, self.regimes, row, tokens, others)
        mark = self.regimes.under[key] if self.regimes else 0
        found = prefixes.find(tokens[:-1], mark) if prefixes is not None else []
        if prefixes is not None and length(found) > max(most, LONG):
            prefixes.restore(key, found, len(tokens) + request.remaining)
        elif most > LONG:
            self.runner.share(row, best, most)
            for recorded in self.recorded.values():
                recorded.share(key, self.runner.request_ids[best], self.runner.cached_lengths[row])
        self.info.reused[key] = self.runner.cached_lengths[row]


def longest(
    runner: ModelRunner,
    regimes: Regimes | None,
    row: int,
    tokens: Sequence[int],
    others: Sequence[Request],
) -> tuple[int, int]:
    """The row that holds the longest prefix of a text, and its length; `row` and 0 if none does."""
    best, most = row, 0
    for request in others:
        other = runner.request_ids.index(request.id)
        alike = min(runner.cached_lengths[other], len(tokens) - 1)
        if regimes:
            alike = min(alike, regimes.alike(request.id, runner.request_ids[row]))
        prompts = runner.prompts.get(request.id, 0), runner.prompts.get(runner.request_ids[row], 0)
        if runner.free and prompts[0] != prompts[1]:
            alike = min(alike, *prompts)
        if other != row and alike > most and request.tokens[: most + 1] == tokens[: most + 1]:
            same = next((i for i in range(alike) if request.tokens[i] != tokens[i]), alike)
            if same > most:
                best, most = other, same
    return best, most
