"""A target that writes the alphabet, a drafter that knows it and one that never does: no torch, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from draftwise.core.roles import Drafter
from draftwise.measure.bench import peers
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


@pytest.fixture
def hellos(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What processes of peers are told first, with their module, and whether they draft; none is started."""
    told: list[Mapping[str, Any]] = []

    class Child:
        def __init__(self, name: str, command: Sequence[str], hello: Any, *, drafts: bool, **_: Any) -> None:
            told.append({**hello, "module": command[-1], "drafts": drafts})

        def close(self) -> None: ...

    monkeypatch.setattr("draftwise.measure.bench.child.Child", Child)
    monkeypatch.setattr(peers, "find_spec", lambda name: name)
    return told
