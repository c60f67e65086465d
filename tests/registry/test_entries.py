"""How components are described."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from draftwise import registry
from draftwise.plugins import Drafter
from draftwise.registry.entries import _imported, describe


class Plain(Drafter):
    """Guesses."""


def test_a_class_without_an_init_of_its_own_takes_no_argument() -> None:
    assert _imported(Plain) == ("Guesses.", [], {})


@pytest.mark.parametrize("place", ["no_such_package.here:Echo", "no_such_module:Echo", "math:nothing"])
def test_a_plug_in_that_cannot_be_loaded_hides_no_other(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry.points("drafters") | {"echo": EntryPoint("echo", place, "draftwise.drafters")}
    monkeypatch.setattr(registry, "points", lambda group: known)
    found = {one.name: one.help for one in describe("drafters")}
    assert found.keys() == known.keys() and found["echo"].startswith("Cannot be loaded: ")
    assert [name for name, help in found.items() if help.startswith("Cannot")] == ["echo"]
