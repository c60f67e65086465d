"""One llama_context: memory for the tokens of several texts, and the passes over them."""

from __future__ import annotations

import ctypes
import weakref
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
KINDS = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # enum ggml_type
NO_ROOM = 1  # what llama_decode returns where no cell is free


class Context:
    """A llama_context for `cells` tokens of at most `sequences` texts, which share the cells.

    `tokens`, `places`, `numbers` and `outputs` are the batch that `decode` reads: of each token its id, its
    position, its sequence and whether its logits are wanted.

    Raises:
        UserError: there is not enough memory.
    """

    def __init__(self, model: GgufModel, cells: int, sequences: int, *, threads: int, cache: str) -> None:
        self.api, self.model, self.cells, self.sequences = model.api, model, cells, sequences
        options = self.api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = cells, BATCH, BATCH
        options.n_seq_max, options.n_outputs_max = sequences, max(OUTPUTS, sequences)
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KINDS[cache]
        if cache == "f32":  # flash attention would round it to float16
            options.flash_attn_type = self.api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.kv_unified, options.no_perf = True, True
        options.n_rs_seq = ROLLBACK if model.stateful else 0
        with complaints() as said:
            self.handle = self.api.llama_init_from_model(model.handle, options)
        if not self.handle:
            raise UserError(
                f"llama.cpp has no memory for {cells} tokens of {model.name_or_path} ({reason(said)}): "
                "give a smaller context, such as ?context=2048"
            )
        self._free = weakref.finalize(self, _freed, self.handle, model)
        self.memory = self.api.llama_get_memory(self.handle)
        self.rollback = int(self.api.llama_n_rs_seq(self.handle)) if model.stateful else 0
        self.address, self.logits = 0, np.empty((0, model.vocab_size), np.float32)
        self._arrange()

    def _arrange(self) -> None:
        """Arrays of our own behind the pointers of a llama_batch, so that NumPy writes it."""
        self.tokens, self.places, self.numbers, counts = (np.ones(BATCH, np.int32) for _ in range(4))
        self.outputs = np.zeros(BATCH, np.int8)
        lists = self.numbers.ctypes.data + 4 * np.arange(BATCH, dtype=np.uint64)
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

    def rows(self, n: int) -> Tensor:
        """The first `n` rows of logits of the latest pass, shape (n, vocabulary), copied."""
        if n == 0:
            return torch.empty((0, self.model.vocab_size))
        address = ctypes.addressof(self.api.llama_get_logits(self.handle).contents)
        if address != self.address:
            floats = ctypes.c_float * (self.model.vocab_size * max(OUTPUTS, self.sequences))
            whole = np.frombuffer(memoryview(floats.from_address(address)), np.float32)
            self.address, self.logits = address, whole.reshape(-1, self.model.vocab_size)
        return torch.from_numpy(self.logits[:n].copy())

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
