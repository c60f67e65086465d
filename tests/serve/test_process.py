"""The server as a process: signals, a kill, what it prints, and what is missing without its extra."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import draftwise.serve
from draftwise import vllm_config
from draftwise.cli import main
from draftwise.cli.options import ModelOptions
from draftwise.cli.serve import AddressOptions, served_name

from .conftest import MODEL, line

ROOT = Path(__file__).parents[2]
TEXT = line("b", 60)


@contextmanager
def process(state: Path, grace: float) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server of its own and a client for it."""
    command = [sys.executable, "-m", "tests.serve.simulated", str(state), str(grace)]
    pipe: Any = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            assert run.stdout is not None
            found = re.fullmatch(r"serving letters at (http://127\.0\.0\.1:\d+)/v1\n", run.stdout.readline())
            assert found
            with httpx.Client(base_url=found[1], timeout=None, trust_env=False) as client:
                yield run, client
        finally:
            run.kill()


def streamed(client: httpx.Client, run: subprocess.Popen[str], number: int) -> tuple[str, list[Any]]:
    """A text in whose midst the server gets a signal, and its errors."""
    body = {"model": MODEL, "prompt": "ab", "max_tokens": 60, "temperature": 0, "stream": True}
    text, errors, sent = "", [], False
    with client.stream("POST", "/v1/completions", json=body | {"speculative": False}) as answer:
        for row in answer.iter_lines():
            if row.startswith("data: {"):
                chunk = json.loads(row[6:])
                text += "".join(choice["text"] for choice in chunk.get("choices", ()))
                errors += [chunk["error"]] if "error" in chunk else []
                if not sent:
                    run.send_signal(number)
                    sent = True
    return text, errors


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_sigterm_in_mid_stream_finishes_or_cuts_and_saves(tmp_path: Path, grace: float) -> None:
    with process(tmp_path / "state", grace) as (run, client):
        text, errors = streamed(client, run, signal.SIGTERM)
        assert run.wait(60) == -signal.SIGTERM
        _, told = run.communicate()
    if grace:
        assert (text, errors) == (TEXT, [])
    else:
        assert TEXT.startswith(text) and len(text) < 60
        assert [error["code"] for error in errors] == ["server_stopping"]
    (logged,) = [json.loads(row) for row in told.splitlines()]
    assert logged["tokens"] >= len(text) and logged["level"] == "info" and logged["status"] == 200
    assert logged["reason"] == ("ok" if grace else "server_stopping")
    assert json.loads((tmp_path / "state").read_text())["format"] == "draftwise-state"


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(draftwise.serve, "run", raising=False)
    monkeypatch.delitem(sys.modules, "draftwise.serve.run", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "error: draftwise serve needs uvicorn: pip install 'draftwise[serve]'\n"


def test_the_command_for_vllm_has_the_same_drafters_policy_and_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = (
        "--target org/model --drafters ngram,suffix --policy metasd-ucb --state learnt.json --window 900"
    )
    options += " --trust-remote-code --api-key secret --allow-origin https://a.example --print-vllm"
    assert main(["serve", *options.split()]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:3] == ["vllm", "serve", "org/model"] and words[words.index("--max-model-len") + 1] == "900"
    assert "--trust-remote-code" in words and words[words.index("--api-key") + 1] == "secret"
    assert json.loads(words[words.index("--allowed-origins") + 1]) == ["https://a.example"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    state = Path("learnt.json").resolve()
    assert config == vllm_config(drafters=["ngram", "suffix"], policy="metasd-ucb", state=state)


def test_a_folder_is_named_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "Some-Model-1B"
    folder.mkdir()
    for target, name, expected in (
        (f"{folder}/", None, "Some-Model-1B"),
        (str(folder), "mine", "mine"),
        ("zoo:target", None, "zoo:target"),
        ("org/Some-Model-1B", None, "org/Some-Model-1B"),
    ):
        assert served_name(ModelOptions(target=target), AddressOptions(name=name)) == expected
