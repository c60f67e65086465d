"""A target that writes the alphabet, a drafter that knows it and one that never does: no torch, no files."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwise.core.roles import Drafter
from draftwise.measure.bench.ours import Models
from draftwise.specs import parse_drafters
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, Letters, Sometimes, after


def sim_models(names: Sequence[str] = ("good", "bad"), *, max_length: int = 100_000) -> Models:
    """`good` is wrong about vowels only."""
    team: dict[str, Drafter] = {n: Sometimes() if n != "bad" else SimDrafter(after(3)) for n in names}
    target = SimTarget(after(1), len(LETTERS), max_length=max_length)
    specs = parse_drafters(list(names))
    return Models(target, None, Letters(), frozenset(), specs, team, "", lambda own: {})


@pytest.fixture
def models() -> Models:
    return sim_models()
