from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

from .conftest import Models, Result

Run = Callable[..., Result]


def test_bare_command_shows_its_verbs(run: Run) -> None:
    status, out, _ = run()
    assert status == 0
    for verb in ("demo", "generate", "chat", "models", "drafters", "policies", "datastore"):
        assert verb in out


def test_help_and_lists_of_models_load_nothing_heavy() -> None:
    code = (
        "import sys; from draftwise.cli import main; main(['--help']); main(['models']);"
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"draftwise {version('draftwise')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["write"], "'write'"),
        (["generate"], "prompt"),
        (["generate", "a", "--seed", "x"], "--seed"),
        (["generate", "a", "--beams", "4"], "--beams"),
        (["generate", " \n"], "empty"),
        (["generate", "a", "-n", "0"], "--samples 0"),
        (["generate", "a", "--target", "nowhere"], "'nowhere'"),
        (["generate", "a", "--drafters", "ngram,,suffix"], "'ngram,,suffix'"),
        (["generate", "a", "--policy", "guess"], "'guess'"),
        (["generate", "a", "--temperature", "nan"], "temperature"),
        (["generate", "a", "--max-new-tokens", "-3"], "-3"),
        (["generate", "a", "--stop", ""], "stop string"),
        (["generate", "a" * 500], "500"),
        (["demo", "--prompts", "0"], "--prompts 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    models: Models, run: Run, arguments: list[str], named: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err
    assert ":" in err[7:] or ";" in err, "the line must say what to do"


def test_python_errors_are_not_hidden(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(history: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(models, "law", broken)
    with pytest.raises(ZeroDivisionError):
        run("generate", "a")


def test_ctrl_c_while_loading(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwise import Decoder

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "from_pretrained", interrupted)
    assert run("generate", "a")[0] == 130
