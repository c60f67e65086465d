"""Runs one GGUF model on many texts at once, each a sequence of llama.cpp's memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from ..threads import THREADS
from .library import listening, reason
from .model import GgufModel

LOG = getLogger(__name__)
PAIRED = (
    "this llama.cpp computes one token otherwise than several, so that passes read an even number of them; "
    "one built with GGML_LLAMAFILE=OFF does not, and exact=false does without (docs/how-to/gguf.md)"
)
BATCH = 512  # most tokens of a pass
OUTPUTS = 256  # most rows of logits of a pass: llama.cpp reserves memory for them
ROLLBACK = 16  # states kept of each text, for models that llama.cpp can take back that way
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # enum ggml_type
PROBE = (76, 4)  # tokens, over more of which than 64 sums are split, and those read together and alone
NO_ROOM = 1  # what llama_decode returns where no cell is free


@dataclass(frozen=True)
class Settings:
    """How a context computes.

    `kinds` are the types of keys and of values. Without `flash`, attention is made of plain products. Texts
    share the cells of one memory if `shared`, else each has its own. `paired` passes read an even number of
    tokens of each text, where llama.cpp sums up a single one in another order than several.
    """

    kinds: tuple[str, str]
    flash: bool
    shared: bool
    paired: bool


def choose_settings(model: GgufModel, cache: str, *, exact: bool) -> Settings:
    """Those for keys and values of one type, or for the best ones (`auto`).

    Exact: logits depend on nothing but the text. llama.cpp sums up attention in the order of cells, so a text
    needs its own. Flash attention splits the cells of a single token among threads and reads 64 tokens in
    tiles, if keys and values have the same type, float32 or float16; and products of float weights, like
    those of attention without flash, sum up a single row in another order than several.
    """
    kind = model.cache if cache == "auto" else cache
    if not exact or model.on_gpu:
        return Settings((kind, kind), flash=kind != "f32", shared=True, paired=False)
    if cache == "auto" and not model.floating:
        return Settings(("f16", "bf16"), flash=True, shared=False, paired=False)
    plain = kind in ("f32", "f16")
    return Settings((kind, kind), flash=not plain, shared=False, paired=plain or model.floating)


class Context:
    """A llama_context for at most `sequences` texts: `cells` tokens of each, or of all if they share them.

    `tokens`, `places`, `numbers` and `outputs` are the batch that `decode` reads: of each token its id, its
    position, its sequence and whether its logits are wanted.

    Raises:
        UserError: there is not enough memory, or the model is not causal.
    """

    def __init__(
        self, model: GgufModel, cells: int, sequences: int, *, threads: int, settings: Settings
    ) -> None:
        self.api, self.model, self.cells, self.sequences = model.api, model, cells, sequences
        self.room, self.most = BATCH + sequences, OUTPUTS + 2 * sequences  # tokens and rows of a pass, padded
        options = self.api.llama_context_default_params()
        options.n_ctx = cells * (1 if settings.shared else sequences)
        options.n_batch = options.n_ubatch = self.room
        options.n_seq_max, options.n_outputs_max = sequences, self.most
        options.n_threads = options.n_threads_batch = threads
        options.type_k, options.type_v = (TYPES[kind] for kind in settings.kinds)
        if not settings.flash:
            options.flash_attn_type = self.api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.kv_unified, options.no_perf = settings.shared, True
        options.n_rs_seq = ROLLBACK if model.stateful else 0
        with listening() as errors:
            self.handle = self.api.llama_init_from_model(model.handle, options)
        if not self.handle:
            raise UserError(
                f"llama.cpp has no memory for {options.n_ctx} tokens of {model.name_or_path} "
                f"({reason(errors)}): give a smaller context, such as ?context=2048"
            )
        self._free = weakref.finalize(self, _freed, self.handle, model)
        self.memory = self.api.llama_get_memory(self.handle)
        if not self.memory:
            raise UserError(
                f"{model.name_or_path} reads whole texts only, as models that embed them do: name a causal "
                "language model"
            )
        self.rollback = int(self.api.llama_n_rs_seq(self.handle)) if model.stateful else 0
        self.address, self.logits = 0, np.empty((0, model.vocab_size), np.float32)
        self._arrange()

    def _arrange(self) -> None:
        """Arrays of our own behind the pointers of a llama_batch, so that NumPy writes it."""
        self.tokens, self.places, self.numbers, counts = (np.ones(self.room, np.int32) for _ in range(4))
        self.outputs = np.zeros(self.room, np.int8)
        lists = self.numbers.ctypes.data + 4 * np.arange(self.room, dtype=np.uint64)
        self._pinned = counts, lists
        self.batch = self.api.llama_batch()
        for name, array in (
            ("token", self.tokens),
            ("pos", self.places),
            ("n_seq_id", counts),
            ("seq_id", lists),
            ("logits", self.outputs),
        ):
            kind = dict(self.batch._fields_)[name]
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, kind))

    def decode(self, n: int) -> int:
        """Read the first `n` tokens of the batch; returns llama.cpp's code, 0 for success."""
        self.batch.n_tokens = n
        return int(self.api.llama_decode(self.handle, self.batch))

    def rows(self, wanted: Sequence[int]) -> Tensor:
        """These rows of logits of the latest pass, shape (rows, vocabulary), copied."""
        if not wanted:
            return torch.empty((0, self.model.vocab_size))
        address = ctypes.addressof(self.api.llama_get_logits(self.handle).contents)
        if address != self.address:
            floats = ctypes.c_float * (self.model.vocab_size * self.most)
            whole = np.frombuffer(memoryview(floats.from_address(address)), np.float32)
            self.address, self.logits = address, whole.reshape(-1, self.model.vocab_size)
        return torch.from_numpy(self.logits[np.asarray(wanted)])

    def state(self) -> NDArray[np.uint8]:
        buffer = np.empty(self.api.llama_state_get_size(self.handle), np.uint8)
        size = self.api.llama_state_get_data(self.handle, _bytes(buffer), buffer.size)
        return buffer[:size]

    def restore(self, state: NDArray[np.uint8]) -> bool:
        """Take over what another context of the same model held; False if that failed."""
        return bool(self.api.llama_state_set_data(self.handle, _bytes(state), state.size))

    def close(self) -> None:
        self._free()


