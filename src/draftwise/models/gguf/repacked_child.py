"""Runs passes over repacked weights: python -m draftwise.models.gguf.repacked_child FOLDER.

Prints one line, `{"error": ...}`: the largest difference of any logit to passes without repacked weights, as
part of the largest logit. Where llama.cpp is broken it prints nothing, since the process ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .library import library, load
from .vocabulary import writer_module

WIDTH, INNER, VOCAB, HEADS = 256, 512, 64, 4  # rows of whole blocks for every type
TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0")  # that the package gguf can quantise to
PASSES = (1, 2, 9, 17, 33, 1)  # tokens; the products of one and of several are other functions

Logits = list[np.ndarray[Any, np.dtype[np.float32]]]


def main(folder: str) -> None:
    """Compare, for each type of weights, by models that it writes to `folder`."""
    path, errors = Path(folder) / "model.gguf", []
    for name in TYPES:
        write(path, name)
        plain, repacked = (logits(path, extra=extra) for extra in (False, True))
        errors += [_error(a, b) for a, b in zip(plain, repacked, strict=True)]
    print(json.dumps({"error": max(errors)}))


def write(path: Path, type: str) -> None:
    """A random llama of one layer whose matrices have this type."""
    gguf, rng = writer_module(), np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(2 * sum(PASSES))
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    kind = getattr(gguf.GGMLQuantizationType, type)
    for name, shape in _shapes().items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
        else:
            values = (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()


def _shapes() -> dict[str, tuple[int, ...]]:
    layer = {
        "attn_norm": (WIDTH,),
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH)),
        "ffn_norm": (WIDTH,),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (INNER, WIDTH)),
        "ffn_down": (WIDTH, INNER),
    }
    ends = {"token_embd": (VOCAB, WIDTH), "output_norm": (WIDTH,), "output": (VOCAB, WIDTH)}
    shapes = ends | {f"blk.0.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def logits(path: Path, *, extra: bool) -> Logits:
    """The logits after each of `PASSES`, with or without repacked weights."""
    lib = library()
    model = load(path, use_extra_bufts=extra, n_gpu_layers=0)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 2 * sum(PASSES), 2, 2
    context = lib.llama_init_from_model(model, params)
    rows, token = [], 0
    for count in PASSES:
        tokens = (lib.llama_token * count)(*((7 * (token + k) + 3) % VOCAB for k in range(count)))
        token += count
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, count)):
            raise RuntimeError(f"llama.cpp cannot decode {count} tokens")
        rows.append(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (VOCAB,)).copy())
    lib.llama_free(context)
    lib.llama_model_free(model)
    return rows


def _error(plain: Any, repacked: Any) -> float:
    return float(np.abs(plain - repacked).max() / np.abs(plain).max())


if __name__ == "__main__":
    main(sys.argv[1])
