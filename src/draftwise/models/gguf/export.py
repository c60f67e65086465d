"""Converts a Transformers model to a GGUF file: weights, tokenizer, special tokens and chat template."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...errors import UserError
from ...inputs import expanded
from ...writing import replacing
from ..load import load_model, load_tokenizer, locate
from . import vocabulary
from .library import library, listening, reason
from .model import GgufTokenizer
from .vocabulary import Tell, Vocabulary, writer_module

FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}
QUANTIZED = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_k": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
TYPES = (*FILE_TYPES, *QUANTIZED)
BLOCKS = {"q8_0": 32, "q4_k": 256}  # how many numbers of a row share a block
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
COUNTED = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")  # how llama.cpp counts tensors


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's.

    `adjacent`: the two numbers that a rotary embedding turns together lie side by side, not half a head
    apart. `scalings`: the rotary scalings that it computes as Transformers does.
    """

    name: str
    adjacent: bool
    scalings: tuple[str, ...]


LLAMA = Architecture("llama", True, ("default", "linear", "llama3", "yarn"))
ARCHITECTURES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": Architecture("qwen2", False, ("default", "linear", "yarn")),
    "qwen3": Architecture("qwen3", False, ("default", "linear", "yarn")),
}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the pre-tokenizer found, the tensors by type, and what to know about the file.

    `compared` is the number of texts for which llama.cpp gives Transformers' ids. `fallbacks` are the tensors
    whose rows are not whole blocks (of `block` numbers) of the type that was asked for, by the type that they
    have instead. `notes` are differences to Transformers.
    """

    path: Path
    type: str
    architecture: str
    bytes: int
    seconds: float
    pre: str
    compared: int
    tensors: dict[str, int]
    fallbacks: dict[str, int]
    block: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "notes": list(self.notes)}


def export_gguf(
    model: str,
    path: str | Path,
    *,
    type: str = "f16",
    trust_remote_code: bool = False,
    tell: Tell = silent,
) -> Exported:
    """Convert a model (`zoo:NAME`, a folder or a Hugging Face id) to a GGUF file, in place of an older one.

    `type` is that of the matrices: f32, f16, bf16, q8_0 or q4_k (llama.cpp's Q4_K_M). The file's tokenizer is
    compared with Transformers' on some thousand texts.

    Raises:
        UserError: an unknown type, a model or tokenizer that llama.cpp does not have, or a path that cannot
            be written.
    """
    start, out = perf_counter(), _check_path(path)
    if type not in TYPES:
        raise UserError(f"unknown type {type!r}: choose from {', '.join(TYPES)}")
    writer_module()
    tokenizer: Any = load_tokenizer(model, trust_remote_code=trust_remote_code)
    tell("loading", 0, 1)
    dtype = _stored_dtype(model)
    loaded = load_model(model, dtype=dtype, device="cpu", trust_remote_code=trust_remote_code)
    architecture = find_architecture(loaded.config)
    words = vocabulary.read_vocabulary(tokenizer, loaded.config.vocab_size)
    pre, compared = vocabulary.find_pre_tokenizer(words, tokenizer, tell=tell)
    name = Path(model.rpartition(":")[2]).name
    try:
        with replacing(out) as part:
            base = type if type in FILE_TYPES else DTYPES.get(loaded.dtype, "f32")
            write_gguf(loaded, part, type=base, words=(words, pre), name=name, tell=tell)
            if type in QUANTIZED:
                quantize(part, type, tell=tell)
            notes = (*words.notes, *_compare_ends(loaded, tokenizer, GgufTokenizer.from_file(part)))
            types, fallbacks = _count_tensors(part, type)
    except OSError as error:
        raise UserError(
            f"cannot write {str(out)!r}: {error.strerror or error}; choose another file"
        ) from error
    return Exported(
        *(out, type, architecture.name, out.stat().st_size, perf_counter() - start, pre, compared),
        *(types, fallbacks, BLOCKS.get(type, 1), notes),
    )


def write_gguf(
    model: Any,
    path: Path,
    *,
    type: str = "f32",
    words: tuple[Vocabulary, str] | None = None,
    name: str = "",
    tell: Tell = silent,
) -> None:
    """Write a loaded model with a vocabulary and its pre-tokenizer, or without any: ids in, ids out.

    Raises:
        UserError: another type of model, or weights that do not fit the type.
    """
    gguf = writer_module()
    writer = gguf.GGUFWriter(path, find_architecture(model.config).name)
    writer.add_name(name or "model")
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[type]])
    _describe(writer, model.config)
    if words is None:
        writer.add_tokenizer_model("none")
    else:
        vocabulary.write_tokenizer(writer, *words)
    weights = list(_list_weights(model))
    for tensor, values in weights:
        wide = values.ndim == 1 or type == "f32"
        quant = gguf.GGMLQuantizationType["F32" if wide else type.upper()]
        size = values.numel() * (4 if wide else 2)
        writer.add_tensor_info(tensor, values.shape, np.dtype(np.float32), size, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    try:
        for done, (tensor, values) in enumerate(weights):
            tell("writing", done, len(weights))
            writer.write_tensor_data(_convert(values, "f32" if values.ndim == 1 else type, tensor))
    finally:
        writer.close()


def quantize(path: Path, type: str, *, tell: Tell) -> None:
    """Replace a file by one with its matrices in a smaller type, by llama.cpp's own function."""
    lib = library()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, QUANTIZED[type])

    def show(line: str) -> None:
        if at := COUNTED.match(line):
            tell("quantising", int(at[1]), int(at[2]))

    with replacing(path) as out, listening(show) as errors:
        if lib.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)):
            raise UserError(f"llama.cpp cannot quantise this model to {type} ({reason(errors)})")


