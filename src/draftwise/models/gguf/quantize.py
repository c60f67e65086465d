"""Quantises a GGUF file with llama.cpp's own function, and reads which type every tensor has."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from .library import complaints, library, listening, reason
from .vocabulary import writer_module

QUANTIZED = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_k": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
BLOCKS = {"q8_0": 32, "q4_k": 256}  # how many numbers of a row share a block
AT = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")  # how llama.cpp counts tensors


@dataclass(frozen=True)
class Contents:
    """How many tensors have each type, and how many of them only because their rows are not whole blocks."""

    types: dict[str, int]
    fallbacks: dict[str, int]


def quantize(source: Path, out: Path, type: str, *, tell: Callable[[str, int, int], None]) -> None:
    """Write `source` again with its matrices in a smaller type.

    Raises:
        UserError: llama.cpp refuses; the line says why.
    """
    lib = library()
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, QUANTIZED[type])

    def heard(line: str) -> None:
        if at := AT.match(line):
            tell("quantising", int(at[1]), int(at[2]))

    with complaints() as said, listening(heard):
        failed = lib.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    if failed:
        raise UserError(f"llama.cpp cannot quantise this model to {type} ({reason(said)})")


def contents(path: Path, type: str) -> Contents:
    """The types of the tensors in a file that was written as `type`."""
    types: Counter[str] = Counter()
    fallbacks: Counter[str] = Counter()
    for tensor in writer_module().GGUFReader(path).tensors:
        name = tensor.tensor_type.name
        types[name] += 1
        if len(tensor.shape) > 1 and int(tensor.shape[0]) % BLOCKS.get(type, 1):
            fallbacks[name] += 1
    return Contents(dict(types.most_common()), dict(fallbacks))
