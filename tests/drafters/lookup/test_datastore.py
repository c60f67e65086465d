from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from draftwise.cli import app as cli
from draftwise.drafters.lookup.datastore import (
    DEPTH,
    Datastore,
    Header,
    build,
    corpus_files,
    read_texts,
    tokenizer_fingerprint,
)
from draftwise.errors import UserError
from draftwise.models import load as models

LETTERS = "abcdefghij"
VOCAB = {letter: i for i, letter in enumerate(LETTERS)}
FINGERPRINT = tokenizer_fingerprint(VOCAB)


def encode(text: str) -> list[int]:
    return [VOCAB[letter] for letter in text]


def make(out: Path, *texts: str) -> Header:
    """A datastore with one document per text."""
    source = out.with_suffix(".jsonl")
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return build([source], out, encode=encode, vocab_size=len(VOCAB), fingerprint=FINGERPRINT)


def ends(texts: Sequence[str], query: str) -> list[str]:
    """What follows each occurrence of `query`, in no order."""
    return sorted(
        text[i + len(query) :] for text in texts for i in range(len(text)) if text.startswith(query, i)
    )


# -- building and finding ----------------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    header = make(tmp_path / "store", "abcab", "cab", "")
    store = Datastore(tmp_path / "store")
    assert store.header == header
    assert (header.documents, header.tokens, header.vocab_size) == (2, 8, 10)
    assert store.tokens.tolist() == [10, 0, 1, 2, 0, 1, 10, 2, 0, 1, 10]
    assert isinstance(np.load(tmp_path / "store/tokens.npy", mmap_mode="r"), np.memmap)
    assert not store.tokens.flags.owndata  # mapped, not read
    assert sorted(f.name for f in (tmp_path / "store").iterdir()) == [
        "header.json",
        "order.npy",
        "starts.npy",
        "tokens.npy",
    ]


@pytest.mark.parametrize("alphabet", [1, 2, 4, 10])
def test_finds_the_longest_end_and_everything_that_followed_it(tmp_path: Path, alphabet: int) -> None:
    rng = Random(alphabet)
    texts = ["".join(rng.choices(LETTERS[:alphabet], k=rng.randint(1, 40))) for _ in range(12)]
    make(tmp_path / "store", *texts)
    store = Datastore(tmp_path / "store")
    for _ in range(400):
        query = "".join(rng.choices(LETTERS[: min(10, alphabet + 1)], k=rng.randint(0, 12)))
        most = rng.randint(1, 8)
        length, low, high = store.find(encode(query), most=most)
        known = [n for n in range(1, min(len(query), most) + 1) if ends(texts, query[-n:])]
        assert length == max(known, default=0)
        if length:
            rows = store.continuations(low, high, most=10_000, length=50)
            found = sorted("".join(LETTERS[t] for t in row[: row.index(store.separator)]) for row in rows)
            assert found == ends(texts, query[-length:])


def test_no_match_reaches_into_another_document(tmp_path: Path) -> None:
    make(tmp_path / "store", "abc", "def")
    store = Datastore(tmp_path / "store")
    assert store.find(encode("cd"))[0] == 1
    assert store.find([2, store.separator, 3])[0] == 1
    assert store.find([2, store.separator]) == (0, 0, 0)
    assert store.find([-1]) == store.find([11]) == store.find([]) == (0, 0, 0)


def test_a_match_is_never_longer_than_the_sorted_depth(tmp_path: Path) -> None:
    make(tmp_path / "store", "ab" * 40)
    assert Datastore(tmp_path / "store").find(encode("ab" * 30), most=99)[0] == DEPTH


# -- refusing ----------------------------------------------------------------------------------------


def test_another_tokenizer_is_refused_by_naming_both(tmp_path: Path) -> None:
    make(tmp_path / "store", "abc")
    store = Datastore(tmp_path / "store")
    store.check(10, FINGERPRINT)
    store.check(64, FINGERPRINT)  # a padded model
    other = tokenizer_fingerprint({**VOCAB, "j": 77})
    for size, fingerprint in ((10, other), (9, FINGERPRINT)):
        with pytest.raises(UserError) as caught:
            store.check(size, fingerprint)
        for part in ("10 tokens", FINGERPRINT[:12], f"{size} tokens", fingerprint[:12], "--tokenizer"):
            assert part in str(caught.value)


def test_fingerprint_depends_on_pairs_and_not_on_their_order() -> None:
    assert tokenizer_fingerprint({"b": 1, "a": 0}) == tokenizer_fingerprint({"a": 0, "b": 1})
    assert tokenizer_fingerprint({"a": 1, "b": 0}) != tokenizer_fingerprint({"a": 0, "b": 1})
    assert tokenizer_fingerprint({"a": 11}) != tokenizer_fingerprint({"a1": 1})
    assert tokenizer_fingerprint({"\ud800": 0}) != tokenizer_fingerprint({"a": 0})


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def spoil(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"}", b" ", 1))


def wipe(file: Path) -> None:
    file.write_bytes(b"")


def garble(file: Path) -> None:
    file.write_bytes(b"not what it was\n")


def pickled(file: Path) -> None:
    np.save(file, np.array([{}], object), allow_pickle=True)


ARRAYS = ["tokens.npy", "order.npy", "starts.npy"]
CASES = [
    *product(ARRAYS, [flip, spoil, pickled]),
    *product([*ARRAYS, "header.json"], [shorten, wipe, garble, Path.unlink]),
]


