"""Earlier names work for one version, and warn with the present one."""

from __future__ import annotations

from random import Random

import pytest

from draftwise import plugins
from draftwise.core.arms import Arm, Context
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Outcome
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.policies.catalogue import method
from draftwise.testing.distributions import markov
from draftwise.testing.target import SimTarget
from tests.core.test_loop import P, V, good


@pytest.mark.parametrize(
    ("earlier", "present"), [("Spent", "RoundCost"), ("Seen", "RoundRecord"), ("Masker", "TokenMask")]
)
def test_a_plug_in_may_import_an_earlier_name(earlier: str, present: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"`{earlier}` is now `{present}`"):
        assert getattr(plugins, earlier) is getattr(plugins, present)


def test_fields_may_be_read_and_set_by_an_earlier_name() -> None:
    request = Request(0, [1, 2], 1, Sampling(max_new_tokens=9), Random(0), Random(0))
    with pytest.warns(DeprecationWarning) as warnings:
        assert (request.room, request.out, request.waits) == (8, set(), frozenset())
        request.longest = 3
        assert (request.max_draft, Job(request, 1).picked, Job(request, 1).guide) == (3, False, None)
        assert Context(remaining=4.0).room == 4.0 and Outcome(0, 1, 2).spent is None
    assert len(warnings) == 8 and warnings[0].filename == __file__


def test_a_loop_takes_earlier_arguments() -> None:
    chosen = method("static-3", ["good"])
    with pytest.warns(DeprecationWarning, match="`strikes` is now `max_faults`"):
        loop = Loop(SimTarget(markov(P), V), {"good": good()}, chosen.policy, chosen.recorder, strikes=1)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="`longest` is now `max_draft`"):
        assert loop.add([0], arm=Arm("good", 2), longest=1).max_draft == 1  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="`team` is now `pool`"):
        assert loop.team.max_faults == 1
