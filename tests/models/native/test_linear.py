"""Products by our kernel: PyTorch's, and the same for a token whatever else is in its pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from draftwise.models.native import kernels as panels
from draftwise.models.weights import timing
from draftwise.models.weights.layouts import LAYOUTS, PANELS, SHORT, PackedLinear

made = pytest.mark.skipif(panels.linear_kernel(torch.float32) is None, reason="no C++ compiler here")
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2**-8}  # of a result that is rounded once


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return panels.linear(x, panels.pack(weight), weight, bias)


@made
@dtypes
@pytest.mark.parametrize("outputs", [1, 16, 17, 200])
@pytest.mark.parametrize("inputs", [2, 14, 1100])
def test_products_are_those_of_pytorch_for_every_number_of_tokens(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    for tokens in (0, *range(1, 15), 40):
        x = torch.randn(tokens, inputs).to(dtype)
        for added in (bias, None):
            wanted = nn.functional.linear(
                x.double(), weight.double(), None if added is None else bias.double()
            )
            assert torch.allclose(product(x, weight, added).double(), wanted, rtol=NEAR[dtype], atol=2e-4)


@made
def test_inputs_of_odd_number_are_multiplied_in_float32_alone() -> None:
    weight, x = torch.randn(40, 7), torch.randn(3, 7)
    assert torch.allclose(product(x, weight), x @ weight.T, atol=1e-5)
    large = torch.zeros(1 << 15, 7)
    assert PANELS in timing.possible(large) and PANELS not in timing.possible(large.bfloat16())
    assert PANELS not in timing.possible(large.double())


@made
@dtypes
def test_a_token_has_the_same_result_in_every_pass_and_with_every_number_of_threads(
    dtype: torch.dtype,
) -> None:
    """Bit for bit: a draft is verified by the sums of plain decoding."""
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((40, 1200), (130, 1200), (130,)))
    threads = torch.get_num_threads()
    alone = torch.cat([product(row[None], weight, bias) for row in x])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for tokens in range(1, 41):
                assert torch.equal(product(x[:tokens], weight, bias), alone[:tokens])
    finally:
        torch.set_num_threads(threads)


@made
@pytest.mark.parametrize("outputs", [1, 17, 200])
@pytest.mark.parametrize("inputs", [32, 64, 1120])
@pytest.mark.parametrize("name", SHORT)
def test_weights_that_fit_a_shorter_format_have_the_products_of_float32(
    outputs: int, inputs: int, name: str
) -> None:
    """Bit for bit, with every number of tokens, and with extreme values."""
    torch.manual_seed(0)
    layer, dtype = nn.Linear(inputs, outputs), SHORT[name]
    if dtype.is_floating_point:
        range_ = torch.finfo(dtype)
        layer.weight.data[0, :2] = torch.tensor([range_.max, -range_.smallest_normal / 4])
    else:
        layer.weight.data[0, :2] = torch.tensor([3.0, -1e-7])
        layer.weight.data[-1] = 0.25  # a block of one value
    layer.weight.data = panels.rounded(layer.weight, dtype)
    assert LAYOUTS[name].supports(layer.weight)
    short, full = PackedLinear(layer, name), PackedLinear(layer, PANELS)
    assert short.packed.dtype == dtype and 2 * short.packed.nbytes <= full.packed.nbytes
    for tokens in (0, *range(1, 15), 40):
        x = torch.randn(tokens, inputs)
        assert torch.equal(short(x), full(x))


@made
@pytest.mark.parametrize("name", SHORT)
def test_a_weight_is_stored_in_a_shorter_format_only_if_that_loses_nothing(name: str) -> None:
    fits, dtype = LAYOUTS[name].supports, SHORT[name]
    weight = panels.rounded(torch.randn(panels.FEW + 3, 64), dtype)
    assert fits(weight) and fits(weight.t().contiguous().t()[:, :32]) and fits(nn.Parameter(weight))
    assert fits(weight[:, :3]) == (dtype == torch.float16), "others are multiplied by several inputs at once"
    assert not fits(weight.to(dtype)) and not fits(weight.double())
    for place in (0, -1):
        other = weight.clone()
        other[place, place] = torch.nextafter(other[place, place], torch.tensor(9.0))
        assert not fits(other)
    weight[1, 1] = 3e38 if dtype == torch.float16 else torch.nan
    assert not fits(weight)
    with pytest.raises(ValueError, match="has values that"):
        panels.pack(weight, torch.int32)


@made
@pytest.mark.parametrize(
    ("name", "least", "scale", "codes"),
    [
        ("4-bit-panels", -3.0, 0.37, torch.arange(32) % 16),  # a whole range, and parts of it
        ("4-bit-panels", 2.0, 3e-6, torch.arange(32) % 5 * 3),
        ("4-bit-panels", 0.0, 0.0, torch.zeros(32)),
        ("8-bit-panels", 0.0, 0.01, torch.arange(32) - 16),
        ("8-bit-panels", 0.0, 1e-5, torch.arange(32) * 4 - 128),
        ("8-bit-panels", 0.0, 0.0, torch.zeros(32)),
    ],
)
def test_codes_are_found_for_scales_of_every_quantiser(
    name: str, least: float, scale: float, codes: torch.Tensor
) -> None:
    half = [torch.tensor(value).half().double() for value in (least, scale)]
    weight = (codes.double() * half[1] + half[0]).float().expand(40, 32)
    assert LAYOUTS[name].supports(weight)
    layer = nn.Linear(32, 40, bias=False)
    layer.weight = nn.Parameter(weight)
    assert torch.equal(PackedLinear(layer, name)(torch.eye(32)), weight.t())


@made
def test_inputs_may_be_views_and_share_the_layer_between_threads() -> None:
    torch.manual_seed(0)
    layer = PackedLinear(nn.Linear(32, 50), PANELS)
    x = torch.randn(3, 32, 5).transpose(1, 2)
    wanted = layer(x.contiguous())
    assert torch.equal(layer(x), wanted)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, wanted) for found in pool.map(lambda _: layer(x), range(200)))


@made
@dtypes
def test_numbers_that_are_none_stay_where_they_are(dtype: torch.dtype) -> None:
    """A text with a NaN in its states spoils no other."""
    weight, x = torch.randn(20, 8).to(dtype), torch.randn(3, 8).to(dtype)
    x[1, 3] = float("nan")
    found = product(x, weight)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], product(x[[0, 2]], weight))
