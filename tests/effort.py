"""How much a run of the tests does: all of it with DRAFTWISE_SLOW_TESTS=1, or what fits into minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = bool(os.environ.get("DRAFTWISE_SLOW_TESTS"))
thorough = pytest.mark.skipif(not THOROUGH, reason="takes long: make test-thorough runs it")


def drawn(n: int) -> int:
    """The number of sampled texts whose distribution is looked at: `n` in a thorough run."""
    return n if THOROUGH else min(n, max(300, n // 3))


def some(values: Iterable[T], step: int) -> list[T]:
    """All values in a thorough run, else every `step`th."""
    return list(values)[:: 1 if THOROUGH else step]
