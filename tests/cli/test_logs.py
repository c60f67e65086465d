"""--quiet, --verbose and the logger `draftwise`."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest

from draftwise.cli import main, show
from draftwise.errors import DraftwiseWarning

from .conftest import Models, Run, Screen

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
    from draftwise.cli import lists

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
