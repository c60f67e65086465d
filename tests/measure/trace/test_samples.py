"""Words of a text, and who guessed which piece of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from draftwise.errors import UserError
from draftwise.measure.trace import Trace
from draftwise.measure.trace.files import SAMPLES, read_samples, split_words, write_samples
from draftwise.measure.trace.results import replayed
from tests.measure.trace.sims import COSTS, recorded

BYTES = [b"caf", "é".encode()[:1], "é".encode()[1:], b" au", b" lait"]


NO_VALUES = ["static-3", "hf-heuristic?start=4&longest=8", "tapout-token-ucb1?length=8"]


class Tokenizer:
    """Tokens are bytes, so that a character may take two of them."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def decode(self, ids: Sequence[int], **options: bool) -> str:
        return b"".join(self.tokens[i] for i in ids).decode(errors="replace")


LETTERS = Tokenizer([bytes([97 + i]) for i in range(14)])


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return recorded(tmp_path / "trace", n=8)


def test_words_add_up_to_the_text_and_no_character_is_cut() -> None:
    found = split_words(range(5), Tokenizer(BYTES))
    assert found == ["caf", "", "é", " au", " lait"]
    assert split_words(range(2), Tokenizer(BYTES)) == ["caf", "\N{REPLACEMENT CHARACTER}"]


def test_a_replay_shows_who_guessed_what(trace: Trace, tmp_path: Path) -> None:
    assert read_samples(trace.folder) == {}
    write_samples(trace, LETTERS)
    found = read_samples(trace.folder)
    assert list(found) == ["0", "1", "2"] and len(found) <= SAMPLES  # the first of each category
    replayed(trace, ["static-3", "ucb1"], COSTS, tmp_path)
    shown = [json.loads(line) for line in (tmp_path / "pieces.jsonl").read_text().splitlines()]
    assert {(line["method"], line["prompt"]) for line in shown} == {
        (method, prompt) for method in ("none", "static-3", "ucb1") for prompt in range(3)
    }
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    prompts = [recording.prompt for recording in trace]
    for line in shown:
        assert line["prompt_text"] == LETTERS.decode(prompts[line["prompt"]]) != ""
        assert "".join(text for text, _ in line["pieces"]) == "".join(found[str(line["prompt"])][1])
        mine = [r for r in rounds if all(r[key] == line[key] for key in ("method", "prompt"))]
        by_target = "".join(text for text, source in line["pieces"] if source == "target")
        drafted = sum(min(r["accepted"], len(r["tokens"])) for r in mine)
        assert len(by_target) == sum(len(r["tokens"]) for r in mine) - drafted
        if line["method"] == "none":
            assert not drafted
    assert any(source == "good" for line in shown for _, source in line["pieces"])


def test_what_a_policy_has_learnt_is_written_with_its_rounds(trace: Trace, tmp_path: Path) -> None:
    replayed(trace, ["ucb1", "metasd-ucb", "hedgespec?per_query=false", *NO_VALUES], COSTS, tmp_path)
    values: dict[str, list[dict[str, float]]] = {}
    for line in (tmp_path / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "values" in record:
            values.setdefault(record["method"], []).append(record["values"])
    assert set(values) == {"ucb1", "hedgespec?per_query=false"}, "a learner of one text has no curve of a run"
    last = values["ucb1"][-1]
    assert set(last) == {f"{name}:5" for name in trace.drafters}
    assert last["good:5"] > last["bad:5"] > 0.0
    assert len(values["ucb1"]) > 20


def test_damaged_words_are_named(trace: Trace) -> None:
    (trace.folder / "texts.json").write_text("[1]")
    with pytest.raises(UserError, match=r"texts\.json' is damaged"):
        read_samples(trace.folder)
    assert len(list(trace)) == 8, "the trace itself is whole"
