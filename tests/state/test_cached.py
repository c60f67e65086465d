"""The state that nobody names: what earlier texts taught is there for the next, and never in the way."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import draftwise
from draftwise import Decoder
from draftwise.core.drafts import Draft
from draftwise.errors import UserError
from draftwise.state import cached
from draftwise.state.cached import MOST, VARIABLE, CachedState

Make = Callable[..., Decoder]
PROMPT = "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and the variable of the environment as users have it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE)
    yield tmp_path / "draftwise" / "learned"
    gc.collect()


@pytest.fixture
def make(plain_model: Any, tokenizer: Any) -> Make:
    """A decoder of a model that is loaded already."""

    def make(drafters: Any = ("ngram",), policy: str = "auto", **options: Any) -> Decoder:
        given = {"tokenizer": tokenizer, "probe": False} | options
        return Decoder.from_pretrained(plain_model, drafters=list(drafters), policy=policy, **given)

    return make


def text(dec: Decoder) -> tuple[int, ...]:
    return tuple(dec.generate(PROMPT, max_new_tokens=12, temperature=0, eos=()).token_ids)


def seen_tokens(dec: Decoder) -> float:
    policy: Any = dec.loop.policy
    return float(sum(one.seen for one in policy.acceptance))


def test_a_second_process_begins_with_what_the_first_has_learned(folder: Path, make: Make) -> None:
    first = make()
    assert seen_tokens(first) == 0.0
    expected = text(first)
    assert isinstance(first.state, CachedState)
    first.state.close()
    second = make()
    assert seen_tokens(second) > 0.0
    assert any(price.has_readings for price in second.loop.policy.pass_prices)  # type: ignore[attr-defined]
    assert text(second) == expected
    assert seen_tokens(make(["ngram", "suffix"])) == 0.0  # other drafters, another file
    assert seen_tokens(make(compile="off")) == 0.0  # passes of another kind, another file
    assert len(list(folder.glob("*.json"))) == 1  # a file is written where something was learned


def test_it_is_written_when_the_decoder_goes(folder: Path, make: Make) -> None:
    dec = make()
    text(dec)
    written = {file: file.read_bytes() for file in folder.glob("*.json")}
    text(dec)
    assert {file: file.read_bytes() for file in folder.glob("*.json")} == written  # not after every text
    del dec
    gc.collect()
    assert {file: file.read_bytes() for file in folder.glob("*.json")} != written


@pytest.mark.parametrize("state", [None, "off"])
def test_nothing_is_kept_where_that_was_asked_or_of_other_policies(
    folder: Path, state: str | None, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    dec = make(state=state)
    text(dec)
    assert dec.state is None
    assert make(policy="ucb1").state is None
    monkeypatch.setenv(VARIABLE, "off")
    assert make().state is None
    assert not folder.exists()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("content", [b"{", b'{"format": "draftwise-state", "version": 0}'])
def test_a_damaged_file_is_replaced_in_silence(folder: Path, content: bytes, make: Make) -> None:
    dec = make()
    expected = text(dec)
    assert dec.state is not None
    dec.state.close()
    (file,) = folder.glob("*.json")
    file.write_bytes(content)
    again = make()
    assert seen_tokens(again) == 0.0 and text(again) == expected
    assert again.state is not None
    again.state.close()
    assert json.loads(file.read_text())["policy"] == "auto"


@pytest.mark.filterwarnings("error")
def test_a_cache_that_cannot_be_used_costs_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    dec = make()
    assert dec.state is None and len(text(dec)) == 12


@pytest.mark.filterwarnings("error")
def test_a_disk_that_fills_up_costs_no_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    dec = make()
    monkeypatch.setattr("draftwise.state.file._replace", full)
    assert len(text(dec)) == 12


def test_a_state_that_promises_everything_changes_no_text(folder: Path, make: Make) -> None:
    """The file says that a drafter which is always wrong was always right: the text is the target's own."""
    plain = text(make((), "none", state="off"))
    dec = make([Wrong(plain)])
    assert text(dec) == plain
    policy: Any = dec.loop.policy
    for acceptance in policy.acceptance:
        acceptance.accepted = [list(counts) for counts in acceptance.tested]
    assert isinstance(dec.state, CachedState)
    dec.state.due = True
    dec.state.close()
    again = make([Wrong(plain)])
    assert again.loop.policy.acceptance[0].mean > 0.75  # type: ignore[attr-defined]
    assert text(again) == plain


class Wrong:
    """Drafts tokens that the target never writes here."""

    def __init__(self, text: tuple[int, ...]) -> None:
        self.token = next(token for token in range(5, 1000) if token not in text)

    def hint(self, request: Any) -> float:
        return 4.0

    def observe(self, request: Any, new: Any) -> None:
        pass

    def close(self, request: Any) -> None:
        pass

    def draft(self, jobs: Any) -> Any:
        return [Draft.chain([self.token] * job.length) for job in jobs]


def test_only_the_latest_files_stay(folder: Path) -> None:
    folder.mkdir(parents=True)
    for at in range(MOST + 5):
        file = folder / f"{at}.json"
        file.write_text("{}")
        Path(f"{file}.lock").write_text("")
        os.utime(file, (at, at))
    cached._prune(folder)
    assert {int(file.stem) for file in folder.glob("*.json")} == set(range(5, MOST + 5))
    assert len(list(folder.glob("*.lock"))) == MOST


def test_inside_transformers_it_is_kept_as_well(folder: Path, plain_model: Any, tokenizer: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    plain = plain_model.generate(ids, do_sample=False, max_new_tokens=16)
    for seen in (False, True):
        adaptive = draftwise.transformers_generate(drafters=["ngram"], tokenizer=tokenizer)
        mine = plain_model.generate(ids, do_sample=False, max_new_tokens=16, custom_generate=adaptive)
        assert mine.tolist() == plain.tolist()
        assert bool(list(folder.glob("*.json"))) or seen
        del adaptive
        gc.collect()
    assert len(list(folder.glob("*.json"))) == 1


@pytest.mark.parametrize("state", [3, b"x", True])
def test_what_is_no_state_is_refused(state: Any, make: Make) -> None:
    with pytest.raises(UserError, match="give the name of a file, auto or off"):
        make(state=state)


def test_a_wrong_variable_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "of")
    with pytest.raises(UserError, match="DRAFTWISE_STATE='of': give auto or off"):
        make()
