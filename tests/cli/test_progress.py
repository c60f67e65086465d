"""What a command tells of itself: progress, --quiet, --verbose and the logger `draftwise`."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module

import pytest

from draftwise.cli import lists, main, show
from draftwise.cli.progress import TimeLeft, hidden, progress, stages, waiting
from draftwise.errors import DraftwiseWarning
from draftwise.models.stages import announce

from .conftest import Models, Run, Screen

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
    assert pace.left("a", 0, 10) is None, "it begins again"
    clockwork[0] += 2.0
    assert pace.left("a", 1, 10) == 18.0


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
    assert isinstance(sys.stderr, io.StringIO) and sys.stderr.getvalue() == ""


def test_a_command_with_json_has_no_progress(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VERB, "SOON", 0.0)
    ask = ("simulate", "--policies", "ucb1", "--tokens", "20", "--seeds", "1")
    assert run(*ask)[2] == "simulating ...\n"
    status, out, err = run(*ask, "--json")
    assert (status, err) == (0, "") and json.loads(out)
    assert run(*ask, "--quiet")[2] == ""
    assert run(*ask)[2] == "simulating ...\n", "and the next command has it again"


# -- logs ---------------------------------------------------------------------------------------------------

ASK = ("generate", "a", "--max-new-tokens", "6")


def test_verbose_says_what_was_decided_before_the_verb_and_after_it(models: Models, run: Run) -> None:
    quietly = run(*ASK)
    assert quietly[2] == ""
    for command in (("--verbose", *ASK), (*ASK, "--verbose"), (*ASK, "-v")):
        status, out, err = run(*command)
        assert (status, out) == quietly[:2]
        assert "info: request: 6 tokens in " in err and "; arms: " in err
        assert "6 tokens in" in err.splitlines()[-1], "the closing line"
    assert run(*ASK) == quietly, "and the next command is as it was"


def test_on_a_terminal_a_record_does_not_continue_the_line_of_the_text(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        assert main([*ASK, "--verbose"]) == 0
    lines = screen.getvalue().splitlines()
    said = [n for n, line in enumerate(lines) if line.startswith("info: request: 6 tokens in ")]
    assert len(said) == 1 and lines[said[0] - 1].endswith("bcdefg"), lines
    assert "" not in lines, "and its line is ended once"


def test_warnings_are_lines_and_quiet_leaves_them_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned() -> list[object]:
        warnings.warn("beware", DraftwiseWarning, stacklevel=1)
        return []

    monkeypatch.setattr(lists, "list_zoo", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("models")[2] == "warning: beware\n"
        assert run("models", "--quiet")[2] == ""
        assert run("--quiet", "models")[2] == ""


def test_the_logger_is_left_as_it_was(run: Run) -> None:
    before = show.LOG.level, list(show.LOG.handlers), warnings.showwarning
    run("models", "--verbose")
    assert (show.LOG.level, list(show.LOG.handlers), warnings.showwarning) == before


def test_a_program_that_imports_the_library_hears_nothing_unless_it_asks() -> None:
    code = (
        "import logging, draftwise; log = logging.getLogger('draftwise.models.load');"
        "log.warning('unheard'); logging.basicConfig(level=logging.INFO); log.info('heard')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "INFO:draftwise.models.load:heard\n"


def test_loading_packing_and_probing_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    from draftwise import Decoder

    caplog.set_level(logging.INFO, logger="draftwise")
    Decoder.from_pretrained("zoo:general", drafters=["ngram"], pack=False)
    Decoder.from_pretrained("zoo:general", drafters=["ngram"], pack=True)
    said = caplog.text
    assert "loaded zoo:general: " in said and "M parameters, torch.float32 on cpu, in " in said
    assert "linear layers packed (onednn 2); 5 fused to 2 (pack=True)" in said or "columns 2); 5" in said
    assert "reads batches in one pass" in said
    assert "policy auto over drafters ngram" in said
