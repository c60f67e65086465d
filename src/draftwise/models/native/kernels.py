"""Kernels of our own: compiled on this machine, once, and compared with PyTorch before they are used."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from ctypes import CDLL, POINTER, RTLD_GLOBAL, Structure, byref, c_bool, c_float, c_int32, c_int64, c_void_p
from functools import cache, partial
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from .. import compiler
from ..verdicts import machine

FEW = 1 << 12  # rows of a weight that are looked at together
SOURCES = Path(__file__).parent
TUNED = (
    ("-O3", "-march=native", "-fopenmp"),
    ("-O3", "-mcpu=native", "-fopenmp"),
    ("-O3", "-fopenmp"),
    ("-O3", "-march=native"),
    ("-O3", "-mcpu=native"),
)
LOG = getLogger(__name__)


@cache
def library() -> CDLL | None:
    """The kernels, compiled by the first process that asks for them; None where that is impossible.

    Compiled graphs find its functions by their names.
    """
    try:
        return CDLL(str(find_library()), mode=RTLD_GLOBAL)
    except (compiler.Unmade, OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as error:
        LOG.info("no kernels of our own: %s", error)
        return None


def find_library() -> Path:
    """The library on disk, compiled now if it is not there.

    Raises:
        Unmade: there is no compiler that can.
        PermissionError: others may write to it.
    """
    links = (f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu")
    return compiler.library(SOURCES, machine(), options=TUNED, links=links)


class Codes(NamedTuple):
    """How quantised weights are stored (`codes.h`): bits of a code, inputs and rows of int32 of a block."""

    bits: int
    inputs: int
    rows: int


CODES = {torch.int32: Codes(4, 32, 6), torch.int8: Codes(8, 16, 5)}  # by the dtype of the packed weight
NAMES = {  # of the kernels, by the dtypes of tokens and of stored weights
    (torch.float32, torch.float32): "draftwise_linear_float32",
    (torch.float32, torch.bfloat16): "draftwise_linear_widened",
    (torch.float32, torch.float16): "draftwise_linear_widened_float16",
    (torch.float32, torch.int32): "draftwise_linear_4_bits",
    (torch.float32, torch.int8): "draftwise_linear_8_bits",
    (torch.bfloat16, torch.bfloat16): "draftwise_linear_bfloat16",
}

Product: TypeAlias = Callable[[int, int, int | None, int, int, int, int], None]
"""Addresses of the input, the weights, the bias or None, and the output; tokens, outputs and inputs."""


@cache
def linear_kernel(dtype: torch.dtype, stored: torch.dtype | None = None) -> Product | None:
    """The kernel for tokens of this dtype and weights stored in another one, or in the same.

    None if this machine can make none that computes what PyTorch does.
    """
    types, stored = [c_void_p] * 4 + [c_int64] * 3, stored or dtype
    check = partial(check_linear, stored=stored)
    return cast("Product | None", _usable(NAMES.get((dtype, stored)), types, check, dtype))


def _usable(name: str | None, types: Sequence[Any], check: Callable[..., str], dtype: torch.dtype) -> Any:
    """The function of this name in the library, if there is one that passes its check in this dtype."""
    loaded = library()
    if loaded is None or name is None:
        return None
    function = loaded[name]
    function.argtypes, function.restype = types, None
    if wrong := check(function, dtype):
        LOG.info("no kernel of our own for %s in %s: %s", name, dtype, wrong)
        return None
    return function


def supports(weight: Tensor, stored: torch.dtype | None = None) -> bool:
    """Whether a weight can be packed in a format, its own or a shorter one, and keeps all its values."""
    stored = stored or weight.dtype
    if weight.device.type != "cpu" or (weight.dtype, stored) not in NAMES:
        return False
    if weight.dim() != 2 or weight.shape[1] % _unit(stored) or linear_kernel(weight.dtype, stored) is None:
        return False
    return _quantise(weight, stored, None) if stored in CODES else _fits(weight.detach(), stored)


def _unit(stored: torch.dtype) -> int:
    """The inputs that are stored, or multiplied, together."""
    return CODES[stored].inputs if stored in CODES else 2 if stored == torch.bfloat16 else 1


def _fits(weight: Tensor, stored: torch.dtype) -> bool:
    parts = (weight[at : at + FEW] for at in range(0, len(weight), FEW))
    return stored == weight.dtype or all(torch.equal(part, part.to(stored).to(part.dtype)) for part in parts)


def _quantise(weight: Tensor, stored: torch.dtype, packed: Tensor | None) -> bool:
    """Write a weight's codes into zeros, if each value has one; without `packed` only find out."""
    loaded, weight = library(), weight.detach().contiguous()
    assert loaded is not None
    function = loaded[f"draftwise_quantise_{CODES[stored].bits}_bits"]
    function.argtypes, function.restype = [c_void_p, c_int64, c_int64, c_void_p], c_bool
    return bool(function(weight.data_ptr(), *weight.shape, None if packed is None else packed.data_ptr()))


