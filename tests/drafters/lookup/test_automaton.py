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


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("alphabet", [1, 2, 4])
def test_counts_agree_with_a_scan_after_every_commit(alphabet: int, depth: int) -> None:
    index = Automaton(depth)
    text: list[int] = []
    for new in chunks(Random(alphabet * 10 + depth), 45, alphabet):
        index.extend(new)
        text += new
        check(index, [text])


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


@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_match_is_the_longest_end_that_occurred_before(alphabet: int) -> None:
    index = Automaton(4)
    text: list[int] = []
    assert index.match == 0
    for new in chunks(Random(alphabet), 80, alphabet):
        index.extend(new)
        text += new
        assert index.match == max(
            n for n in range(len(text)) if len(starts_of(text, text[len(text) - n :])) > 1
        )


def test_a_long_text_of_few_tokens_takes_linear_space() -> None:
    index = Automaton(8)
    rng = Random(1)
    index.extend([rng.randrange(2) for _ in range(20000)])
    assert len(index.next) <= 2 * 20000
    assert sum(map(len, index.next)) <= 3 * 20000


def test_stepping_follows_a_text_that_is_not_in_the_index() -> None:
    rng = Random(2)
    texts = [[rng.randrange(4) for _ in range(60)] for _ in range(3)]
    index = Automaton(5)
    for text in texts:
        index.begin()
        index.extend(text)
    state, held, other = ROOT, 0, [rng.randrange(5) for _ in range(400)]
    for n, token in enumerate(other, 1):
        state, held = index.steps(state, held, [token])
        known = max(k for k in range(min(n, 5) + 1) if k == 0 or occurrences(texts, other[n - k : n]))
        assert held == known
        assert index.count[state] == (occurrences(texts, other[n - known : n]) if known else 0)


def test_contexts_are_the_ends_that_were_followed_and_differ_in_their_counts() -> None:
    index = Automaton(8)
    index.extend([1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2, 3])
    found = list(index.contexts(index.deepest, index.match))
    assert [length for _, length in found] == [3, 2, 1]  # 1 2 3 once before, 2 3 twice, 3 three times
    assert [index.follows[state] for state, _ in found] == [1, 2, 3]


def test_a_walk_ends_where_its_probability_falls_short() -> None:
    index = Automaton(8)
    index.extend([1, 2, 5, 1, 2, 6, 1, 3, 1])  # after 1: 2, 2, 3; after 1 2: 5, 6
    ((state, _),) = index.contexts(index.deepest, index.match)
    score, path = index.walk(state, 2, 0.0)
    assert [step[0] for step in path] == [2, 6]  # the latest of equals
    assert score == pytest.approx(2 / 3 + 1 / 3)
    assert len(index.walk(state, 2, 0.34)[1]) == 1
    assert len(index.walk(state, 2, 0.33)[1]) == 2
    assert index.walk(state, 2, 0.7) == (0.0, [])
    assert index.walk(state, 0, 0.0) == (0.0, [])
