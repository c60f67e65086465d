"""Names that the shell completes: policies, drafters, models and verbs."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise import registry
from draftwise.models.zoo import list_zoo


def policy_name(incomplete: str) -> list[str]:
    """Policies that begin with this text."""
    return _begin(registry.names("policies"), incomplete)


def policy_names(incomplete: str) -> list[str]:
    """The text with its last policy completed."""
    return _last(registry.names("policies"), incomplete)


def drafter_name(incomplete: str) -> list[str]:
    """Drafters that begin with this text."""
    return _begin(registry.names("drafters"), incomplete)


def drafter_names(incomplete: str) -> list[str]:
    """The text with its last drafter completed; a model is a drafter too."""
    return _last([*registry.names("drafters"), *_zoo()], incomplete)


def model_name(incomplete: str) -> list[str]:
    """Bundled models that begin with this text."""
    return _begin(_zoo(), incomplete)


def _zoo() -> list[str]:
    return [model.name for model in list_zoo()]


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _last(names: Iterable[str], incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _begin(names, last)]
