"""How components are described."""

from __future__ import annotations

from draftwise.plugins import Drafter
from draftwise.registry.entries import _imported


class Plain(Drafter):
    """Guesses."""


def test_a_class_without_an_init_of_its_own_takes_no_argument() -> None:
    assert _imported(Plain) == ("Guesses.", [], {})
