"""Which processors are factories: those that nobody could call with token ids and scores."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from draftwise.generation.settings import own_processors


class Module(torch.nn.Module):
    """A processor whose arguments are those of `forward`."""

    def forward(self, ids: Any, scores: Any) -> Any:
        return scores


class Scaled:
    """A processor with settings."""

    def __init__(self, by: float = 1.0, after: int = 0) -> None:
        self.by, self.after = by, after

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores * self.by


def passed_on(call: Any) -> Any:
    """A decorator that does not say what it wraps."""

    def wrapper(*given: Any, **named: Any) -> Any:
        return call(*given, **named)

    return wrapper


def weighed(ids: Any, scores: Any, weight: float = 1.0) -> Any:
    return scores * weight


PROCESSORS = {
    "module": Module(),
    "object": Scaled(),
    "function": weighed,
    "partial": functools.partial(weighed, weight=2.0),
    "decorated": passed_on(weighed),
    "any arguments": lambda *given: given[1],
    "defaults": lambda ids=None, scores=None: scores,
}
FACTORIES = {
    "class": Scaled,
    "no arguments": lambda: Scaled(2.0),
    "one default": lambda by=2.0: Scaled(by),
    "partial of a class": functools.partial(Scaled, 2.0),
    "partial by name": functools.partial(Scaled, after=1),
    "partial of a function": functools.partial(lambda by: Scaled(by), 2.0),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_is_used_as_it_is(name: str) -> None:
    given = PROCESSORS[name]
    assert own_processors([given], alone=True) == (given,)
    (copied,) = own_processors([given], alone=False)
    assert type(copied) is type(given)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_one_for_each_text(name: str) -> None:
    first, second = own_processors([FACTORIES[name]] * 2, alone=True)
    assert type(first) is type(second) is Scaled and first is not second