def find_architecture(config: Any) -> Architecture:
    """Return the architecture for a model's configuration.

    Raises:
        UserError: another type of model, or a setting that llama.cpp does not have.
    """
    architecture = ARCHITECTURES.get(config.model_type)
    odd = [] if architecture is None else list(_list_odd_settings(config, architecture))
    if architecture is None or odd:
        settings = ", ".join([f"model_type={config.model_type}", *odd])
        only = ", ".join(ARCHITECTURES)
        raise UserError(f"no conversion to GGUF for {settings}: only {only} models are converted")
    return architecture


def _list_odd_settings(config: Any, architecture: Architecture) -> Iterator[str]:
    """The settings under which llama.cpp would compute something else."""
    rope, size = dict(config.rope_parameters), _head_size(config)
    if rope.get("rope_type", "default") not in architecture.scalings:
        yield f"rope_type={rope['rope_type']}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor={rope['partial_rotary_factor']}"
    if config.hidden_act != "silu":
        yield f"hidden_act={config.hidden_act}"
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    slides = "sliding_attention" in kinds if kinds else window is not None
    if slides and window is not None and window < config.max_position_embeddings:
        yield f"sliding_window={window}"
    if kinds - {"full_attention", "sliding_attention"}:
        yield f"layer_types={', '.join(sorted(kinds))}"
    if architecture.name == "qwen2" and size * config.num_attention_heads != config.hidden_size:
        yield f"head_dim={size}"
    if architecture.name == "qwen3" and config.attention_bias:
        yield "attention_bias"
    if getattr(config, "quantization_config", None) is not None:
        yield "quantization_config"


def _describe(writer: Any, config: Any) -> None:
    """Give a `GGUFWriter` the sizes and settings of a model."""
    rope, size = dict(config.rope_parameters), _head_size(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(float(config.rms_norm_eps))
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if (scaling := rope.get("rope_type")) in ("linear", "yarn"):
        writer.add_rope_scaling_type(writer_module().RopeScalingType[scaling.upper()])
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if scaling == "yarn":
        trained = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(int(trained))


def _list_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight under llama.cpp's name, with its rows in llama.cpp's order."""
    gguf, config, architecture = writer_module(), model.config, find_architecture(model.config)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    if dict(config.rope_parameters).get("rope_type") == "llama3":
        yield "rope_freqs.weight", _rotary_factors(model)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for key, values in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UserError(f"no conversion to GGUF for the weight {key}")
        part, values = name.split(".")[-2], values.detach().cpu()
        if architecture.adjacent and part in heads:  # pairs are adjacent, not half a head apart
            pairs = values.reshape(heads[part], 2, values.shape[0] // heads[part] // 2, -1)
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        yield name, values


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rotary_factors(model: Any) -> torch.Tensor:
    """By how much each frequency of the rotary embedding is lower than without scaling, shape (size / 2,)."""
    scaled = model.model.rotary_emb.inv_freq.float().cpu()
    steps = torch.arange(0, 2 * len(scaled), 2, dtype=torch.float32) / (2 * len(scaled))
    plain = 1.0 / dict(model.config.rope_parameters)["rope_theta"] ** steps
    return torch.as_tensor(plain / scaled)


def _convert(values: torch.Tensor, type: str, name: str) -> Any:
    """A tensor's numbers in a type of GGUF; those of bf16 are bytes."""
    gguf, full = writer_module(), np.ascontiguousarray(values.float().numpy())
    if type == "f32":
        return full
    with np.errstate(over="ignore"):
        converted = gguf.quants.quantize(full, gguf.GGMLQuantizationType[type.upper()])
    if type == "f16" and not np.isfinite(converted).all():
        raise UserError(f"the weights of {name} are too large for f16: choose bf16 or f32")
    return converted


def _count_tensors(path: Path, type: str) -> tuple[dict[str, int], dict[str, int]]:
    """How many tensors have each type, and how many of them since their rows are not whole blocks."""
    types: Counter[str] = Counter()
    fallbacks: Counter[str] = Counter()
    for tensor in writer_module().GGUFReader(path).tensors:
        name = tensor.tensor_type.name
        types[name] += 1
        if len(tensor.shape) > 1 and int(tensor.shape[0]) % BLOCKS.get(type, 1):
            fallbacks[name] += 1
    return dict(types.most_common()), dict(fallbacks)


def _stored_dtype(model: str) -> torch.dtype:
    """The precision of the checkpoint, so that nothing is rounded, or takes memory, without need."""
    from transformers import PreTrainedConfig

    raw, _ = PreTrainedConfig.get_config_dict(locate(model))
    named = getattr(torch, str(raw.get("dtype") or raw.get("torch_dtype")), None)
    return named if named in DTYPES else torch.float32


def _check_path(path: str | Path) -> Path:
    out = expanded(path)
    if out.is_dir():
        raise UserError(f"{str(path)!r} is a folder: name the file to write")
    if not out.parent.is_dir():
        raise UserError(f"no folder {str(out.parent)!r}: make it first")
    try:
        TemporaryFile(dir=out.parent).close()  # before the work
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}; choose another file") from error
    return out


def _compare_ends(model: Any, tokenizer: Any, converted: GgufTokenizer) -> Iterator[str]:
    """Where llama.cpp ends a text and Transformers does not, and the reverse."""
    sources = (model.generation_config, model.config, tokenizer)
    ids = next((i for s in sources if (i := getattr(s, "eos_token_id", None)) not in (None, [])), ())
    expected = set(ids) if isinstance(ids, (list, tuple)) else {ids}
    for only, who in ((converted.ends - expected, "llama.cpp"), (expected - converted.ends, "Transformers")):
        if only:
            yield f"only {who} ends a text at {', '.join(repr(converted.tokens[i]) for i in sorted(only))}"
