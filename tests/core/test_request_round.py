"""One request's round in the making: the nodes that its tokens come from, and errors of finished rounds."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Arm, Decision
from draftwise.core.drafts import Draft, Signals, Verdict
from draftwise.core.outcomes import Outcome, RoundCost
from draftwise.core.request import Request
from draftwise.core.request_round import RequestRound, unfailed
from draftwise.core.round import Round, Seconds
from draftwise.core.sampling import Sampling


@pytest.mark.parametrize(
    ("drafted", "path", "tokens", "nodes"),
    [
        ((5, 6), (0, 1), (5, 6, 7), (-1, 0, 1)),  # all accepted, and the target's own token
        ((5, 6), (0,), (5, 9), (-1, 0)),
        ((5, 6), (0, 1), (5,), (-1,)),  # the text ended within the draft
        ((), (), (5, 6, 7), (-1, 0, 1)),  # an engine wrote more than it verified
        ((5,), (0,), (5, 6, 7, 8), (-1, 0, 1, 2)),
    ],
)
def test_each_token_has_the_node_that_it_comes_from(
    drafted: tuple[int, ...], path: tuple[int, ...], tokens: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    request = Request(0, [1, 2], 2, Sampling(max_new_tokens=50), Random(0), Random(0))
    scores: Any = object()
    turn = RequestRound(request, 2, Decision(0), Arm("a", 2), Draft.chain(drafted), 0.1, scores)
    turn.verdict, turn.tokens = Verdict(path, 9), tokens
    turn.score(RoundCost(0.1, 0.2, 3), timed=True, overlap=False)
    assert turn.record is not None and turn.record.nodes == nodes
    assert turn.record.outcome.accepted == len(path)


def test_rounds_without_an_error_are_given_back_and_an_error_is_raised() -> None:
    kept = {"request": 0, "decision": Decision(0), "arm": Arm("a", 2), "drafted": 0, "accepted": 0}
    sound = Round(**kept, tokens=(1,), sources=0, seconds=Seconds(), done=False)  # type: ignore[arg-type]
    failed = Round(**kept, tokens=(), sources=0, seconds=Seconds(), done=True, error=KeyError("k"))  # type: ignore[arg-type]
    assert unfailed([sound, sound]) == [sound, sound]
    with pytest.raises(KeyError, match="k"):
        unfailed([sound, failed])


def test_a_rewarded_outcome_has_every_other_field() -> None:
    whole = Outcome(
        3, 2, 5, 0.5, True, 0.0, (0.1, 0.2), (Signals(0.5, 0.3, 1.0, 0.5),), RoundCost(0.1, 0.2, 3), 2, 4, 6
    )
    rewarded = whole.rewarded(0.7)
    assert rewarded.reward == 0.7
    for field in fields(Outcome):
        assert field.name == "reward" or getattr(rewarded, field.name) == getattr(whole, field.name)
        assert getattr(whole, field.name) != field.default or field.name == "reward"
