from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from draftwise.drafters.lookup.automaton import NONE, ROOT, Automaton

from .texts import chunks, starts_of

Texts = list[list[int]]


def occurrences(texts: Texts, part: Sequence[int]) -> int:
    return sum(len(starts_of(text, part)) for text in texts)


def followers(texts: Texts, part: Sequence[int]) -> tuple[Counter[int], dict[int, int]]:
    """How often each token followed `part`, and when it last did."""
    counts: Counter[int] = Counter()
    latest: dict[int, int] = {}
    when = 0
    for text in texts:
        for at in range(len(text) - len(part)):
            when += 1
            if text[at : at + len(part)] == list(part):
                counts[text[at + len(part)]] += 1
                latest[text[at + len(part)]] = when
    return counts, latest


def state_of(index: Automaton, part: Sequence[int]) -> int:
    state = ROOT
    for token in part:
        state = index.next[state][token]
    return state


def check(index: Any, texts: Texts) -> None:
    """Every context of up to `depth` tokens against a scan of the texts, where these can be seen."""
    assert index.size == sum(map(len, texts))
    if not isinstance(index, Automaton):  # compared with this one elsewhere
        return
    lengths = range(1, index.depth + 1)
    for part in {tuple(t[i : i + n]) for t in texts for n in lengths for i in range(len(t) - n + 1)}:
        state = state_of(index, part)
        counts, latest = followers(texts, part)
        assert index.count[state] == occurrences(texts, part)
        assert index.follows[state] == sum(counts.values())
        assert {t: index.count[s] for t, s in index.next[state].items()} == counts
        best = max(counts, key=lambda token: (counts[token], latest[token]), default=NONE)
        assert index.best[state] == best
    text = texts[-1]
    assert index.deepest == state_of(index, text[-index.depth :])


@pytest.mark.parametrize("seed", range(4))
def test_counts_agree_over_several_texts(seed: int) -> None:
    rng = Random(seed)
    index = Automaton(4)
    texts: Texts = []
    for _ in range(5):
        index.begin()
        texts.append([])
        for new in chunks(rng, 12, 3):
            index.extend(new)
            texts[-1] += new
        check(index, texts)


def test_a_long_text_of_few_tokens_takes_linear_space() -> None:
    index = Automaton(8)
    rng = Random(1)
    index.extend([rng.randrange(2) for _ in range(20000)])
    assert len(index.next) <= 2 * 20000
    assert sum(map(len, index.next)) <= 3 * 20000
