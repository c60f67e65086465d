"""Text comes out in order, whole characters only, and stop strings end it wherever the tokens break."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from draftwise.generation.text import Detokenizer, StopStrings, decode


class Bytes:
    """A tokenizer whose tokens are bytes or fixed strings, so that tests can break text anywhere."""

    def __init__(self, *words: str) -> None:
        self.words = [w.encode() for w in words]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return b"".join(self.words[t - 256] if t >= 256 else bytes([t]) for t in tokens).decode(
            errors="replace"
        )


def test_pieces_join_to_the_whole_text() -> None:
    text = "naïve 🙂 — Zürich, 東京!"
    detokenizer = Detokenizer(Bytes())
    pieces = [
        p for i, b in enumerate(text.encode()) for p in detokenizer.push([b], "target" if i % 3 else "ngram")
    ]
    pieces += detokenizer.flush()
    assert "".join(p.text for p in pieces) == text
    assert all("�" not in p.text for p in pieces)
    assert {p.source for p in pieces} == {"target", "ngram"}


def test_the_bundled_tokenizer_too(tokenizer: Any) -> None:
    text = "def f(x):\n    return 'größer' + x  # 2 + 2 = 4\n"
    ids = tokenizer(text)["input_ids"]
    for size in (1, 2, 5):
        detokenizer = Detokenizer(tokenizer)
        pieces = [p for i in range(0, len(ids), size) for p in detokenizer.push(ids[i : i + size], "target")]
        assert "".join(p.text for p in [*pieces, *detokenizer.flush()]) == decode(tokenizer, ids)


@pytest.mark.parametrize("seed", range(30))
def test_a_stop_string_is_found_in_any_division_of_the_text(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab.") for _ in range(60))
    stop = tuple({"".join(rng.choice("ab.") for _ in range(rng.randint(3, 6))) for _ in range(2)})
    cut = min((i for s in stop if (i := text.find(s)) >= 0), default=len(text))
    whole = min((i + len(s) for s in stop if (i := text.find(s)) >= 0), default=None)

    detokenizer, ends = Detokenizer(Bytes(), stop), StopStrings(Bytes(), stop, 0)
    tokens: list[int] = []
    shown = ""
    data, at = text.encode(), 0
    while at < len(data):
        size = rng.randint(1, 7)
        start = len(tokens)
        tokens += data[at : at + size]
        keep = ends(tokens, start)
        new = tokens[start:] if keep is None else tokens[start : start + keep]
        shown += "".join(p.text for p in detokenizer.push(new, "target"))
        assert text[:cut].startswith(shown)
        at += size
        if keep is not None:
            assert start + keep == whole
            break
    else:
        assert whole is None
    shown += "".join(p.text for p in detokenizer.flush())
    assert shown == text[:cut]


def test_the_prompt_is_not_searched() -> None:
    assert StopStrings(Bytes(), ("ab",), 3)([*b"xab", *b"c"], 3) is None
    assert StopStrings(Bytes(), ("ab",), 2)([*b"xa", *b"b"], 2) is None
    assert StopStrings(Bytes("zab"), ("ab",), 1)([120, 256, 99], 1) == 1
