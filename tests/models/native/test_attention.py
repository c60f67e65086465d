"""Attention by our kernel: PyTorch's, and the same for a token whatever else is in its pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from draftwise.models.native import kernels as native

pytestmark = pytest.mark.skipif(native.attention_kernel(torch.float32) is None, reason="no C++ compiler here")
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # of a result that is rounded once
HIDDEN = float("-inf")


def own(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float = 0.2) -> Tensor:
    kernel = native.attention_kernel(query.dtype)
    assert kernel is not None
    return native.attention(kernel, query, key, value, mask, scale)


def pytorch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float = 0.2) -> Tensor:
    more = query.shape[1] // key.shape[1]
    keys, values = (held.repeat_interleave(more, 1).double() for held in (key, value))
    return functional.scaled_dot_product_attention(
        query.double(), keys, values, mask.double(), scale=scale
    ).transpose(1, 2)


def states(
    rows: int, heads: int, shared: int, width: int, total: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as a model has them, and keys and values as slices of a larger cache."""
    torch.manual_seed(rows + heads + width + total + size)
    query = torch.randn(rows, width, heads, size).transpose(1, 2)
    held = (torch.randn(rows + 1, shared, total + 20, size) for _ in range(2))
    key, value = (one[1:, :, :total] for one in held)
    return query, key, value


def causal(rows: int, width: int, total: int) -> Tensor:
    return torch.full((width, total), HIDDEN).triu(total - width + 1).expand(rows, 1, -1, -1).contiguous()


@dtypes
@pytest.mark.parametrize("heads, shared", [(1, 1), (6, 2), (4, 1)])
@pytest.mark.parametrize("size", [16, 48, 128])
def test_it_is_pytorchs_for_every_width(heads: int, shared: int, size: int, dtype: torch.dtype) -> None:
    for width in (1, 2, 3, 5, 6, 7, 9, 13, 17, 40):
        for total in (width, width + 15, width + 100):
            query, key, value = (t.to(dtype) for t in states(2, heads, shared, width, total, size))
            given = query, key, value, causal(2, width, total).to(dtype)
            assert torch.allclose(own(*given).double(), pytorch(*given), rtol=NEAR[dtype], atol=NEAR[dtype])


@pytest.mark.parametrize("lowest", [HIDDEN, torch.finfo(torch.float32).min])
def test_each_row_has_a_mask_of_its_own(lowest: float) -> None:
    """As in a batch of texts of several lengths, and with a window."""
    query, key, value = states(3, 4, 2, 5, 60, 32)
    mask = torch.zeros(3, 1, 5, 60)
    for row, seen in enumerate((60, 21, 33)):
        mask[row, :, :, seen:] = lowest
        mask[row, :, :, : 7 * row] = lowest
    assert torch.allclose(own(query, key, value, mask).double(), pytorch(query, key, value, mask), atol=1e-5)
    spread = mask[:1].expand(3, -1, -1, -1)
    assert torch.equal(own(query, key, value, spread), own(query, key, value, spread.contiguous()))


@dtypes
@pytest.mark.parametrize("width, total", [(1, 255), (1, 257), (2, 512), (9, 700), (40, 700), (150, 530)])
def test_many_keys_and_many_tokens(width: int, total: int, dtype: torch.dtype) -> None:
    """Segments of keys are merged, by all threads together, or by one for a part of the tokens."""
    query, key, value = (t.to(dtype) for t in states(2, 4, 2, width, total, 64))
    mask = causal(2, width, total)
    mask[1, :, :, : total - width - 200] = HIDDEN  # whole segments
    given = query, key, value, mask.to(dtype)
    assert torch.allclose(own(*given).double(), pytorch(*given), rtol=NEAR[dtype], atol=NEAR[dtype])


@dtypes
@pytest.mark.parametrize("width, total", [(20, 90), (20, 265), (45, 540)])
def test_a_token_has_the_same_result_in_every_pass_and_with_every_number_of_threads(
    width: int, total: int, dtype: torch.dtype
) -> None:
    """Bit for bit, with more keys that it does not see: a draft is verified by the sums of plain decoding."""
    query, key, value = (t.to(dtype) for t in states(1, 6, 3, width, total, 64))
    mask, threads = causal(1, width, total).to(dtype), torch.get_num_threads()
    steps = [(slice(k, k + 1), slice(0, total - width + 1 + k)) for k in range(width)]
    alone = torch.cat(
        [
            own(query[:, :, at], key[:, :, seen], value[:, :, seen], mask[:, :, at, seen])
            for at, seen in steps
        ],
        1,
    )
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for some in range(1, width + 1):
                result = own(query[:, :, :some], key, value, mask[:, :, :some])
                assert torch.equal(result, alone[:, :some])
    finally:
        torch.set_num_threads(threads)


def test_scores_that_differ_widely_and_tokens_that_see_nothing() -> None:
    query, key, value = states(1, 2, 2, 3, 40, 16)
    mask = causal(1, 3, 40)
    wide = own(40.0 * query, key, value, mask)
    assert torch.allclose(wide.double(), pytorch(40.0 * query, key, value, mask), atol=1e-4)
    mask[:, :, 1] = HIDDEN
    result = own(query, key, value, mask)
    assert (result[:, 1] == 0).all() and not result.isnan().any()


@pytest.mark.parametrize("width, total", [(4, 30), (4, 600), (80, 600)])
def test_numbers_that_are_none_stay_in_their_row(width: int, total: int) -> None:
    query, key, value = states(3, 2, 2, width, total, 32)
    mask = causal(3, width, total)
    wanted = own(query, key, value, mask)
    query[1, 0, 2, 5] = float("nan")
    result = own(query, key, value, mask)
    assert result[1, 2, 0].isnan().all()
    result[1, 2, 0] = wanted[1, 2, 0]
    assert torch.equal(result, wanted)
    query[1, 0, 2, 5], mask[..., : total // 2] = 0.0, HIDDEN
    assert own(query, key, value, mask).isfinite().all(), "memory of the pass before"


def test_no_tokens_and_no_rows_are_nothing() -> None:
    query, key, value = states(2, 2, 2, 3, 10, 16)
    assert own(query[:, :, :0], key, value, causal(2, 0, 10)).shape == (2, 0, 2, 16)
    assert own(query[:0], key[:0], value[:0], causal(0, 3, 10)).shape == (0, 3, 2, 16)


@dtypes
@pytest.mark.parametrize("lowest", [HIDDEN, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("seen, total", [(41, 70), (300, 800)])
def test_the_last_keys_are_not_read_where_no_token_sees_them(
    seen: int, total: int, dtype: torch.dtype, lowest: float
) -> None:
    """They hold what a longer text has left there, and the result is the same bit for bit."""
    query, key, value = (t.to(dtype) for t in states(1, 4, 2, 3, total, 32))
    mask = causal(1, 3, total)
    mask[..., seen:] = lowest
    mask = mask.clamp(min=torch.finfo(dtype).min).to(dtype)
    wanted = own(query, key[:, :, :seen], value[:, :, :seen], mask[..., :seen].contiguous())
    assert torch.equal(own(query, key, value, mask), wanted)
    key[:, :, seen:], value[:, :, seen:] = float("nan"), float("inf")
    assert torch.equal(own(query, key, value, mask), wanted)
    assert torch.equal(own(query[:, :, :1], key, value, mask[:, :, :1]), wanted[:, :1])  # memory used before
