"""The suite for drafters: sound ones pass, and every check fails for the drafter that breaks its rule."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.testing import DrafterSuite, drafter_suite
from tests.effort import some
from tests.testing.broken_drafters import BROKEN, Sound

TestSound = drafter_suite(Sound)


@pytest.mark.parametrize("kind", some(BROKEN, 7), ids=lambda kind: kind.__name__)
def test_a_broken_drafter_fails_exactly_the_checks_of_its_rule(kind: Any) -> None:
    found = drafter_suite(kind, samples=getattr(kind, "samples", 500)).failures()
    assert set(found) == kind.fails, found
    assert all(": " in said and "\n" not in said for said in found.values())


def test_every_check_can_fail() -> None:
    assert set(DrafterSuite.checks()) == frozenset().union(*(kind.fails for kind in BROKEN))