def packed_shape(outputs: int, inputs: int, stored: torch.dtype) -> tuple[int, ...]:
    loaded = library()
    assert loaded is not None
    size = int(loaded.draftwise_panel())
    panels = -(-outputs // size)
    if stored in CODES:
        _, block, rows = CODES[stored]
        return (panels, inputs // block, rows, size * torch.int32.itemsize // stored.itemsize)
    return (panels, inputs // 2, size, 2) if stored == torch.bfloat16 else (panels, inputs, size)


def pack(weight: Tensor, stored: torch.dtype | None = None) -> Tensor:
    """A weight of shape (out, in) as panels of outputs, filled up with zeros; bfloat16 by pairs of inputs.

    Raises:
        ValueError: the weight has values that the format has not.
    """
    (outputs, inputs), stored = weight.shape, stored or weight.dtype
    shape = packed_shape(outputs, inputs, stored)
    if stored in CODES:
        packed = torch.zeros(shape, dtype=stored)
        if not _quantise(weight, stored, packed):
            raise ValueError(f"a weight of shape {tuple(weight.shape)} has values that {stored} has not")
        return packed
    panels, steps, size, *pair = shape
    rows = functional.pad(weight.to(stored), (0, 0, 0, panels * size - outputs))
    return rows.view(panels, size, steps, *pair).transpose(1, 2).contiguous()


def rounded(weight: Tensor, stored: torch.dtype) -> Tensor:
    """The nearest weight that a format holds, in the weight's dtype; each block of codes is scaled alone."""
    if stored not in CODES:
        return weight.to(stored).to(weight.dtype)
    bits, size, _ = CODES[stored]
    lowest, highest = (0, 15) if bits == 4 else (-127, 127)
    blocks = weight.detach().double().reshape(len(weight), -1, size)
    least = blocks.amin(-1, keepdim=True).half().double() if bits == 4 else torch.zeros(())  # or symmetric
    scale = (blocks - least).abs().amax(-1, keepdim=True).div(highest).half().double()
    codes = ((blocks - least) / scale).nan_to_num().round().clamp(lowest, highest)
    return (codes * scale + least).flatten(1).to(weight.dtype)


def linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, for x of shape (..., in); `shape` has that of the weight."""
    product = linear_kernel(x.dtype, packed.dtype)
    assert product is not None  # what is packed was packed for it
    return _applied(product, x.contiguous(), packed, len(shape), bias)


def _applied(product: Product, x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
    y, inputs = x.new_empty(*x.shape[:-1], outputs), x.shape[-1]
    added = None if bias is None else bias.data_ptr()
    product(x.data_ptr(), packed.data_ptr(), added, y.data_ptr(), x.numel() // inputs, outputs, inputs)
    return y


def check_linear(product: Product, dtype: torch.dtype, stored: torch.dtype) -> str:
    """What is wrong with a kernel, compared with PyTorch, in a few words.

    Tried are shapes that fill no panel, every tile, and more inputs than are multiplied at a time.
    """
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    near = 1e-5 if dtype == torch.float32 else 1e-2
    for outputs, inputs in ((1, 2), (37, 18), (200, 64), (40, 1100)):
        inputs = -(-inputs // _unit(stored)) * _unit(stored)
        shapes = (26, inputs), (outputs, inputs), (outputs,)
        x, weight, bias = ((torch.rand(*shape, generator=rng) - 0.5).to(dtype) for shape in shapes)
        weight = rounded(weight, stored)
        expected, packed = functional.linear(x.double(), weight.double(), bias.double()), pack(weight, stored)
        rows = []
        for tokens in range(1, len(x) + 1):
            y = _applied(product, x[:tokens], packed, outputs, bias)
            if not torch.allclose(y.double(), expected[:tokens], rtol=near, atol=near):
                return "it computes something else than PyTorch"
            rows.append(y[0])
        if not all(torch.equal(row, rows[0]) for row in rows):
            return "its results depend on the number of tokens"
        if stored != dtype:
            full = linear_kernel(dtype)
            if full is None or not torch.equal(_applied(full, x, pack(weight), outputs, bias), y):
                return f"its results are not those of weights in {dtype}"
    return ""


NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # what rounding explains
UNIT = 16  # the size of a head's vectors is a multiple of it

Attend: TypeAlias = Callable[[Any], None]


class Call(Structure):
    """The arguments of the kernel, as in `attention.h`."""

    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value", "mask", "out")),
        *(
            (name, c_int64)
            for name in ("rows", "shared", "groups", "width", "total", "key_size", "value_size")
        ),
        *((f"{name}_step", c_int64 * 3) for name in ("query", "key", "value")),
        ("mask_step", c_int64 * 2),
        ("scale", c_float),
        ("half", c_int32),
    )


@cache
def attention_kernel(dtype: torch.dtype) -> Attend | None:
    """The kernel, if this machine can make one that computes what PyTorch does in this dtype."""
    name = "draftwise_attention" if dtype in NEAR else None
    return cast("Attend | None", _usable(name, [POINTER(Call)], check_attention, dtype))


def attention(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attention of float32 or bfloat16, shape (rows, width, heads, value size).

    `query` has the shape (rows, heads, width, size), `key` and `value` (rows, heads or fewer, slots, size),
    and `mask` (rows, 1, width, slots). The last dimension of each
    lies side by side; sizes are multiples of 16.
    """
    rows, heads, width, size = query.shape
    shared, total, value_size = key.shape[1], key.shape[2], value.shape[3]
    out = query.new_empty(rows, width, heads, value_size)
    call = Call(
        *(t.data_ptr() for t in (query, key, value, mask, out)),
        *(rows, shared, heads // shared, width, total, size, value_size),
        *((c_int64 * 3)(*t.stride()[:3]) for t in (query, key, value)),
        (c_int64 * 2)(mask.stride(0), mask.stride(2)),
        scale,
        query.dtype == torch.bfloat16,
    )
    attend(byref(call))
    return out


def check_attention(attend: Attend, dtype: torch.dtype) -> str:
    """What is wrong with a kernel, compared with PyTorch, in a few words.

    Tried are heads that share keys, several rows and segments, every tile, and tokens alone or among others.
    """
    rng = torch.Generator().manual_seed(0)
    for size, value_size, shared, total in ((16, 48, 1, 15), (64, 64, 2, 600), (128, 128, 1, 21)):
        query, key, value = (
            (2.0 * torch.rand(2, heads, slots, n, generator=rng) - 1.0).to(dtype)
            for heads, slots, n in ((2, 15, size), (shared, total, size), (shared, total, value_size))
        )
        hidden = torch.full((15, total), float("-inf"), dtype=dtype).triu(total - 14)
        hidden = hidden.expand(2, 1, -1, -1).contiguous()
        more = 2 // shared
        expected = functional.scaled_dot_product_attention(
            query.double(),
            key.repeat_interleave(more, 1).double(),
            value.repeat_interleave(more, 1).double(),
            hidden.double(),
            scale=0.3,
        ).transpose(1, 2)
        for width in range(1, 16):
            some = query[:, :, :width].contiguous()
            slots_seen = total - 15 + width
            result = attention(
                attend,
                some,
                key[:, :, :slots_seen],
                value[:, :, :slots_seen],
                hidden[:, :, :width, :slots_seen],
                0.3,
            )
            if not torch.allclose(result.double(), expected[:, :width], rtol=NEAR[dtype], atol=NEAR[dtype]):
                return "it computes something else than PyTorch"
            whole = attention(attend, some, key, value, hidden[:, :, :width], 0.3)
            alone = attention(attend, some[:, :, -1:], key, value, hidden[:, :, width - 1 : width], 0.3)
            if not (torch.equal(result, whole) and torch.equal(result[:, -1:], alone)):
                return "its results depend on the number of tokens"
    return ""


def kernels() -> list[str]:
    """Return the names of the kernels that this machine can make."""

    def name(dtype: torch.dtype) -> str:
        return f"{CODES[dtype].bits}-bit" if dtype in CODES else str(dtype).removeprefix("torch.")

    products = [
        f"linear {name(dtype)}" + (f" of {name(stored)} weights" if stored != dtype else "")
        for dtype, stored in NAMES
        if linear_kernel(dtype, stored) is not None
    ]
    return products + [f"attention {name(dtype)}" for dtype in NEAR if attention_kernel(dtype) is not None]
