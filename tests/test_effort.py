"""A quick run draws fewer texts, never more than were asked for."""

from __future__ import annotations

import pytest

from tests import effort


@pytest.mark.parametrize(("n", "quick"), [(1, 1), (60, 60), (300, 300), (700, 300), (3000, 1000)])
def test_few_texts_stay_few(n: int, quick: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "THOROUGH", False)
    assert effort.drawn(n) == quick
    monkeypatch.setattr(effort, "THOROUGH", True)
    assert effort.drawn(n) == n


def test_some_parameters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "THOROUGH", False)
    assert effort.some("abcde", 2) == ["a", "c", "e"]
    monkeypatch.setattr(effort, "THOROUGH", True)
    assert effort.some("abcde", 2) == list("abcde")
