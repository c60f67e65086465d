"""A decoder keeps what it learns: after every text, and never at a text's cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwise import Decoder, method
from draftwise.cli import main
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.state.file import StateFile
from draftwise.targets.hf import HFTarget

Make = Callable[..., Decoder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learnt.json"


@pytest.fixture
def make(decoder: Any, path: Path) -> Make:
    """A decoder that is new but for its models, with a state file."""

    def make(*, target: str = "t") -> Decoder:
        team: dict[str, Any] = {"ngram": NgramDrafter(), "suffix": SuffixDrafter()}
        chosen = method("ucb1", list(team))
        known = {name: name for name in team}
        file = StateFile(path, chosen.policy, name="ucb1", target=target, drafters=known)
        return Decoder(decoder.loop.target, team, chosen, decoder.tokenizer, eos=decoder.eos, state=file)

    return make


def rounds(path: Path) -> float:
    """Rounds that the file knows of."""
    return float(sum(json.loads(path.read_text())["numbers"]["shared"]["pulls"]))


def test_every_finished_text_is_saved(make: Make, path: Path) -> None:
    dec = make()
    dec.generate("One two three", max_new_tokens=4)
    counts = [rounds(path)]
    dec.generate_many(["One two", "Three four five", "Six"], batch=2, max_new_tokens=4)
    counts.append(rounds(path))
    list(dec.stream("Seven", max_new_tokens=4))
    counts.append(rounds(path))
    chat = dec.chat()
    list(chat.send("Eight", max_new_tokens=3))
    chat.close()
    counts.append(rounds(path))
    assert counts[0] > 0
    assert counts == sorted(set(counts)), "each adds to what the one before had learned"


def test_texts_of_a_long_run_are_saved_as_they_end(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dec, saved = make(), list[bool]()
    add = dec.loop.add

    def begin(*args: Any, **settings: Any) -> Any:
        saved.append(path.exists())
        return add(*args, **settings)

    monkeypatch.setattr(dec.loop, "add", begin)
    outputs = dec.generate_many(["One two", "Three four", "Five six"], batch=1, max_new_tokens=3)
    assert len(outputs) == 3
    assert saved == [False, True, True]


def test_a_text_left_early_is_saved_too(make: Make, path: Path) -> None:
    pieces = make().stream("One two three", max_new_tokens=40)
    next(pieces)
    assert not path.exists()
    pieces.close()
    assert rounds(path) > 0


# -- the command line ------------------------------------------------------------------------------------

ASK = ("generate", "One two one two", "--max-new-tokens", "6", "--device", "cpu")


def test_the_second_run_starts_from_what_the_first_learnt(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = (*ASK, "--drafters", "ngram,suffix", "--policy", "ucb1", "--state", str(path))
    assert main(ask) == 0
    first = rounds(path)
    assert main(ask) == 0
    assert rounds(path) > first > 0
    assert main((*ask[:-4], "--policy", "ucb1?length=3", *ask[-2:])) == 0
    shown = capsys.readouterr()
    assert len(set(shown.out.splitlines())) == 1, "the text does not depend on what was learned"
    assert f"warning: state file {path} is not used: it was made with the policy 'ucb1'" in shown.err
    assert shown.err.count("warning") == 1


def test_a_path_out_of_reach_is_bad_input_before_any_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("draftwise.build.build_target", load)
    assert main((*ASK, "--state", str(tmp_path / "nowhere" / "s.json"))) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: state file {tmp_path}/nowhere/s.json would be in")
    assert shown.err.count("\n") == 1
    with pytest.raises(AssertionError, match="a model is loaded"):
        main((*ASK, "--state", str(tmp_path / "s.json")))


def test_a_policy_that_keeps_nothing_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*ASK, "--drafters", "ngram", "--policy", "static-3", "--state", str(path))) == 0
    said = f"warning: state file {path} is not used: the policy 'static-3' keeps nothing from text to text; "
    assert capsys.readouterr().err == said + "name one that does, or leave the file out\n"
    assert not path.exists()


def test_what_is_to_be_learned_late_is_saved(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is open, and the pass in which the policy would learn from its last round has not begun."""
    monkeypatch.setattr(HFTarget, "is_asynchronous", True)
    dec = make()
    pieces = dec.stream("One two three", max_new_tokens=40)
    next(pieces)
    assert dec.loop.barrier.lessons
    dec._keep()
    assert not dec.loop.barrier.lessons and rounds(path) >= 1
    pieces.close()
