"""Runs one GGUF model on many texts at once, each a sequence of llama.cpp's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ...errors import UserError
from ..threads import THREADS
from .context import BATCH, NO_ROOM, OUTPUTS, TYPES, Context, settings
from .library import blame
from .model import GgufModel

Part = tuple[int, Sequence[int], int]
"""A text's key, its new tokens, and for how many of the last of them logits are wanted."""

FIRST_CELLS, FIRST_SEQUENCES = 4096, 4  # the memory to begin with, if texts share it; it grows
SMALLEST = 512  # cells: at least a whole pass


class Sequences:
    """Texts of one model, identified by a key.

    `held[key]` is the number of tokens with valid keys and values. The memory grows as the texts need it. If
    `exact`, on a CPU, each has cells of its own, and its logits depend on nothing but its tokens; else all
    share one memory, where texts of one prompt share its cells. `max_length` is the most tokens that a text
    may have: `context`, or what the model was trained for. `rollback` is the number of tokens that can be
    taken back, -1 for any. A model with a state for each text can only be taken back within its latest pass,
    and not before that pass's second token; such texts are read one at a time.

    Raises:
        UserError: an unusable option, or not enough memory.
    """

    def __init__(
        self,
        model: GgufModel,
        *,
        context: int = 0,
        threads: int = 0,
        cache: str = "auto",
        exact: bool = False,
    ) -> None:
        if min(context, threads) < 0:
            raise UserError(f"context={context}&threads={threads}: give 0 or more; 0 is the default")
        if cache not in ("auto", *TYPES):
            raise UserError(f"cache={cache}: choose from auto, {', '.join(TYPES)}")
        self.model, self.api = model, model.api
        self.settings = settings(model, cache, exact=exact)
        self.paired = self.settings.paired and not model.stateful
        self.threads, self.adapts = threads or torch.get_num_threads(), not threads
        self.max_length = context or model.trained
        self.most = int(self.api.llama_max_parallel_sequences())
        self.held: dict[int, int] = {}
        self.began: dict[int, int] = {}  # tokens of each text before its latest pass
        self.asked: dict[int, int] = {}  # tokens that each text may have in the end
        self.number: dict[int, int] = {}
        first = FIRST_SEQUENCES if self.settings.shared else 1
        self.free = list(range(first))[::-1]
        least = min(FIRST_CELLS * first // FIRST_SEQUENCES, self.max_length)
        if self.max_length > model.switches_at > 0:
            least = model.switches_at + 1  # above it from the start: a text's frequencies must not change
        self.context = self._made(_cells(least), first)
        self.rollback = self.context.rollback if model.stateful else -1

    def open(self, key: int) -> None:
        """A sequence for a text, empty.

        Raises:
            UserError: llama.cpp has no more sequences.
        """
        if self.adapts and not self.held:  # another number could change a text
            self._adapt()
        if not self.free:
            now = self.context.sequences
            if now >= self.most:
                raise UserError(f"llama.cpp holds {self.most} texts at once: close one, or lower the batch")
            more = min(2 * now, self.most)
            self._grow(self.context.cells, more)
            self.free = list(range(now, more))[::-1]
        self.number[key] = self.free.pop()
        self.held[key] = self.began[key] = 0

    def _adapt(self) -> None:
        """Take as many threads as the machine has room for."""
        THREADS.adapt()
        if (now := torch.get_num_threads()) != self.threads:
            self.threads = now
            self.api.llama_set_n_threads(self.context.handle, now, now)

    def close(self, key: int) -> None:
        """Free a text's cells."""
        number = self.number.pop(key, None)
        if number is not None:
            self.api.llama_memory_seq_rm(self.context.memory, number, -1, -1)
            self.free = sorted([*self.free, number], reverse=True)  # llama.cpp reads neighbours together
            self.asked.pop(key, None)
            del self.held[key], self.began[key]

    def reserve(self, lengths: Mapping[int, int]) -> None:
        """Make room for the longest of these texts, so that the memory need not grow while it is written.

        With a state, for all of them where they share it: a memory that grows loses states.
        """
        self.asked.update(lengths)
        all_of = self.model.stateful and self.settings.shared
        wanted = self.asked.values() if all_of else lengths.values()
        most = (sum if all_of else max)(min(n, self.max_length) for n in wanted)
        if most > self.context.cells:
            self._grow(_cells(most), self.context.sequences)

    def rewind(self, key: int, length: int) -> None:
        """Forget a text's tokens from `length` on; all of them where the model cannot be taken back."""
        if length < self.held[key]:
            memory, number = self.context.memory, self.number[key]
            whole = length == 0 or (self.model.stateful and length <= self.began[key])
            if whole or not self.api.llama_memory_seq_rm(memory, number, length, -1):
                self.api.llama_memory_seq_rm(memory, number, -1, -1)
                length = 0
            self.held[key] = self.began[key] = length

    def share(self, key: int, other: int, length: int) -> bool:
        """Let a text begin with the first `length` tokens of another; False where the model cannot."""
        if self.model.stateful:
            return False
        self.rewind(key, 0)
        numbers = self.number[other], self.number[key]
        self.api.llama_memory_seq_cp(self.context.memory, *numbers, -1, -1)  # another memory is copied whole
        self.api.llama_memory_seq_rm(self.context.memory, numbers[1], length, -1)
        self.held[key] = length
        return True

    def feed(self, parts: Sequence[Part]) -> Tensor:
        """Append tokens to texts, in one pass where they fit; returns the wanted logits.

        Shape (rows, vocabulary), float32: the rows of the first part, then those of the next.

        Raises:
            RuntimeError: llama.cpp could not read them; the texts are then as they were before the pass.
            UserError: there is not enough memory.
        """
        if self.model.stateful:
            return torch.cat([self._alone(*part) for part in parts])
        tokens = kept = 0
        for _, new, keep in parts:
            tokens, kept = tokens + len(new), kept + keep
        if tokens <= BATCH and kept <= OUTPUTS:
            return self._pass(parts, tokens)
        return torch.cat([self._pass(*group) for group in _groups(parts)])

    def _alone(self, key: int, new: Sequence[int], keep: int) -> Tensor:
        """Read one text; the tokens with logits, the last of which may be taken back, have their own pass."""
        silent = len(new) - keep
        for group in _groups([(key, new[:silent], 0)]):
            self._pass(*group)
        rows = [self._pass(*group) for group in _groups([(key, new[silent:], keep)])]
        return torch.cat(rows) if rows else self.context.rows([])

    def _pass(self, parts: Sequence[Part], tokens: int) -> Tensor:
        if not tokens:
            return self.context.rows([])
        total, wanted, padded = self._laid(parts)
        code = self.context.decode(total)
        if code == NO_ROOM:
            code = self._again(total)
        if code:
            self._undo(parts)
            raise RuntimeError(f"llama.cpp cannot read these tokens (code {code}): {blame()}")
        for key, new, _ in parts:
            self.began[key] = self.held[key]
            self.held[key] += len(new)
        for key in padded:
            self.api.llama_memory_seq_rm(self.context.memory, self.number[key], self.held[key], -1)
        return self.context.rows(wanted)

    def _laid(self, parts: Sequence[Part]) -> tuple[int, list[int], list[int]]:
        """Write a pass into the batch: its tokens, the rows that are wanted of it, the texts to cut after it.

        llama.cpp cuts a pass where one text has more tokens than the next; of paired ones every piece has an
        even number of tokens and of rows of logits.
        """
        context, at, row, padded = self.context, 0, 0, list[int]()
        first_rows: dict[int, int] = {}
        context.outputs[:] = 0
        for key, new, keep in sorted(parts, key=lambda part: self.number[part[0]]):
            held, pad = self.held[key], len(new) % 2 if self.paired else 0
            end = at + len(new) + pad
            context.tokens[at:end] = [*new, 0][: end - at]
            context.places[at:end] = range(held, held + end - at)
            context.numbers[at:end] = self.number[key]
            shown = keep + pad if keep else 0
            shown += shown % 2 if self.paired else 0
            context.outputs[end - shown : end] = 1
            first_rows[key] = row + shown - pad - keep
            at, row = end, row + shown
            padded += [key] * pad
        wanted = [first_rows[key] + i for key, _, keep in parts for i in range(keep)]
        return at, wanted, padded

    def _again(self, tokens: int) -> int:
        """Repeat a pass in a larger memory."""
        before = self.context
        self._grow(2 * before.cells, before.sequences)
        if self.model.stateful:
            return NO_ROOM  # the texts are forgotten
        for name in ("tokens", "places", "numbers", "outputs"):
            getattr(self.context, name)[:tokens] = getattr(before, name)[:tokens]
        return self.context.decode(tokens)

    def _undo(self, parts: Sequence[Part]) -> None:
        """Remove what a failed pass has left in the memory."""
        for key, new, _ in parts:
            held = self.held[key]
            self.held[key] = held + len(new)
            self.rewind(key, 0 if self.model.stateful else held)

    def _grow(self, cells: int, sequences: int) -> None:
        """Move everything to a new memory; if that fails, or texts have states, all are read again.

        Raises:
            UserError: there is not enough memory; everything stays as it was.
        """
        old, state = self.context, self.context.state()
        old.close()
        try:
            self.context = self._made(cells, sequences)
        except UserError:
            self.context = self._made(old.cells, old.sequences)
            self._restore(state)
            raise
        self._restore(state)

    def _restore(self, state: object) -> None:
        lost = self.model.stateful or not self.context.restore(state)  # type: ignore[arg-type]
        if any(self.held.values()) and lost:
            self.held = dict.fromkeys(self.held, 0)
            self.began = dict.fromkeys(self.held, 0)

    def _made(self, cells: int, sequences: int) -> Context:
        return Context(self.model, cells, sequences, threads=self.threads, settings=self.settings)


def _cells(length: int) -> int:
    """The size of a memory that holds a text: a power of two."""
    return max(SMALLEST, 1 << (length - 1).bit_length())


def _groups(parts: Sequence[Part]) -> Iterator[tuple[list[Part], int]]:
    """The same tokens in passes that llama.cpp reads at once: (parts, tokens)."""
    group: list[Part] = []
    tokens = kept = 0
    for key, new, keep in parts:
        at, silent = 0, len(new) - keep
        while at < len(new):
            n = min(BATCH - tokens, len(new) - at)
            rows = max(0, at + n - max(at, silent))
            n, rows = n - max(0, rows - (OUTPUTS - kept)), min(rows, OUTPUTS - kept)
            if n:
                group.append((key, new[at : at + n], rows))
                at, tokens, kept = at + n, tokens + n, kept + rows
            if at < len(new):
                yield group, tokens
                group, tokens, kept = [], 0, 0
    if group:
        yield group, tokens
