from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from draftwise.testing.distributions import Vector

from .conftest import Models, Run, Screen, after

SHORT = ("chat", "--max-new-tokens", "4")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda lines: monkeypatch.setattr(sys, "stdin", io.StringIO(lines))


def test_lines_are_turns_and_caches_are_kept(models: Models, run: Run, say: Callable[[str], None]) -> None:
    say("a\n\nx\n")
    assert run(*SHORT) == (0, "bcde\n" + "yz a\n", "")
    assert models.opened == 1, "the second turn continues where the first ended"


def test_the_conversation_is_remembered_until_reset(
    models: Models, run: Run, say: Callable[[str], None]
) -> None:
    lengths: list[int] = []

    def watched(history: Sequence[int]) -> Vector:
        lengths.append(len(history))
        return after(1)(history)

    models.distribution = watched
    say("a\na\n/reset\na\n/exit\na\n")
    assert run(*SHORT, "--drafters", "none")[1] == "bcde\n" * 3
    first, second, afresh = lengths[::4]
    assert second > first + 4 and afresh == first and models.opened == 2


def test_json_lines(models: Models, run: Run, say: Callable[[str], None]) -> None:
    say("a\nx\n")
    rows = [json.loads(line) for line in run(*SHORT, "--json")[1].splitlines()]
    assert [row["text"] for row in rows] == ["bcde", "yz a"]
    assert rows[0]["stats"]["tokens"] == 4


def test_a_script_is_told_of_a_mistake(models: Models, run: Run, say: Callable[[str], None]) -> None:
    say("a\n/rset\nx\n")
    status, out, err = run(*SHORT)
    assert (status, out) == (2, "bcde\n")
    assert err.startswith("error: unknown command /rset")


def test_a_person_goes_on_after_a_mistake(
    models: Models,
    on_terminal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Screen("/rset\n" + "a" * 500 + "\nx\n"))
    shown = on_terminal(*SHORT, "--drafters", "none")
    assert "yz a" in shown
    errors = capsys.readouterr().err.splitlines()
    assert [line[:22] for line in errors] == ["error: unknown command", "error: the prompt has "]


def test_ctrl_c_ends_an_answer_not_the_conversation(
    models: Models, on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def impatient(history: Sequence[int]) -> Vector:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return after(1)(history)

    models.distribution = impatient
    monkeypatch.setattr(sys, "stdin", Screen("a\nx\n"))
    shown = on_terminal(*SHORT, "--drafters", "none")
    assert "bc\n" in shown
    assert "yz a\n" in shown


def test_ctrl_c_at_the_prompt_drops_the_line_and_not_the_conversation(
    models: Models, on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: Iterator[str | BaseException] = iter(["a", KeyboardInterrupt(), "x"])

    def read(prompt: str) -> str:
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sys, "stdin", Screen())
    shown = on_terminal(*SHORT, "--drafters", "none")
    assert "yz a\n" in shown and models.opened == 1
    assert shown.count("/exit or Ctrl-D leaves") == 2, "what leaves is said again"


def test_ctrl_c_between_piped_turns_ends_the_command(
    models: Models, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", read)
    assert run(*SHORT)[:2] == (130, "")


def test_a_spinner_turns_while_a_message_is_read(
    models: Models, run: Run, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    @contextmanager
    def waiting(what: str) -> Iterator[None]:
        yield
        steps.append(what)

    monkeypatch.setattr("draftwise.cli.generate.waiting", waiting)
    say("a\nx\n")
    assert run(*SHORT)[1] == "bcde\nyz a\n"
    assert steps == ["prefill", "prefill"]


def test_the_legend_breaks_between_drafters(
    models: Models, on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "25")
    monkeypatch.setattr(sys, "stdin", Screen(""))
    shown = on_terminal(*SHORT, "--drafters", "zoo:general,ngram", "--policy", "ucb1")
    assert "■ zoo:general  ■ ngram\n□ target\n" in shown
