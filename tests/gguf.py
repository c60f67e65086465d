"""Small random models as GGUF files, and llama.cpp's own decoding of them, by its plain interface."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise.models.gguf.export import write_gguf
from tests.tiny import COMMON, VOCAB

llama_cpp: Any = pytest.importorskip(
    "llama_cpp", reason="tests of GGUF models left out: llama-cpp-python is missing (scripts/setup-gguf)"
)

Vector = NDArray[np.float32]
FOLDER = tempfile.TemporaryDirectory(prefix="draftwise-gguf-")
FLOAT32, FLOAT16 = 0, 1  # enum ggml_type


@cache
def tiny(seed: int = 0, scale: float = 8.0, vocab: int = VOCAB, head: float = 1.0) -> str:
    """A random llama of `vocab` tokens as a file; `head` sharpens its distributions."""
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(LlamaConfig(**COMMON | {"vocab_size": vocab, "max_position_embeddings": 2048}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
        made.lm_head.weight.mul_(head)
    path = Path(FOLDER.name) / f"tiny-{seed}-{scale}-{vocab}-{head}.gguf"
    write_gguf(made, path)
    return str(path)


@cache
def bundled(name: str) -> str:
    """A bundled model as a file."""
    from draftwise.models.load import load_model

    path = Path(FOLDER.name) / f"{name.removeprefix('zoo:')}.gguf"
    write_gguf(load_model(name), path)
    return str(path)


class Plain:
    """One text at a time through `llama_decode` on `llama_batch_get_one`, one token a pass."""

    def __init__(self, path: str, *, cache: int = FLOAT32, context: int = 2048) -> None:
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = context, 1, 1
        options.type_k = options.type_v = cache
        if cache == FLOAT32:
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model, self.context = model, llama_cpp.llama_init_from_model(model, options)
        self.size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def read(self, tokens: Sequence[int]) -> Vector:
        """The logits after these tokens, which follow those before."""
        for start in range(0, len(tokens), 2048):
            piece = tokens[start : start + 2048]
            ids = (ctypes.c_int32 * len(piece))(*piece)
            assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(piece))) == 0
        row = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.size,)).copy()

    def after(self, text: Sequence[int]) -> Vector:
        """The logits after a whole text."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        return self.read(text)

    def write(self, prompt: Sequence[int], n: int, *, ends: Sequence[int] = ()) -> list[int]:
        """The greedy text after a prompt."""
        row, text = self.after(prompt), list[int]()
        while len(text) < n:
            text.append(int(row.argmax()))
            if text[-1] in ends:
                break
            row = self.read(text[-1:])
        return text
