"""`generate --explain`: why the policy auto chose what it chose."""

from __future__ import annotations

import pytest

from draftwise.auto.policy import Reason, Worth
from draftwise.cli import main
from draftwise.cli.explain import rows
from draftwise.types import Arm


def test_a_stretch_says_what_was_played_and_what_each_drafter_promised() -> None:
    arms = (Arm("none", 0), Arm("a", 4))
    reasons = [
        Reason(0, 100.0, arms[1], (Worth(0, 4, 2.0, 0.002, 1.8), Worth(1, 1, 0.5, 0.001, 0.4)), False),
        Reason(5, 200.0, arms[1], (Worth(0, 4, 1.0, 0.004, 0.2),), False),
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
    assert main([*ask, "--explain"]) == 0
    shown = capsys.readouterr()
    assert shown.out == text
    lines = shown.err.strip().splitlines()
    assert lines[0].split("\t") == ["tokens", "tokens/s", "played", "ngram"] and lines[1].startswith("0-15")


def test_another_policy_has_no_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "la la", "--drafters", "ngram", "--policy", "ucb1", "--explain"]) == 2
    assert "only the policy auto" in capsys.readouterr().err
