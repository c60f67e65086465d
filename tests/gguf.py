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
from draftwise.models.gguf.library import library
from draftwise.models.gguf.repacked import works
from tests.tiny import COMMON, VOCAB

llama_cpp: Any = pytest.importorskip(
    "llama_cpp", reason="tests of GGUF models left out: llama-cpp-python is missing (scripts/setup-gguf)"
)

Vector = NDArray[np.float32]
FOLDER = tempfile.TemporaryDirectory(prefix="draftwise-gguf-")
FLOAT32, FLOAT16 = 0, 1  # enum ggml_type


def watch_feeds(part: Any) -> list[int]:
    """Return a list that gets the number of tokens that each pass of a part reads from now on."""
    fed: list[int] = []
    feed = part.rows.feed

    def watched(parts: Any) -> Any:
        fed.append(sum(len(new) for _, new, _ in parts))
        return feed(parts)

    part.rows.feed = watched
    return fed


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
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = works(library())  # as our own targets do
        model = llama_cpp.llama_model_load_from_file(path.encode(), params)
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


@cache
def stateful(kind: str, seed: int = 0) -> str:
    """A random model that keeps a state for each text: `mamba`, or `lfm2`, which has attention layers too."""
    writer_of: Any = pytest.importorskip("gguf", reason="the package gguf is not installed").GGUFWriter
    rng, path = np.random.default_rng(seed), Path(FOLDER.name) / f"{kind}-{seed}.gguf"
    writer = writer_of(str(path), kind)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_vocab_size(VOCAB)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("none")
    tensors = _mamba(writer) if kind == "mamba" else _lfm2(writer)
    tensors["token_embd.weight"] = (VOCAB, WIDTH)
    for name, shape in tensors.items():
        values = rng.standard_normal(shape) * (2.0 / shape[-1] ** 0.5 if len(shape) > 1 else 0.1)
        if name.endswith("norm.weight"):
            values = np.ones(shape)
        elif name.endswith("ssm_a"):
            values = -np.exp(rng.standard_normal(shape))
        writer.add_tensor(name, values.astype(np.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    return str(path)


WIDTH = 32
Shapes = dict[str, tuple[int, ...]]


def _mamba(writer: Any) -> Shapes:
    inner, state, rank = 2 * WIDTH, 8, 4
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    shapes: Shapes = {"output_norm.weight": (WIDTH,)}
    for layer in ("blk.0.", "blk.1."):
        shapes |= {
            layer + "attn_norm.weight": (WIDTH,),
            layer + "ssm_in.weight": (2 * inner, WIDTH),
            layer + "ssm_conv1d.weight": (inner, 4),
            layer + "ssm_conv1d.bias": (inner,),
            layer + "ssm_x.weight": (rank + 2 * state, inner),
            layer + "ssm_dt.weight": (inner, rank),
            layer + "ssm_dt.bias": (inner,),
            layer + "ssm_a": (inner, state),
            layer + "ssm_d": (inner,),
            layer + "ssm_out.weight": (WIDTH, inner),
        }
    return shapes


def _lfm2(writer: Any) -> Shapes:
    heads, size = 4, WIDTH // 4
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0, 2])
    writer.add_shortconv_l_cache(3)
    writer.add_rope_freq_base(10000.0)
    shapes: Shapes = {"token_embd_norm.weight": (WIDTH,)}
    for layer in ("blk.0.", "blk.1."):
        shapes |= {
            layer + "attn_norm.weight": (WIDTH,),
            layer + "ffn_norm.weight": (WIDTH,),
            layer + "ffn_gate.weight": (2 * WIDTH, WIDTH),
            layer + "ffn_up.weight": (2 * WIDTH, WIDTH),
            layer + "ffn_down.weight": (WIDTH, 2 * WIDTH),
        }
    shapes |= {
        "blk.0.shortconv.conv.weight": (WIDTH, 3),
        "blk.0.shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
        "blk.0.shortconv.out_proj.weight": (WIDTH, WIDTH),
        "blk.1.attn_q.weight": (WIDTH, WIDTH),
        "blk.1.attn_k.weight": (2 * size, WIDTH),
        "blk.1.attn_v.weight": (2 * size, WIDTH),
        "blk.1.attn_output.weight": (WIDTH, WIDTH),
        "blk.1.attn_q_norm.weight": (size,),
        "blk.1.attn_k_norm.weight": (size,),
    }
    return shapes
