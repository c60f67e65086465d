"""The command as a program of its own, on the bundled models: pipes, signals and exit statuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial

from .conftest import Run

COMMAND = [sys.executable, "-c", "import sys; from draftwise.cli import main; sys.exit(main())"]
ENDLESS = [*COMMAND, "generate", "--raw", "The", "--max-new-tokens", "2000"]
ENDLESS += ["--drafters", "none", "--trials", "off"]  # nothing is timed
PROMPT = "Translate German to English: Ein Hund läuft am Strand."


def test_plain_and_drafted_text_are_the_same(run: Run) -> None:
    ask = ("generate", PROMPT, "--max-new-tokens", "24", "--json", "--device", "cpu")
    plain = json.loads(run(*ask, "--drafters", "none")[1])
    drafted = json.loads(run(*ask, "--policy", "static-5")[1])
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["drafted"] > drafted["stats"]["accepted"], "some guesses must have been wrong"
    assert run(*ask[:4])[1] == plain["text"] + "\n"


def without_stages(text: str) -> str:
    """Without the stages of loading, which a slow machine tells of."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("loading "))


def test_ctrl_c_keeps_the_text_and_exits_130() -> None:
    # a shell's background jobs ignore Ctrl-C, and what they start does too
    usual = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(ENDLESS, stdout=pipe, stderr=pipe, text=True, preexec_fn=usual) as running:
        assert running.stdout
        assert running.stderr
        begun = running.stdout.read(8)
        running.send_signal(signal.SIGINT)
        rest, complaint = running.stdout.read(), running.stderr.read()
    assert running.returncode == 130
    assert len(begun) == 8
    assert rest.endswith("\n")
    assert without_stages(complaint) == ""


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert running.stderr
        running.stdout.read(4)
        running.stdout.close()
        complaint = running.stderr.read()
    assert running.returncode == 1
    assert without_stages(complaint) == ""