@pytest.mark.parametrize(("name", "harm"), CASES)
def test_a_damaged_datastore_is_refused_in_one_line(tmp_path: Path, name: str, harm: Any) -> None:
    make(tmp_path / "store", "abcabc")
    harm(tmp_path / "store" / name)
    with pytest.raises(UserError, match="draftwise datastore build") as caught:
        Datastore(tmp_path / "store")
    assert str(tmp_path / "store") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "other"},
        {"version": 2},
        {"vocab_size": "10"},
        {"vocab_size": -1},
        {"tokens": 7},
        {"documents": None},
        {"fingerprint": None},
        {"checks": {}},
        {"surprise": 1},
    ],
)
def test_a_foreign_header_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    make(tmp_path / "store", "abcabc")
    file = tmp_path / "store/header.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(UserError, match="draftwise datastore build"):
        Datastore(tmp_path / "store")


def test_arrays_of_another_type_are_refused_even_with_their_check(tmp_path: Path) -> None:
    make(tmp_path / "store", "abcabc")
    wide = np.load(tmp_path / "store/tokens.npy").astype(np.int64)
    np.save(tmp_path / "store/tokens.npy", wide)
    file = tmp_path / "store/header.json"
    header = json.loads(file.read_text())
    header["checks"]["tokens"] = zlib.crc32(wide.data)
    file.write_text(json.dumps(header))
    with pytest.raises(UserError, match=r"tokens\.npy is damaged"):
        Datastore(tmp_path / "store")


# -- building from files -----------------------------------------------------------------------------


def test_reads_text_and_jsonl_files_and_folders_of_them(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_text("abc\ndef")
    (tmp_path / "in/deep/b.jsonl").write_text(
        '{"prompt": "ab", "completion": "cd", "id": 3}\n\n{"text": "ef"}\n'
    )
    (tmp_path / "in/c.md").write_text("not read")
    files = corpus_files([tmp_path / "in"])
    assert [f.name for f in files] == ["a.txt", "b.jsonl"]
    assert [text for f in files for text, _ in read_texts(f)] == ["abc\ndef", "abcd", "ef"]


@pytest.mark.parametrize(
    "line", ["{", "[]", '"text"', "7", '{"prompt": "a"}', '{"text": 3}', '{"prompt": 1, "completion": 2}']
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: "):
        build([file], tmp_path / "store", encode=encode, vocab_size=10, fingerprint="")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", b"\xff", "UTF-8"),
        ("a.jsonl", b'{"text": "\xff"}', "UTF-8"),
        ("a.md", b"a", "rename or convert"),
        ("a.txt", b"", "holds no text"),
        ("a.jsonl", b"\n \n", "holds no text"),
    ],
)
def test_an_unusable_corpus_is_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        build([tmp_path / name], tmp_path / "store", encode=encode, vocab_size=10, fingerprint="")
    assert not (tmp_path / "store").exists()


def test_a_missing_corpus_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no corpus at"):
        corpus_files([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"no \.txt or \.jsonl file"):
        corpus_files([tmp_path])


@pytest.mark.parametrize("ids", [[10], [-1]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, ids: list[int]) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match="outside its 10 tokens"):
        build([tmp_path / "a.txt"], tmp_path / "store", encode=lambda _: ids, vocab_size=10, fingerprint="")


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path / "store", "abc")
    with pytest.raises(UserError, match="exists already"):
        make(tmp_path / "store", "def")
    assert Datastore(tmp_path / "store").find(encode("ab"))[0] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("step", ["save", "rename"])
def test_an_interrupted_build_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        if step == "save":
            saved, save = iter([True, False]), np.save
            patch.setattr(np, "save", lambda *a, **k: save(*a, **k) if next(saved) else fail())
        else:
            patch.setattr(Path, "rename", fail)
        with pytest.raises((KeyboardInterrupt, UserError), match=r"^$|; choose another --out$"):
            make(tmp_path / "store", "abc")
    assert [f.name for f in tmp_path.iterdir()] == ["store.jsonl"]
    make(tmp_path / "store", "abc")


def test_what_a_killed_build_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".store.{os.getpid()}.part").mkdir()
    make(tmp_path / "store", "abc")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["store", "store.jsonl"]


def test_progress_runs_from_the_first_byte_to_the_last_position(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    (tmp_path / "a.jsonl").write_text('{"text": "abab"}\n{"text": "abab"}\n')
    build(
        [tmp_path / "a.jsonl"],
        tmp_path / "store",
        encode=encode,
        vocab_size=10,
        fingerprint="",
        progress=lambda *step: seen.append(step),
    )
    assert seen[:2] == [("reading", 17, 34), ("reading", 34, 34)]
    assert seen[-1] == ("sorting", 11, 11)


# -- the command -------------------------------------------------------------------------------------


class Letters:
    def get_vocab(self) -> dict[str, int]:
        return VOCAB

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": encode(text)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Which tokenizers were loaded, and whether their code was trusted."""
    names: list[tuple[str, bool]] = []

    def load(name: str, *, trust_remote_code: bool = False) -> Letters:
        names.append((name, trust_remote_code))
        return Letters()

    monkeypatch.setattr(models, "load_tokenizer", load)
    return names


def test_command_builds_and_reports(tmp_path: Path, asked: list[tuple[str, bool]]) -> None:
    (tmp_path / "a.txt").write_text("abcabc")
    (tmp_path / "b.txt").write_text("def")
    out = tmp_path / "store"
    corpus = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    arguments = ["datastore", "build", *corpus, "--tokenizer", "some/model"]
    done = CliRunner().invoke(cli.app, [*arguments, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.pop("seconds") > 0.0
    assert report == {
        "path": str(out),
        "documents": 2,
        "tokens": 9,
        "vocab_size": 10,
        "fingerprint": FINGERPRINT,
        "bytes": sum(f.stat().st_size for f in out.iterdir()),
    }
    assert asked == [("some/model", False)]
    Datastore(out).check(10, FINGERPRINT)
