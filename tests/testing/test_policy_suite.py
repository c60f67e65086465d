"""The suite for policies: sound ones pass, and every check fails for the policy that breaks its rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from draftwise import registry
from draftwise.policies.catalogue import Method, method
from draftwise.testing import PolicySuite, policy_suite
from tests.effort import some
from tests.testing.broken_policies import BROKEN, Sound, of

TestSound = policy_suite(partial(of, Sound))
FILES = {"disco", "router", "specdecpp"}  # need a classifier's file
NAMES = sorted(set(registry.names("policies")) - FILES)


@pytest.mark.parametrize("kind", some(BROKEN, 4), ids=lambda kind: kind.__name__)
def test_a_broken_policy_fails_exactly_the_checks_of_its_rule(kind: Any) -> None:
    found = policy_suite(partial(of, kind), samples=400).failures()
    assert set(found) == kind.fails, found
    assert all(": " in said and "\n" not in said for said in found.values())


def test_every_check_can_fail() -> None:
    assert set(PolicySuite.checks()) == frozenset().union(*(kind.fails for kind in BROKEN))


@pytest.mark.parametrize("name", some(NAMES, 6))
def test_every_policy_by_name_passes(name: str) -> None:
    """The distribution with more texts: tests/policies/test_catalogue.py."""
    assert not policy_suite(partial(_named, name), measures=name == "auto", samples=300).failures()


def _named(name: str, drafters: Sequence[str]) -> Method:
    return method(name, drafters)
