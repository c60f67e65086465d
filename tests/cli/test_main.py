"""The command line as a whole: what is refused, Ctrl-C, and the command as a program of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftwise import UserError

from .conftest import Models, Refused, Run


def test_bare_command_shows_its_verbs(run: Run) -> None:
    status, out, _ = run()
    assert status == 0
    for verb in ("demo", "generate", "chat", "models", "drafters", "policies", "datastore"):
        assert verb in out


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"draftwise {version('draftwise')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["write"], "'write'"),
        (["generate"], "prompt"),
        (["generate", "a", "--seed", "x"], "--seed"),
        (["generate", "a", "--temperature", "hot"], "'hot'"),
        (["generate", "a", "--beams", "4"], "--beams"),
        (["generate", " \n"], "empty"),
        (["generate", "a", "-n", "0"], "--samples"),
        (["generate", "a", "--drafters", "ngram,,suffix"], "'ngram,,suffix'"),
        (["generate", "a", "--policy", "guess"], "'guess'"),
        (["generate", "a", "--policy", ""], "--policy is empty"),
        (["generate", "a", "--drafters", " "], "--drafters is empty"),
        (["bench", "--policies", "", "--out", "x"], "no policy is named"),
        (["bench", "--policies", "autoo", "--out", "x"], "did you mean auto?"),
        (["bench", "--drafters", "", "--out", "x"], "--drafters is empty"),
        (["trace", "--drafters", "", "--out", "x"], "--drafters is empty"),
        (["generate", "a", "--max-new-tokens", "-3"], "-3"),
        (["demo", "--prompts", "0"], "--prompts"),
        (["generate", "a", "--temperature", "nan"], "temperature=nan"),
        (["generate", "a", "--stop", ""], "stop string"),
        (["generate", "a", "--explain", "--policy", "static-4"], "--explain: only the policy auto"),
        (["generate", "a", "--policy", "ucb1?nope=1"], "no option 'nope'"),
        (["generate", "a", "-n", "1000000"], "--samples"),
        (["chat", "--top-p", "0"], "top_p=0"),
        (["demo", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["serve", "--print-vllm", "--batch", "-1"], "batch=-1: give 1 or more texts"),
        (["serve", "--batch", "0"], "batch=0"),
        (["serve", "--queue", "-1"], "queue=-1"),
        (["serve", "--timeout", "nan"], "timeout=nan"),
        (["serve", "--grace", "-2"], "grace=-2"),
        (["serve", "--host", "256.1.1.1"], "256.1.1.1"),
        (["serve", "--host", "a" * 70], "label too long"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--api-key", "secret\n"], "white space at an end"),
        (["serve", "--print-vllm", "--exact"], "vLLM has VLLM_BATCH_INVARIANT=1 for this"),
        (["serve", "--print-grafana", "--window", "-5"], "window=-5"),
        (["bench", "--peers", ",", "--out", "x"], "--peers ',' has an empty name"),
        (
            ["datastore", "build", "x.txt", "--tokenizer", "x", "--out", "/dev/null/x"],
            "/dev/null is no folder",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2_before_a_model_is_loaded(
    models: Models, refused: Refused, arguments: list[str], named: str
) -> None:
    err = refused(*arguments)
    assert named in err and not models.asked
    assert ":" in err[7:] or ";" in err, "the line must say what to do"


def test_what_only_a_model_can_refuse_is_one_line_too(models: Models, refused: Refused) -> None:
    assert "'nowhere'" in refused("generate", "a", "--target", "nowhere")
    assert "500" in refused("generate", "a" * 500)


def test_compile_says_that_there_is_nothing_to_compile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a GGUF file and lookups."""
    monkeypatch.setattr("draftwise.Decoder.from_pretrained", lambda *_, **__: SimpleNamespace(compiled={}))
    assert run("compile")[:2] == (0, "nothing to compile: PyTorch runs none of these models\n")
    assert run("compile", "--json")[:2] == (0, "{}\n")


