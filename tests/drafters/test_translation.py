"""Texts and drafts between tokenizers of every family: any text, cut at any token."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.drafters.translation import BROKEN, Codec, Reading, continued, shared_tokens
from tests.tiny_tokenizers import MAKERS, tokenizer

TEXTS = (
    "The quick brown fox 数据结构 is 🙂🙂 cafe\u0301, naïve\n\n    def f(x):\n        return x  # 2 + 2\n",
    " Zürich größer — 👩‍👩‍👧 \u0301\u0302 a\tb\r\n  end. \ufffd ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "日本語のテキスト。日本語のテキスト。",
)
EXACT = ("byte-level", "llama", "gemma", "fallback-metaspace")  # any text can be told from its tokens
PAIRS = [
    ("byte-level", "llama"),
    ("byte-level", "word-piece"),
    ("llama", "byte-level"),
    ("gemma", "metaspace"),
    ("fallback-metaspace", "gemma"),
    ("metaspace", "byte-level"),
    ("word-piece", "byte-level"),
    ("suffixes", "llama"),
]


def codec(name: str) -> Codec:
    return Codec(tokenizer(name))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_growing_text_is_read_as_the_whole_text_would_be(ours: str, theirs: str) -> None:
    for text in TEXTS:
        own, rng, end = codec(ours).encode(text)[0], Random(len(text)), 0
        reading = Reading(codec(ours), codec(theirs))
        while end < len(own):
            end = min(len(own), end + rng.choice((1, 1, 2, 5, 40)))
            reading.read(own[:end])
            assert end - reading.done <= 3 and len(reading.ids) == len(reading.spans)
            said = reading.target.decode(own[: reading.done])
            assert reading.length == len(said)
            if ours in EXACT and theirs in EXACT:
                assert reading.ids == reading.drafter.prefix + reading.drafter.encode(said)[0]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_draft_decodes_to_the_text_of_the_drafter(ours: str, theirs: str) -> None:
    one, other = codec(ours), codec(theirs)
    found = 0
    for text in TEXTS:
        own, rng = one.encode(text)[0], Random(1)
        reading = Reading(one, other)
        for end in range(1, len(own), 2):
            reading.read(own[:end])
            said = one.decode(own[: reading.done])
            follows = one.decode(own)[len(said) :]
            assert other.end is not None
            random = [rng.randrange(other.fast.get_vocab_size()) for _ in range(4)]
            whole, known = other.encode(said + follows)[0], len(other.encode(said)[0])
            for drafted in (whole[known : known + 5], random, [], [other.end, *random]):
                made = continued(reading, drafted)
                tokens = [token for token in made.tokens if token != one.end]
                after = one.decode([*own[:end], *tokens], special=True)
                # What is added is what the drafter wrote, up to a space that its decoder adds or drops.
                wrote = other.decode([*reading.ids, *drafted])[len(other.decode(reading.ids)) :]
                added = after[len(one.decode(own[: reading.done], special=True)) :]
                if tokens:
                    assert added == wrote[: len(added)] or added == wrote[1 : 1 + len(added)]
                assert all(0 <= a < b <= len(drafted) for a, b in made.sources)
                assert len(made.sources) == len(made.tokens)
                found += bool(tokens)
    assert found


@pytest.mark.parametrize("theirs", ["llama", "gemma", "fallback-metaspace"])
def test_the_right_text_becomes_the_targets_own_tokens(theirs: str) -> None:
    one, other = codec("byte-level"), codec(theirs)
    text = TEXTS[0]
    own, whole = one.encode(text)[0], other.encode(text)[0]
    reading, exact, drafts = Reading(one, other), 0, 0
    for end in range(1, len(own)):
        reading.read(own[:end])
        known = reading.ids[len(other.prefix) :]
        if whole[: len(known)] == known:
            made = continued(reading, whole[len(known) : len(known) + 12]).tokens
            drafts += bool(made)
            exact += (
                made[:-3] == own[end : end + max(0, len(made) - 3)]
            )  # the last ones may grow with more text
    assert drafts > len(own) / 2 and exact >= drafts


def test_nothing_is_drafted_where_the_targets_last_tokens_would_be_others() -> None:
    one, other = codec("byte-level"), codec("llama")
    own = one.encode("The quick brown")[0]
    assert one.fast.id_to_token(own[-1]) == "Ġbrown"
    parts = [*own[:-1], *one.encode(" bro")[0]]
    reading = Reading(one, other)
    reading.read(parts)
    assert continued(reading, other.encode("wn fox")[0][1:]).tokens == []
    reading.read(own)
    assert one.decode(continued(reading, other.encode("a, b")[0][2:]).tokens) == ", b"


def test_parts_of_a_character_wait_for_the_others() -> None:
    one, other = codec("byte-level"), codec("gemma")
    own = one.encode("a 漢字")[0]
    reading = Reading(one, other)
    ends = [end for end in range(1, len(own)) if one.decode(own[:end]).endswith(BROKEN)]
    assert ends
    for end in ends:
        reading.read(own[:end])
        assert reading.done < end
        ids = other.encode("a 漢字 b")[0]
        made = continued(reading, ids[len(reading.ids) - len(other.prefix) :]).tokens
        assert made[: len(own) - end] == own[end:]


def test_special_tokens_keep_their_meaning() -> None:
    one, other = codec("byte-level"), codec("llama")
    named = {name: i for i, name in one.special.items()}
    text = [named["<s>"], named["<|user|>"], *one.encode("Hi")[0], named["</s>"]]
    reading = Reading(one, other)
    reading.read(text)
    theirs = {name: i for i, name in other.special.items()}
    assert reading.ids == [theirs["<s>"], theirs["<|user|>"], *other.encode("Hi")[0], theirs["</s>"]]
    reading.read(text[:-1])  # a shorter view of the same text
    end = other.end
    assert end is not None
    assert continued(reading, [end]).tokens == [one.end]
    made = continued(reading, [*other.encode("a!")[0][2:], end, *other.encode("more")[0]])
    assert one.decode(made.tokens[:-1]) == "!" and made.tokens[-1] == one.end
    assert continued(reading, [theirs["<|user|>"], *other.encode("more")[0]]).tokens == []


def test_unknown_special_tokens_become_line_breaks() -> None:
    one, other = codec("byte-level"), codec("llama")
    other.special = {other.end: "</s>"} if other.end is not None else {}
    named = {name: i for i, name in one.special.items()}
    mark = named["<|user|>"]
    reading = Reading(one, other)
    reading.read([named["<s>"], mark, *one.encode("Hi")[0], mark, mark, *one.encode("you")[0]])
    assert other.decode(reading.ids) == "Hi\nyou"


@pytest.mark.parametrize("name", MAKERS)
def test_shared_tokens_have_one_text(name: str) -> None:
    one, other = codec("byte-level"), codec(name)
    pairs, part = shared_tokens(one, other, (10_000, 10_000))
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    assert (one.end, other.end) in pairs and 0.25 < part <= 1.0
    begin, end = one.encode("a")[0], other.encode("a")[0]
    for a, b in pairs if name in EXACT else ():
        texts = one.decode([*begin, a])[1:], other.decode([*end, b]).lstrip()[1:]
        assert BROKEN in texts[0] + texts[1] or texts[0] == texts[1], (a, b)


def test_bytes_are_shared_by_byte_level_and_byte_fallback() -> None:
    one, other = codec("byte-level"), codec("llama")
    pairs = dict(shared_tokens(one, other, (10_000, 10_000))[0])
    names = [other.fast.id_to_token(pairs[part]) for part in one.encode("漢")[0]]
    assert names == [f"<0x{byte:02X}>" for byte in "漢".encode()]


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    class Slow:
        name_or_path = "old"

    with pytest.raises(Exception, match="no fast form"):
        Codec(Slow())
