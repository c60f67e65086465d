"""One llama_context: memory for the tokens of several texts, and the passes over them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from .library import complaints, reason
from .model import GgufModel

BATCH = 512  # most tokens of a pass
OUTPUTS = 256  # most rows of logits of a pass: llama.cpp reserves memory for them
ROLLBACK = 16  # states kept of each text, for models that llama.cpp can take back that way
TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # enum ggml_type
NO_ROOM = 1  # what llama_decode returns where no cell is free


@dataclass(frozen=True)
class Settings:
    """How a context computes.

    `kinds` are the types of keys and of values. Without `flash`, attention is made of plain products. Texts
    share the cells of one memory if `shared`, else each has its own. `paired` passes read an even number of
    tokens of each text.
    """

    kinds: tuple[str, str]
    flash: bool
    shared: bool
    paired: bool


def settings(model: GgufModel, cache: str, *, exact: bool) -> Settings:
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
        UserError: there is not enough memory.
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
        with complaints() as said:
            self.handle = self.api.llama_init_from_model(model.handle, options)
        if not self.handle:
            raise UserError(
                f"llama.cpp has no memory for {options.n_ctx} tokens of {model.name_or_path} "
                f"({reason(said)}): give a smaller context, such as ?context=2048"
            )
        self._free = weakref.finalize(self, _freed, self.handle, model)
        self.memory = self.api.llama_get_memory(self.handle)
        self.rollback = int(self.api.llama_n_rs_seq(self.handle)) if model.stateful else 0
        self.address, self.logits = 0, np.empty((0, model.vocab_size), np.float32)
        self._arrange()

    def _arrange(self) -> None:
        """Arrays of our own behind the pointers of a llama_batch, so that NumPy writes it."""
        self.tokens, self.places, self.numbers, counts = (np.ones(self.room, np.int32) for _ in range(4))
        self.outputs = np.zeros(self.room, np.int8)
        lists = self.numbers.ctypes.data + 4 * np.arange(self.room, dtype=np.uint64)
        self._kept = counts, lists
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
        """Everything in the memory."""
        held = np.empty(self.api.llama_state_get_size(self.handle), np.uint8)
        size = self.api.llama_state_get_data(self.handle, _bytes(held), held.size)
        return held[:size]

    def restore(self, state: NDArray[np.uint8]) -> bool:
        """Take over what another context of the same model held; False if that failed."""
        return bool(self.api.llama_state_set_data(self.handle, _bytes(state), state.size))

    def close(self) -> None:
        """Free the memory."""
        self._free()


def _freed(handle: Any, model: GgufModel) -> None:
    """Free a context; its model, an argument of the finalizer, lives until then."""
    model.api.llama_free(handle)


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
