"""The contract's docstrings: every method says who calls it, and the examples run."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import math
import re
from random import Random
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import pytest

import draftwise
from draftwise.core import arms, constraint, drafts, outcomes, request, roles, target
from draftwise.core import round as rounds
from draftwise.core.drafter_pool import DrafterPool
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.testing import target as sim_target
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

V = 8
MODULES = (target, roles, constraint, sim_target)
PROTOCOLS = [
    kind for kind in vars(roles).values() if getattr(kind, "_is_protocol", False) and kind is not Protocol
]
METHODS = [
    (kind, name)
    for kind in PROTOCOLS
    for name, found in vars(kind).items()
    if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property))
]


def world() -> dict[str, Any]:
    """The names that the examples use."""
    counting = markov(np.roll(np.eye(V), 1, axis=1) * 0.92 + 0.01)
    text = request.Request(0, [0, 1, 2], 1, draftwise.Sampling(), Random(0), Random(0))
    sim = SimDrafter(counting)
    chosen = BanditPolicy((draftwise.Arm("sim", 4),), Fixed)
    graders = DrafterPool({"sim": sim}, vocab_size=V, max_faults=3)
    kinds = {
        name: found
        for module in (roles, arms, drafts, outcomes, request)
        for name, found in vars(module).items()
        if name[0] != "_"
    }
    return (
        kinds
        | {
            "accept": draftwise.accept,
            "markov": markov,
            "math": math,
            "method": method,
            "Random": Random,
            "SimTarget": SimTarget,
            "SimDrafter": SimDrafter,
        }
        | {"counting": counting, "request": text, "drafter": sim, "policy": chosen, "graders": graders}
        | {"lookup": NgramDrafter()}
        | {"target": SimTarget(counting, V), "recorder": Bandit(reward("accepted"), 4)}
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_examples_run(module: ModuleType) -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    tests = [t for t in finder.find(module, extraglobs=world()) if t.examples]
    assert tests
    for test in tests:
        test.globs = world()  # each example starts again
        assert runner.run(test).failed == 0


def test_every_method_of_a_role_says_who_calls_it() -> None:
    for kind, name in METHODS:
        doc = inspect.getdoc(vars(kind)[name]) or ""
        assert doc and ("Called" in doc or kind is roles.Graders), f"{kind.__name__}.{name}"  # a recorder


TYPES = [
    *(getattr(arms, name) for name in ("Stop", "Arm", "Context", "Decision")),
    *(getattr(drafts, name) for name in ("Signals", "Draft", "Verdict", "Job")),
    *(getattr(outcomes, name) for name in ("RoundCost", "Outcome", "Window", "Grade", "Feedback")),
    request.Request,
    rounds.Round,
]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_that_a_plug_in_sees_is_explained(kind: Any) -> None:
    told = re.findall(r"^    (\w+): \S", inspect.getdoc(kind) or "", flags=re.M)
    assert told == [field.name for field in dataclasses.fields(kind) if field.name != "drawn"]
