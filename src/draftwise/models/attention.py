"""Attention over keys and values as the cache holds them, without a copy for each head that shares them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from threading import Lock, local
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

SDPA = "sdpa"  # Transformers' name for PyTorch's attention
USUAL = {"module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "kwargs"}

Own: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""Attention of shape (rows, width, heads, size) from queries, keys, values, a mask and a scale."""


class _Pass(local):
    """Whether this thread is in a pass of ours."""

    ours = False


PASS = _Pass()
OWN: list[Any] = []  # Transformers' attention, from the first call of `replaced` on
FIRST = Lock()


def replaced() -> Any:
    """Transformers' own attention, in whose place ours stands from the first call on."""
    with FIRST if not OWN else nullcontext():
        if not OWN:
            OWN.append(_interface()()[SDPA])
            _interface().register(SDPA, _chosen)
    return OWN[0]


def _interface() -> Any:
    from transformers import AttentionInterface  # takes a second: not where no model of Transformers runs

    return AttentionInterface


@cache
def _others() -> tuple[str, ...]:
    return (*(set(inspect.signature(replaced()).parameters) - USUAL), "softcap")


@contextmanager
def shared_heads() -> Iterator[None]:
    """Within it, Transformers' models on a CPU compute `attention` where they use PyTorch's.

    Other threads, and passes that are not within it, compute what they always do.
    """
    before, PASS.ours = PASS.ours, True
    try:
        yield
    finally:
        PASS.ours = before


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None = None,
    single: bool = False,
) -> Tensor:
    """Scaled dot-product attention, shape (rows, heads, width, size); several heads may share those of a key.

    Heads that share a key become more rows of one product. Transformers copies keys and values for each of
    them in every pass, which takes several times as long as the attention itself after a long text. With
    `single` the last row is computed twice, since PyTorch's kernel takes several times as long over one row
    of bfloat16 as over two. `mask` has one head, or is None.
    """
    rows, heads, width, size = query.shape
    together = key.shape[1]
    if heads > together:
        query = query.reshape(rows, together, heads // together * width, size)
        if mask is not None:
            mask = mask[:, :, None].expand(-1, -1, heads // together, -1, -1).flatten(2, 3)
    elif single:
        query = torch.cat([query, query[:, :, -1:]], 2)
        mask = mask if mask is None else torch.cat([mask, mask[:, :, -1:]], 2)
    mixed: Tensor = functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    if heads == together and single:
        mixed = mixed[:, :, :-1]
    return mixed.reshape(rows, heads, width, mixed.shape[-1])


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    traced: bool = False,
    own: Own | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """`attention` in the form that Transformers calls; its own where something else is asked.

    `traced` if the width is not known yet. `own` computes what has a mask, if it is given.
    """
    width, shared = query.shape[2], getattr(module, "num_key_value_groups", 1)
    single = query.dtype == torch.bfloat16 and (traced or width == 1)
    plain = attention_mask is None and not traced and width == 1
    mask = attention_mask
    masked = mask is not None and mask.dim() == 4 and mask.shape[1] == 1
    usual = not dropout and all(more.get(name) is None for name in _others())
    ours = usual and query.device.type == "cpu" and query.shape[1] == shared * key.shape[1]
    if own is not None and ours and masked and mask is not None and mask.dtype == query.dtype:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        return own(query, key, value, mask, scale), None
    if not (ours and (shared > 1 or single) and (plain or masked)):
        mixture: tuple[Tensor, None] = replaced()(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **more,
        )
        return mixture
    mixed = attention(query, key, value, attention_mask, scale=scaling, single=single)
    return mixed.transpose(1, 2).contiguous(), None


def _chosen(module: nn.Module, *args: Any, **named: Any) -> Any:
    """`forward` in passes of ours; a graph that a user compiles is none."""
    ours = not torch.compiler.is_compiling() and PASS.ours
    return (forward if ours else replaced())(module, *args, **named)


@contextmanager
def traced_heads(own: Own | None = None) -> Iterator[None]:
    """Within it, all models are traced with `attention`, or `own`: for a process that does nothing else."""
    replaced()
    _interface().register(SDPA, partial(forward, traced=True, own=own))
    try:
        yield
    finally:
        _interface().register(SDPA, _chosen)
