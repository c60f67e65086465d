"""Every number that a policy takes is refused in one line, or plays without a fault."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from draftwise import Loop, Sampling, registry
from draftwise.errors import UserError
from draftwise.policies.arms import LONGEST
from draftwise.policies.catalogue import method
from draftwise.testing import SimDrafter, SimTarget
from draftwise.testing.distributions import Distribution
from tests.effort import some

SIZE = 6
WHOLE = ("-2", "-1", "0", "1", "2", str(LONGEST), str(LONGEST + 1), str(10**9))
REAL = ("-1e9", "-1.5", "-0.5", "0", "0.5", "1", "1.5", "1e9", "1e300")
ELSEWHERE = {"draft-all", "router", "disco", "specdecpp"}  # need drafters or files of their own


def numbers() -> Iterator[str]:
    """Every numeric option of every policy, at values within its range and outside."""
    for name in registry.names("policies"):
        for option, parameter in registry.options_of(registry.load("policies", name)).items():
            if name not in ELSEWHERE and type(parameter.default) in (int, float):
                for value in WHOLE if type(parameter.default) is int else REAL:
                    yield f"{name}?{option}={value}"


def table(seed: int) -> Distribution:
    logits = np.random.default_rng(seed).normal(size=(SIZE, SIZE)) * 2.0
    return lambda tokens: logits[tokens[-1]]


@pytest.mark.parametrize("spec", some([*numbers()], 5))
def test_a_number_is_refused_in_one_line_or_plays(spec: str) -> None:
    drafters = {"bad": SimDrafter(table(9)), "good": SimDrafter(table(1))}
    try:
        made = method(spec, [*drafters])
    except UserError as error:
        assert "\n" not in str(error) and spec.partition("?")[2].partition("=")[0] in str(error)
        return
    loop = Loop(SimTarget(table(1), SIZE), drafters, made.policy, made.recorder)
    request = loop.add([0, 1, 2, 3], Sampling(max_new_tokens=40, temperature=1.0))
    while loop.open:
        for round in loop.step():
            assert not round.fault and not (chance := round.decision.propensity) <= 0.0, chance
            assert not chance > 1.0 + 1e-9, "NaN where it is not known"
    assert request.position == 40


@pytest.mark.parametrize("stop", ["confidence(", "confidence()", "confidence(nan)", "svip(inf)", "svip(0.6"])
def test_a_threshold_is_a_number_in_brackets(stop: str) -> None:
    with pytest.raises(UserError, match=r"the threshold is not a number; write svip\(0.6\)"):
        method(f"static?stop={stop}", ["good"])