@pytest.mark.parametrize(
    "arguments",
    [["generate", "caf\udce9"], ["generate", "a", "--stop", "\udce9"], ["models", "\udce9" * 500]],
)
def test_an_argument_that_is_not_utf_8_is_told(
    models: Models, refused: Refused, arguments: list[str]
) -> None:
    """A shell hands its bytes on, which Python shows as lone surrogates."""
    err = refused(*arguments)
    assert "an argument has half a character (U+DCE9): repair its encoding" in err and err.isascii()


@pytest.mark.parametrize("handler", ["strict", "surrogateescape"])
@pytest.mark.parametrize("arguments", [["generate", "-"], ["chat"]])
def test_standard_input_that_is_not_utf_8_is_told(
    models: Models, refused: Refused, monkeypatch: pytest.MonkeyPatch, arguments: list[str], handler: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors=handler)
    monkeypatch.setattr(sys, "stdin", stream)
    said = "is not UTF-8 text" if handler == "strict" else "has half a character"
    assert f"standard input {said}" in refused(*arguments)


def test_ctrl_c_while_the_command_line_itself_is_read(tmp_path: Path) -> None:
    """Its imports take a third of a second; whoever interrupts them meets no traceback."""
    package = tmp_path / "typer"
    package.mkdir()
    (package / "__init__.py").write_text("raise KeyboardInterrupt")
    code = "import sys; from draftwise.cli import main; sys.exit(main(['models']))"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_python_errors_are_not_hidden(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(history: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(models, "distribution", broken)
    with pytest.raises(ZeroDivisionError):
        run("generate", "a")


@pytest.mark.parametrize("samples", ["1", "2"])
def test_a_text_that_cannot_be_written_is_one_line(models: Models, refused: Refused, samples: str) -> None:
    def fails(history: object) -> None:
        raise UserError("no token can be chosen")

    models.distribution = fails  # type: ignore[assignment]
    assert "no token can be chosen" in refused("generate", "a", "--json", "--samples", samples)


def test_ctrl_c_while_loading(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwise import Decoder

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "from_specs", interrupted)
    assert run("generate", "a")[0] == 130


def test_ctrl_c_leaves_what_thread_pools_have_queued() -> None:
    """As PyTorch's compiler queues files: the exit of Python would compile them all."""
    code = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from draftwise.cli import app, main

begun, going = threading.Event(), threading.Event()
def interrupted(_):
    pool = ThreadPoolExecutor(1)
    pool.submit(lambda: (begun.set(), going.wait(), print("first")))
    pool.submit(print, "second")
    begun.wait()
    raise KeyboardInterrupt
app.run = interrupted
status = main(["bench"])
going.set()
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "first\n", "")


# -- on the bundled models --------------------------------------------------------------------------------

ENDLESS = [sys.executable, "-c", "import sys; from draftwise.cli import main; sys.exit(main())"]
ENDLESS += ["generate", "--raw", "The", "--max-new-tokens", "2000"]
ENDLESS += ["--drafters", "none", "--trials", "off"]  # nothing is timed
PROMPT = "Translate German to English: Ein Hund läuft am Strand."


def test_plain_and_drafted_text_are_the_same(run: Run) -> None:
    ask = ("generate", PROMPT, "--max-new-tokens", "24", "--json", "--device", "cpu")
    plain = json.loads(run(*ask, "--drafters", "none")[1])
    drafted = json.loads(run(*ask, "--policy", "static-5")[1])
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["drafted"] > drafted["stats"]["accepted"], "some guesses must have been wrong"
    assert run(*ask[:4])[1] == plain["text"] + "\n"


@pytest.mark.parametrize("reader_leaves", [False, True])
def test_ctrl_c_keeps_the_text_and_a_reader_that_leaves_early_is_no_error(reader_leaves: bool) -> None:
    # A shell's background jobs ignore Ctrl-C, and what they start does too.
    usual = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(ENDLESS, stdout=pipe, stderr=pipe, text=True, preexec_fn=usual) as running:
        assert running.stdout and running.stderr
        assert len(running.stdout.read(8)) == 8
        if reader_leaves:
            running.stdout.close()
        else:
            running.send_signal(signal.SIGINT)
            assert running.stdout.read().endswith("\n")
        told = running.stderr.read().splitlines()
    assert running.returncode == (1 if reader_leaves else 130)
    assert [line for line in told if not line.startswith("loading ")] == []  # which a slow machine tells of
