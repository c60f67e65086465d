"""Pieces join to what the tokenizer decodes, for every kind of tokenizer, any tokens and any cut of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise import UserError
from draftwise.generation.text import Detokenizer, Kinds, StopStrings, decode, stop_strings
from tests.effort import THOROUGH
from tests.tiny_tokenizers import MAKERS, SPECIAL, tokenizer

SAID = "数据结构与算法。"
EVERY = pytest.mark.parametrize("name", MAKERS)
SOURCES = ("target", "ngram", "suffix")
PROPERTY = settings(max_examples=80 if THOROUGH else 30, deadline=None, derandomize=True, database=None)


def hard(kind: Any) -> list[int]:
    """Tokens that are easily got wrong: bytes, what ends inside a character, spaces, and unknown ones."""
    ids = range(len(kind))
    broken = [i for i in ids if "\ufffd" in decode(kind, [i])]
    spaces = [i for i in ids if not decode(kind, [i]).strip()]
    return [*broken, *spaces, *(i for i in ids if Kinds.of(kind)[i] >= 0), *range(len(kind), len(kind) + 2)]


@st.composite
def tokens(draw: st.DrawFn, kind: Any, most: int = 60) -> list[int]:
    """Any tokens, hard ones more often, real text and runs of bytes among them."""
    said = [kind(text, add_special_tokens=False)["input_ids"] for text in (SAID, "  a b, c.", "naïve 🙂\n\n")]
    one = st.integers(0, len(kind) - 1).map(lambda i: [i])
    difficult = st.sampled_from(hard(kind)).map(lambda i: [i])
    special = st.sampled_from(kind.convert_tokens_to_ids(SPECIAL)).map(lambda i: [i])
    parts = st.one_of(one, difficult, difficult, special, st.sampled_from(said))
    return [t for part in draw(st.lists(parts, max_size=most)) for t in part]


def cuts(draw: st.DrawFn, ids: Sequence[int]) -> list[list[int]]:
    """The tokens in pushes of any size."""
    out, at = [], 0
    while at < len(ids):
        size = draw(st.integers(1, 7))
        out.append(list(ids[at : at + size]))
        at += size
    return out


@EVERY
@PROPERTY
@given(data=st.data())
def test_pieces_are_the_decoded_text(name: str, data: st.DataObject) -> None:
    kind = tokenizer(name)
    ids = data.draw(tokens(kind))
    detokenizer = Detokenizer(kind)
    whole, shown = decode(kind, ids), ""
    for push in data.draw(st.composite(cuts)(ids)):
        for piece in detokenizer.push(push, data.draw(st.sampled_from(SOURCES))):
            shown += piece.text
            assert piece.text and piece.source in SOURCES
    assert whole.startswith(shown)
    assert shown + "".join(p.text for p in detokenizer.flush()) == whole


@EVERY
@PROPERTY
@given(data=st.data())
def test_a_stop_string_ends_the_text_at_the_first_token_that_completes_it(
    name: str, data: st.DataObject
) -> None:
    kind = tokenizer(name)
    ids = data.draw(tokens(kind))
    whole = decode(kind, ids)
    begin = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    there = st.integers(1, 5).map(lambda n: whole[begin : begin + n] or "x")
    stop = data.draw(st.lists(there | st.sampled_from(["\n", " ", "a", "数", "构与", "\ufffd"]), min_size=1))
    prompt = data.draw(tokens(kind, 5))

    texts = (decode(kind, ids[:n]) for n in range(1, len(ids) + 1))
    found = next((n for n, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
    text = decode(kind, ids[:found])
    expected = text[: min((i for s in stop if (i := text.find(s)) >= 0), default=len(text))]

    ends, detokenizer = StopStrings(kind, stop, len(prompt)), Detokenizer(kind, stop)
    seen, shown = list(prompt), ""
    for push in data.draw(st.composite(cuts)(ids)):
        start = len(seen)
        seen += push
        keep = ends(seen, start)
        if data.draw(st.booleans()):
            assert ends(seen, start) == keep  # a round that was not kept is asked again
        shown += "".join(p.text for p in detokenizer.push(push[:keep], "target"))
        if keep is not None:
            assert start + keep - len(prompt) == found
            break
    else:
        assert found is None
    assert shown + "".join(p.text for p in detokenizer.flush()) == expected


def test_characters_of_bytes_come_as_soon_as_they_are_certain_and_belong_to_who_wrote_them() -> None:
    kind = tokenizer("gemma")
    ids = [kind.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "结构与".encode()]
    detokenizer = Detokenizer(kind)
    assert detokenizer.push(ids[:4], "ngram") == detokenizer.push(ids[4:], "target") == []
    pieces = detokenizer.push(kind.convert_tokens_to_ids(["a"]), "suffix")
    assert [(p.text, p.source) for p in pieces] == [("结", "ngram"), ("构与", "target"), ("a", "suffix")]


def fallback(kind: Any, data: bytes) -> list[int]:
    """The fallback tokens of some bytes."""
    return list(kind.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in data]))


@pytest.mark.parametrize("character", ["é", "数", "🙂\x7f"])
@pytest.mark.parametrize("before", range(4))
def test_what_is_in_a_broken_run_of_bytes_never_ends_the_text(character: str, before: int) -> None:
    """One wrong byte turns all of its run into replacement marks. The window that is searched for stop
    strings drops that byte, at every place in a character."""
    kind = tokenizer("gemma")
    stop = (character[0], "o")
    for plain in range(before, 44, 4):
        run = fallback(kind, b"\x80" + character.encode() * 60)
        ids = [*kind.convert_tokens_to_ids(["a"] * plain), *run, *kind.convert_tokens_to_ids(["a", "o"])]
        assert character[0] not in decode(kind, ids)
        ends = StopStrings(kind, stop, 0)
        found = [ends(ids[: at + 1], at) for at in range(len(ids))]
        assert found == [None] * (len(ids) - 1) + [1]


@pytest.mark.parametrize(
    "character", ["é", "退", "🙂\x7f", "\U00040000"]
)  # three of them with a byte of 0x80
def test_a_stop_string_in_a_long_run_of_bytes_is_found(character: str) -> None:
    """The window that is searched may begin at any byte of a character of the run, such as the lowest that
    continues one, 0x80, and the run stays valid."""
    kind = tokenizer("gemma")
    run = fallback(kind, (character * 60 + "o").encode())
    for plain in range(44):
        ids = [*kind.convert_tokens_to_ids(["a"] * plain), *run]
        ends = StopStrings(kind, (character + "o",), 0)
        found = [ends(ids[: at + 1], at) for at in range(len(ids))]
        assert found == [None] * (len(ids) - 1) + [1]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_of_stop_strings_that_come_together_the_first_counts_whoever_wrote_the_bytes(cut: int) -> None:
    kind = tokenizer("gemma")
    ids = kind.convert_tokens_to_ids(["n", "<0x41>", "<0x80>"])  # an A that the next byte breaks
    detokenizer = Detokenizer(kind, ("n\ufffd\ufffd", "\ufffd"))
    pieces = [*detokenizer.push(ids[:cut], "ngram"), *detokenizer.push(ids[cut:], "target")]
    assert [*pieces, *detokenizer.flush()] == []


def test_a_replacement_mark_of_its_own_after_broken_bytes_is_no_part_of_them() -> None:
    """The window begins inside the run of bytes, which alone would be valid text."""
    kind = tokenizer("gemma")
    for plain in range(30):
        ids = kind.convert_tokens_to_ids(["a"] * plain)
        ids += [*fallback(kind, b"\x80" + "é".encode() * 12), *kind.convert_tokens_to_ids(["\ufffd", "a"])]
        detokenizer = Detokenizer(kind)
        pieces = [piece for token in ids for piece in detokenizer.push([token], "target")]
        assert "".join(p.text for p in [*pieces, *detokenizer.flush()]) == decode(kind, ids)


def test_special_tokens_are_no_text_unless_asked_for() -> None:
    kind = tokenizer("llama")
    ids = kind.convert_tokens_to_ids(["a", "</s>"])
    assert decode(kind, ids) == "a" and decode(kind, ids, special=True) == "a</s>"


@pytest.mark.parametrize("stop", [(), ("never there", "\ufffd\ufffd\ufffdx")])
@pytest.mark.parametrize(
    "said",
    [["<0xE6>"], ["<0x80>"], ["<0xE6>", "<0x95>", "<0xB0>"], ["</s>"], ["▁"], ["\ufffd"], ["<0xE6>", "a"]],
    ids=" ".join,
)
def test_no_text_is_decoded_again_and_again(said: list[str], stop: tuple[str, ...]) -> None:
    kind = tokenizer("llama")
    decoded: list[int] = []

    class Counted:
        convert_ids_to_tokens = kind.convert_ids_to_tokens

        def decode(self, ids: Sequence[int], **options: Any) -> str:
            decoded.append(len(ids))
            return str(kind.decode(ids, **options))

    counted = Counted()
    ids = kind.convert_tokens_to_ids(said) * 3000
    detokenizer, ends = Detokenizer(counted, stop), StopStrings(counted, stop, 0) if stop else None
    pieces = []
    for n, token in enumerate(ids):
        assert ends is None or ends(ids[: n + 1], n) is None
        pieces += detokenizer.push([token], "target")
    pieces += detokenizer.flush()
    assert "".join(p.text for p in pieces) == decode(kind, ids)
    assert sum(decoded) < 300 * len(ids)


class Bytes:
    """A tokenizer whose tokens are bytes, and from 256 on fixed strings."""

    def __init__(self, *words: str) -> None:
        self.words = [word.encode() for word in words]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        parts = [self.words[t - 256] if t >= 256 else bytes([t]) for t in tokens]
        return b"".join(parts).decode(errors="replace")


def test_the_prompt_is_not_searched() -> None:
    assert StopStrings(Bytes(), ("ab",), 3)([*b"xab", *b"c"], 3) is None
    assert StopStrings(Bytes(), ("ab",), 2)([*b"xa", *b"b"], 2) is None
    assert StopStrings(Bytes("zab"), ("ab",), 1)([120, 256, 99], 1) == 1


def test_a_round_without_a_stop_string_is_decoded_once() -> None:
    decoded: list[int] = []

    class Counted(Bytes):
        def decode(self, tokens: Sequence[int], **options: Any) -> str:
            decoded.append(len(tokens))
            return super().decode(tokens, **options)

    text, ends = b"a text", StopStrings(counted := Counted(), ("stop",), 0)
    [Kinds.of(counted)[token] for token in text]
    decoded.clear()
    assert ends([*text], 0) is None and decoded == [len(text)]


def test_one_stop_string_may_stand_alone() -> None:
    assert stop_strings("the") == ("the",) == stop_strings(["the"])
    assert stop_strings(()) == ()


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], 5, [5], None, ["\ud83d"], b"the"])
def test_what_is_no_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(UserError, match="stop string"):
        stop_strings(stop)
