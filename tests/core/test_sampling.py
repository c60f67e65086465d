"""Every setting is checked by type and range, and says in one line what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwise import Sampling, UserError
from draftwise.core.sampling import Sampling as Settings


@pytest.mark.parametrize(
    "given",
    [
        *({"max_new_tokens": x} for x in (5.0, 0, -1, True, "5", None, float("inf"), np.float32(5))),
        *({"top_k": x} for x in (5.0, -1, True, "5", None)),
        *({"temperature": x} for x in (1e-40, 1e40, -1.0, float("nan"), float("inf"), "1", None, True, 1j)),
        *({"top_p": x} for x in (0, 0.0, 1.5, float("nan"), "1", None)),
        *({"min_p": x} for x in (-0.1, 1.5, float("nan"), None)),
        *({"repetition_penalty": x} for x in (0.0, -1.0, 1e-40, float("inf"), None)),
        *({"presence_penalty": x} for x in (float("nan"), 1e300, float("-inf"), "0")),
        *({"frequency_penalty": x} for x in (float("nan"), -1e300, None)),
        *({"seed": x} for x in (1.0, "1", True)),
        *({"eos": x} for x in ("2", b"2", 2.0, [2.0], ["2"], [-1], -1, None, [True])),
        *({"logprobs": x} for x in (3, "yes", None)),
        *({"processors": x} for x in (5, [5], "no", len)),
        *({"ends": x} for x in (5, "no")),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        Sampling(**given)
    ((name, value),) = given.items()
    assert "\n" not in str(error.value)
    assert name in str(error.value)
    assert repr(value).strip("[]") in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {
        "max_new_tokens": np.int64(5),
        "temperature": np.float32(0.5),
        "top_k": np.int32(3),
        "top_p": 1,
        "seed": np.uint8(7),
        "eos": np.array([2, 3]),
    }
    made = Sampling(**given)
    assert made == Settings(5, 0.5, top_k=3, seed=7, eos=frozenset({2, 3}))
    assert {type(getattr(made, name)) for name in ("max_new_tokens", "top_k", "seed")} == {int}
    assert {type(getattr(made, name)) for name in ("temperature", "top_p")} == {float}
    assert all(type(token) is int for token in made.eos)


@pytest.mark.parametrize("eos", [2, np.int64(2), [2], {2}, (2, 2), iter([2]), frozenset({2})])
def test_ends_of_text_may_be_one_or_several(eos: Any) -> None:
    assert Sampling(eos=eos).eos == frozenset({2})
