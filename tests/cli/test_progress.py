"""Progress: something at once, the time left, numbers that are never cut, and silence where asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from importlib import import_module

import pytest

from draftwise.cli import show
from draftwise.cli.progress import TimeLeft, clock, hidden, progress, stages, waiting
from draftwise.models.stages import announce

from .conftest import Run, Screen

VERB = import_module("draftwise.cli.progress")


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(VERB, "monotonic", lambda: now[0])
    return now


def test_the_pace_of_a_phase_gives_the_time_left(clockwork: list[float]) -> None:
    pace = TimeLeft()
    assert pace.left("a", 2, 10) is None
    clockwork[0] += 6.0
    assert pace.left("a", 5, 10) == 10.0  # three in six seconds, five to go
    assert pace.left("b", 0, 4) is None, "each phase has a pace of its own"


def test_a_time_left_is_read_at_a_glance() -> None:
    assert clock(None) == "time left: not known yet"
    assert (clock(5.4), clock(3725.0)) == ("0:00:05 left", "1:02:05 left")


def test_elsewhere_than_on_a_terminal_lines_come_now_and_then(
    clockwork: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VERB, "SOON", 0.0)
    with progress("loading models") as tell:
        assert capsys.readouterr().err == "loading models ...\n", "before anything is done"
        for done in range(5):
            clockwork[0] += 4.0
            tell("recording", done, 20)
        tell("recording", 20, 20, 0.0)
    assert capsys.readouterr().err == "recording 2/20; 0:01:12 left\n"


def test_long_stages_of_loading_have_a_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """A timer that a test lets run out."""

        def __init__(self, seconds: float, show_line: Callable[[], None]) -> None:
            self.show_line = show_line

        def start(self) -> None:
            timers.append(self)

        def cancel(self) -> None:
            if self in timers:
                timers.remove(self)

    timers: list[Clock] = []
    monkeypatch.setattr(VERB, "Timer", Clock)
    with stages("loading m"):
        announce("reading m")
        announce("timing layouts")
        announce("timing layouts")
        (timer,) = timers
        timer.show_line()
        announce("compiling")
    assert capsys.readouterr().err == "loading m: timing layouts ...\n" and not timers


def test_stages_pass_a_spinner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with stages("loading m"):
        announce("reading m")
    assert "loading m: reading m ..." in screen.getvalue() or "loading m ..." in screen.getvalue()


@pytest.mark.parametrize("columns", ["40", "80"])
def test_on_a_terminal_numbers_are_never_cut(
    monkeypatch: pytest.MonkeyPatch, clockwork: list[float], columns: str
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress("loading models") as tell:
        shown = screen.getvalue()
        tell("tapout-seq-ucbtuned?reward=blended, multi-turn conversation", 0, 12345)
        clockwork[0] += 2.0
        tell("tapout-seq-ucbtuned?reward=blended, multi-turn conversation", 1, 12345)
        tell("none, qa", 2, 12345, 7.0)
        lines = screen.getvalue()
    assert "loading models" in shown, "before anything is done"
    assert "1/12345 6:51:28 left" in lines and "2/12345 0:00:07 left" in lines
    assert "\x1b[1A" not in lines, "one bar: the cursor never goes up a line"


@pytest.mark.parametrize("silent", ["--json", "--quiet"])
def test_json_and_quiet_show_none(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", Screen())
    with show.to_stderr():
        show.set_level(quiet=silent == "--quiet", verbose=False)
        hidden.set(silent == "--json")
        try:
            with progress("loading models") as tell, waiting("drawing"):
                tell("recording", 1, 2)
        finally:
            hidden.set(False)
    import sys

    assert isinstance(sys.stderr, io.StringIO) and sys.stderr.getvalue() == ""


def test_a_command_with_json_has_no_progress(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VERB, "SOON", 0.0)
    ask = ("simulate", "--policies", "ucb1", "--tokens", "20", "--seeds", "1")
    assert run(*ask)[2] == "simulating ...\n"
    status, out, err = run(*ask, "--json")
    assert (status, err) == (0, "") and json.loads(out)
    assert run(*ask, "--quiet")[2] == ""
    assert run(*ask)[2] == "simulating ...\n", "and the next command has it again"
