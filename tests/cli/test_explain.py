"""`generate --explain`: why the policy auto chose what it chose."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from draftwise.cli import main
from draftwise.cli.generate import rows
from draftwise.core.arms import Arm, Context
from draftwise.policies.auto.drafts import Candidate, Reason
from draftwise.policies.catalogue import method


def test_a_stretch_says_what_was_played_and_what_each_drafter_promised() -> None:
    arms = (Arm("none", 0), Arm("a", 4))
    reasons = [
        Reason(
            0, 100.0, arms[1], (Candidate(0, 4, 2.0, 0.002, 1.8), Candidate(1, 1, 0.5, 0.001, 0.4)), False
        ),
        Reason(5, 200.0, arms[1], (Candidate(0, 4, 1.0, 0.004, 0.2),), False),
        Reason(20, 50.0, arms[0], (), True),
    ]
    assert list(rows(reasons, ["a", "b"])) == [
        ["0-15", "150", "a:4 x2", "1.5 for 3.0 ms: +1.0", "0.5 for 1.0 ms: +0.4"],
        ["16-31", "50", "off x1", "-", "-"],
    ]


def test_it_goes_to_standard_error_after_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["generate", "la la la la la la", "--drafters", "ngram", "--max-new-tokens", "24"]
    assert main(ask) == 0
    text = capsys.readouterr().out
    assert main([*ask, "--explain", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out == text
    lines = shown.err.strip().splitlines()
    heads = ["tokens", "tokens/s", "played", "ngram (tokens for time: worth in tokens)"]
    assert re.split(r"  +", lines[0]) == heads and lines[1].startswith("0-15")


def test_a_draft_that_is_tried_promises_nothing() -> None:
    arm, tried = Arm("a", 1), Candidate(0, 1, 0.8, 0.0, 2.3, trial=True)
    first = Reason(0, 100.0, arm, (tried,), False)
    assert list(rows([first], ["a"])) == [["0-15", "100", "a:1 x1", "being tried"]]
    then = Reason(1, 100.0, arm, (Candidate(0, 1, 0.8, 0.002, 0.6),), False)
    assert [row[-1] for row in rows([first, then], ["a"])] == ["0.8 for 2.0 ms: +0.6"], "trials are no mean"


def test_the_first_drafts_of_auto_are_trials() -> None:
    """Their price is not known yet, so whatever they promise is no reason."""
    policy: Any = method("auto", ["ngram"]).policy
    policy.passes(1).add(1, 0.01)
    context = Context(hints={"ngram": 3.0}, length=20)
    policy.reasons = []
    policy.choose(context, Random(0))
    ((worth,),) = [reason.candidates for reason in policy.reasons]
    assert worth.trial and worth.seconds == 0.0