def _freed(handle: Any, model: GgufModel) -> None:
    """Free a context; its model, an argument of the finalizer, lives until then."""
    model.api.llama_free(handle)


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


Part = tuple[int, Sequence[int], int]
"""A text's key, its new tokens, and for how many of the last of them logits are wanted."""

FIRST_CELLS, FIRST_SEQUENCES = 4096, 4  # the memory to begin with, if texts share it; it grows
SMALLEST = 512  # cells: at least a whole pass


class Sequences:
    """Texts of one model, identified by a key.

    `cached_lengths[key]` is the number of tokens with valid keys and values. The memory grows as the texts
    need it. If `exact`, on a CPU, each has cells of its own, and its logits depend on nothing but its tokens;
    else all share one memory, where texts of one prompt share its cells. `max_length` is the most tokens that
    a text may have: `context`, or what the model was trained for. `rollback` is the number of tokens that can
    be taken back, -1 for any. A model with a state for each text can only be taken back within its latest
    pass, and not before that pass's second token; such texts are read one at a time.

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
        if cache not in ("auto", *TYPES):
            raise UserError(f"cache={cache}: choose from auto, {', '.join(TYPES)}")
        self.model, self.api = model, model.api
        self.settings = choose_settings(model, cache, exact=exact)
        self.paired = False
        self.threads, self.adapts = threads or torch.get_num_threads(), not threads
        self.max_length = context or model.trained
        self.most = int(self.api.llama_max_parallel_sequences())
        self.cached_lengths: dict[int, int] = {}
        self.pass_starts: dict[int, int] = {}  # tokens of each text before its latest pass
        self.reserved: dict[int, int] = {}  # tokens that each text may have in the end
        self.number: dict[int, int] = {}
        first = FIRST_SEQUENCES if self.settings.shared else 1
        self.free = list(range(first))[::-1]
        least = min(FIRST_CELLS * first // FIRST_SEQUENCES, self.max_length)
        if self.max_length > model.switches_at > 0:
            least = model.switches_at + 1  # above it from the start: a text's frequencies must not change
        self.context = self._new_context(_cells(least), first)
        self.rollback = self.context.rollback if model.stateful else -1
        if self.settings.paired and not model.stateful and self._rows_differ():
            self.paired = True
            LOG.info("%s: %s", model.name_or_path, PAIRED)

    def _rows_differ(self) -> bool:
        """Return whether tokens that are read one at a time have other logits than those of one pass.

        So it is where llama.cpp was built with its own matrix products (`GGML_LLAMAFILE`, on by default),
        which take over from two rows on.
        """
        (before, some), key = PROBE, 0
        probe = np.linspace(1, self.model.vocab_size - 1, before + some, dtype=int).tolist()
        self.open(key)
        try:
            together = self.feed([(key, probe, some)])
            self.rewind(key, before)
            alone = torch.cat([self.feed([(key, [token], 1)]) for token in probe[before:]])
        finally:
            self.close(key)
        return not torch.equal(together, alone)

    def open(self, key: int) -> None:
        """A sequence for a text, empty.

        Raises:
            UserError: llama.cpp has no more sequences.
        """
        if self.adapts and not self.cached_lengths:  # another number could change a text
            self._adapt()
        if self.is_full:
            raise UserError(f"llama.cpp holds {self.most} texts at once: close one, or lower the batch")
        if not self.free:
            now = self.context.sequences
            more = min(2 * now, self.most)
            self._grow(self.context.cells, more)
            self.free = list(range(now, more))[::-1]
        self.number[key] = self.free.pop()
        self.cached_lengths[key] = self.pass_starts[key] = 0

    @property
    def is_full(self) -> bool:
        """Whether llama.cpp has no sequence for another text."""
        return not self.free and self.context.sequences >= self.most

    def _adapt(self) -> None:
        THREADS.adapt()
        if (now := torch.get_num_threads()) != self.threads:
            self.threads = now
            self.api.llama_set_n_threads(self.context.handle, now, now)

    def close(self, key: int) -> None:
        number = self.number.pop(key, None)
        if number is not None:
            if self._context is not None:
                self.api.llama_memory_seq_rm(self._context.memory, number, -1, -1)
            self.free = sorted([*self.free, number], reverse=True)  # llama.cpp reads neighbours together
            self.reserved.pop(key, None)
            del self.cached_lengths[key], self.pass_starts[key]

    def reserve(self, lengths: Mapping[int, int]) -> None:
        """Make room for the longest of these texts, so that the memory need not grow while it is written.

        With a state, for all of them where they share it: a memory that grows loses states.
        """
        self.reserved.update(lengths)
        all_of = self.model.stateful and self.settings.shared
        lengths_asked = self.reserved.values() if all_of else lengths.values()
        most = (sum if all_of else max)(min(n, self.max_length) for n in lengths_asked)
        if most > self.context.cells:
            self._grow(_cells(most), self.context.sequences)

    def rewind(self, key: int, length: int) -> None:
        """Forget a text's tokens from `length` on; all of them where the model cannot be taken back."""
        if length < self.cached_lengths[key]:
            memory, number = self.context.memory, self.number[key]
            whole = length == 0 or (self.model.stateful and length <= self.pass_starts[key])
            if whole or not self.api.llama_memory_seq_rm(memory, number, length, -1):
                self.api.llama_memory_seq_rm(memory, number, -1, -1)
                length = 0
            self.cached_lengths[key] = self.pass_starts[key] = length

    def share(self, key: int, other: int, length: int) -> bool:
        """Let a text begin with the first `length` tokens of another; False where the model cannot."""
        if self.model.stateful:
            return False
        self.rewind(key, 0)
        numbers = self.number[other], self.number[key]
        self.api.llama_memory_seq_cp(self.context.memory, *numbers, -1, -1)  # another memory is copied whole
        self.api.llama_memory_seq_rm(self.context.memory, numbers[1], length, -1)
        self.cached_lengths[key] = length
        return True

    def feed(self, parts: Sequence[Part]) -> Tensor:
        """Append tokens to texts, in one pass where they fit; returns the wanted logits.

        Shape (rows, vocabulary), float32: the rows of the first part, then those of the next.

        Raises:
            RuntimeError: llama.cpp could not read them; the texts are then as they were before the pass.
            UserError: there is not enough memory.
        """
        if self.model.stateful:
            return torch.cat([self._read_alone(*part) for part in parts])
        tokens = rows = 0
        for _, new, keep in parts:
            tokens, rows = tokens + len(new), rows + keep
        if tokens <= BATCH and rows <= OUTPUTS:
            return self._pass(parts, tokens)
        return torch.cat([self._pass(*group) for group in _groups(parts)])

    def _read_alone(self, key: int, new: Sequence[int], keep: int) -> Tensor:
        """Read one text; the tokens with logits, the last of which may be taken back, have their own pass."""
        silent = len(new) - keep
        for group in _groups([(key, new[:silent], 0)]):
            self._pass(*group)
        rows = [self._pass(*group) for group in _groups([(key, new[silent:], keep)])]
        return torch.cat(rows) if rows else self.context.rows([])

    def _pass(self, parts: Sequence[Part], tokens: int) -> Tensor:
        if not tokens:
            return self.context.rows([])
        total, wanted, padded = self._write_batch(parts)
        code = self.context.decode(total)
        if code == NO_ROOM:
            code = self._repeat(total)
        if code:
            self._undo(parts)
            raise RuntimeError(f"llama.cpp cannot read these tokens (code {code}): {reason()}")
        for key, new, _ in parts:
            self.pass_starts[key] = self.cached_lengths[key]
            self.cached_lengths[key] += len(new)
        for key in padded:
            self.api.llama_memory_seq_rm(self.context.memory, self.number[key], self.cached_lengths[key], -1)
        return self.context.rows(wanted)

    def _write_batch(self, parts: Sequence[Part]) -> tuple[int, list[int], list[int]]:
        """Write a pass into the batch: its tokens, the rows that are wanted of it, the texts to cut after it.

        llama.cpp cuts a pass where one text has more tokens than the next; of paired ones every piece has an
        even number of tokens and of rows of logits.
        """
        context, at, row, padded = self.context, 0, 0, list[int]()
        first_rows: dict[int, int] = {}
        context.outputs[:] = 0
        for key, new, keep in sorted(parts, key=lambda part: self.number[part[0]]):
            start, pad = self.cached_lengths[key], len(new) % 2 if self.paired else 0
            end = at + len(new) + pad
            context.tokens[at:end] = [*new, 0][: end - at]
            context.places[at:end] = range(start, start + end - at)
            context.numbers[at:end] = self.number[key]
            shown = keep + pad if keep else 0
            shown += shown % 2 if self.paired else 0
            context.outputs[end - shown : end] = 1
            first_rows[key] = row + shown - pad - keep
            at, row = end, row + shown
            padded += [key] * pad
        wanted = [first_rows[key] + i for key, _, keep in parts for i in range(keep)]
        return at, wanted, padded

    def _repeat(self, tokens: int) -> int:
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
            length = self.cached_lengths[key]
            self.cached_lengths[key] = length + len(new)
            self.rewind(key, 0 if self.model.stateful else length)

    def _grow(self, cells: int, sequences: int) -> None:
        """Move everything to a new memory; if that fails, or texts have states, all are read again.

        Raises:
            UserError: there is not enough memory; everything stays as it was, or is read again if there is
                none for the old size any more.
        """
        old, state = self.context, self.context.state()
        old.close()
        self._context, self._size = None, (old.cells, old.sequences)
        try:
            self._context = self._new_context(cells, sequences)
        except UserError:
            self._restore(state)
            raise
        self._restore(state)

    @property
    def context(self) -> Context:
        """The memory of llama.cpp; one for which there was no room is asked for again."""
        if self._context is None:
            self._context = self._new_context(*self._size)
        return self._context

    @context.setter
    def context(self, context: Context) -> None:
        self._context = context

    def _restore(self, state: NDArray[np.uint8]) -> None:
        lengths, self.cached_lengths = self.cached_lengths, dict.fromkeys(self.cached_lengths, 0)
        starts, self.pass_starts = self.pass_starts, dict.fromkeys(self.cached_lengths, 0)
        if self.context.restore(state) and not self.model.stateful:
            self.cached_lengths, self.pass_starts = lengths, starts

    def _new_context(self, cells: int, sequences: int) -> Context:
        return Context(self.model, cells, sequences, threads=self.threads, settings=self.settings)


def _cells(length: int) -> int:
    return max(SMALLEST, 1 << (length - 1).bit_length())


def _groups(parts: Sequence[Part]) -> Iterator[tuple[list[Part], int]]:
    """The same tokens in passes that llama.cpp reads at once: (parts, tokens)."""
    group: list[Part] = []
    tokens = logits = 0
    for key, new, keep in parts:
        at, silent = 0, len(new) - keep
        while at < len(new):
            n = min(BATCH - tokens, len(new) - at)
            rows = max(0, at + n - max(at, silent))
            n, rows = n - max(0, rows - (OUTPUTS - logits)), min(rows, OUTPUTS - logits)
            if n:
                group.append((key, new[at : at + n], rows))
                at, tokens, logits = at + n, tokens + n, logits + rows
            if at < len(new):
                yield group, tokens
                group, tokens, logits = [], 0, 0
    if group:
        yield group, tokens
