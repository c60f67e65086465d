"""Converts a Transformers model to a GGUF file: weights, tokenizer, special tokens and chat template."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...errors import UserError
from ..load import load_model, load_tokenizer, locate
from . import probe, vocabulary
from .architectures import describe, kind_of, tensors
from .quantize import BLOCKS, QUANTIZED, contents, quantize
from .tokenizer import GgufTokenizer
from .vocabulary import Vocabulary, writer_module

PLAIN = ("f32", "f16", "bf16")
TYPES = (*PLAIN, *QUANTIZED)
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}

Tell = Callable[[str, int, int], None]


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
        """All of it as JSON values."""
        return asdict(self) | {"path": str(self.path), "notes": list(self.notes)}


def export_gguf(
    model: str,
    path: str | Path,
    *,
    type: str = "f16",
    trust_remote_code: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Exported:
    """Convert a model (`zoo:NAME`, a folder or a Hugging Face id) to a GGUF file, in place of an older one.

    `type` is that of the matrices: f32, f16, bf16, q8_0 or q4_k (llama.cpp's Q4_K_M). The file's tokenizer is
    compared with Transformers' on some thousand texts.

    Raises:
        UserError: an unknown type, a model or tokenizer that llama.cpp does not have, or a path that cannot
            be written.
    """
    began, out = perf_counter(), _writable(path)
    if type not in TYPES:
        raise UserError(f"unknown type {type!r}: choose from {', '.join(TYPES)}")
    writer_module()
    tokenizer: Any = load_tokenizer(model, trust_remote_code=trust_remote_code)
    tell("loading", 0, 1)
    loaded = load_model(model, dtype=_dtype(model), device="cpu", trust_remote_code=trust_remote_code)
    kind = kind_of(loaded.config)
    said = vocabulary.read(tokenizer, loaded.config.vocab_size)
    found = probe.find(said, tokenizer, tell=tell)
    with _beside(out) as (part, second):
        base = type if type in PLAIN else DTYPES.get(loaded.dtype, "f32")
        write_gguf(loaded, part, type=base, words=(said, found.pre), name=_name(model), tell=tell)
        if type in QUANTIZED:
            quantize(part, second, type, tell=tell)
            os.replace(second, part)
        notes = (*said.notes, *_ends(loaded, tokenizer, GgufTokenizer.from_file(part)))
        inside = contents(part, type)
        os.replace(part, out)
    return Exported(
        *(out, type, kind.name, out.stat().st_size, perf_counter() - began, found.pre, found.texts),
        *(inside.types, inside.fallbacks, BLOCKS.get(type, 1), notes),
    )


def write_gguf(
    model: Any,
    path: Path,
    *,
    type: str = "f32",
    words: tuple[Vocabulary, str] | None = None,
    name: str = "",
    tell: Tell = lambda what, done, total: None,
) -> None:
    """Write a loaded model with a vocabulary and its pre-tokenizer, or without any: ids in, ids out.

    Raises:
        UserError: another type of model, or weights that do not fit the type.
    """
    gguf, kind = writer_module(), kind_of(model.config)
    writer = gguf.GGUFWriter(path, kind.name)
    writer.add_name(name or "model")
    writer.add_file_type(
        gguf.LlamaFileType[{"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}[type]]
    )
    describe(writer, model)
    if words is None:
        writer.add_tokenizer_model("none")
    else:
        vocabulary.write(writer, *words)
    weights = list(tensors(model))
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
            writer.write_tensor_data(_as(values, "f32" if values.ndim == 1 else type, tensor))
    finally:
        writer.close()


def _as(values: torch.Tensor, type: str, name: str) -> Any:
    """A tensor's numbers in a type of GGUF; those of bf16 are bytes."""
    gguf, full = writer_module(), np.ascontiguousarray(values.float().numpy())
    if type == "f32":
        return full
    with np.errstate(over="ignore"):
        made = gguf.quants.quantize(full, gguf.GGMLQuantizationType[type.upper()])
    if type == "f16" and not np.isfinite(made).all():
        raise UserError(f"the weights of {name} are too large for f16: choose bf16 or f32")
    return made


def _dtype(model: str) -> torch.dtype:
    """The precision of the checkpoint, so that nothing is rounded, or takes memory, without need."""
    from transformers import PreTrainedConfig

    raw, _ = PreTrainedConfig.get_config_dict(locate(model))
    named = getattr(torch, str(raw.get("dtype") or raw.get("torch_dtype")), None)
    return named if named in DTYPES else torch.float32


def _writable(path: str | Path) -> Path:
    out = Path(path).expanduser()
    if out.is_dir():
        raise UserError(f"{str(path)!r} is a folder: name the file to write")
    if not out.parent.is_dir():
        raise UserError(f"no folder {str(out.parent)!r}: make it first")
    return out


@contextmanager
def _beside(out: Path) -> Iterator[tuple[Path, Path]]:
    """Two files next to the one to write, which are gone afterwards; a full disk is one clear line."""
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
            yield Path(folder) / "part.gguf", Path(folder) / "second.gguf"
    except OSError as error:
        raise UserError(f"cannot write {str(out)!r}: {error.strerror or error}") from error


def _name(model: str) -> str:
    return Path(model.rpartition(":")[2]).name or "model"


def _ends(model: Any, tokenizer: Any, ours: GgufTokenizer) -> Iterator[str]:
    """Where llama.cpp ends a text and Transformers does not, and the reverse."""
    wanted: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if not wanted and ids is not None:
            wanted = set(ids) if isinstance(ids, (list, tuple)) else {ids}
    for only, who in ((ours.ends - wanted, "llama.cpp"), (wanted - ours.ends, "Transformers")):
        if only:
            yield f"only {who} ends a text at {', '.join(repr(ours.tokens[i]) for i in sorted(only))}"
