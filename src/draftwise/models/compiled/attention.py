"""Attention in a graph for single tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

OWN: Any = functional.scaled_dot_product_attention


@contextmanager
def written_out() -> Iterator[None]:
    """While a model is traced, its attention over a single token is two products of matrices."""
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = OWN


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Scaled dot-product attention, written out where the query is one token.

    In half precision PyTorch's own kernel takes several times as long over one token of a long text
    (docs/how-to/compile.md).
    """
    unusual = args or any(given for name, given in kwargs.items() if name != "scale")
    alike = query.shape[1] == key.shape[1] and query.shape[2] == 1
    if unusual or not alike or attn_mask is None or not attn_mask.is_floating_point():
        found: Tensor = OWN(query, key, value, attn_mask, *args, **kwargs)
        return found
    scale = kwargs.get("scale") or query.shape[-1] ** -0.5
    scores = scale * torch.matmul(query, key.transpose(2, 3)) + attn_mask
    return torch.matmul(scores.float().softmax(-1).to(query.dtype), value)
