"""The radix tree of what is kept: what goes in comes out, within the bound, and the latest used stays."""

from __future__ import annotations

from random import Random

import pytest
import torch

from draftwise.models.runner.prefix_cache import LEAST, OVERHEAD, Node, Parts, PrefixMemory, PrefixTree

PART = (0, "keys")


def parts(tokens: list[int]) -> Parts:
    """Of each token itself and its place: four bytes each, in one tensor."""
    return {PART: torch.tensor(tokens, dtype=torch.int32)}


def kept(tree: PrefixTree, tokens: list[int], mark: int = 0) -> list[int]:
    return [int(x) for piece, n in tree.find(mark, tokens) for x in piece.parts[PART][:n]]


def add(tree: PrefixTree, tokens: list[int], mark: int = 0) -> list[tuple[int, int]]:
    """Returns what was copied."""
    taken: list[tuple[int, int]] = []

    def take(start: int, end: int) -> Parts:
        taken.append((start, end))
        return parts(tokens[start:end])

    tree.add(mark, tokens, take)
    return taken


def size(tree: PrefixTree) -> int:
    """Bytes of all pieces below the roots, counted afresh."""
    return sum(piece.bytes for piece in below(tree))


def below(tree: PrefixTree) -> list[Node]:
    waiting = [piece for root in tree.roots.values() for piece in root.below.values()]
    found: list[Node] = []
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].below.values()
    return found


def test_a_common_beginning_is_kept_once() -> None:
    tree = PrefixTree(PrefixMemory(1 << 20))
    first, second = list(range(60)), [*range(40), *range(100, 130)]
    assert add(tree, first) == [(0, 60)] and add(tree, second) == [(40, 70)]
    assert add(tree, first[:50]) == []
    assert kept(tree, [*first, 7]) == first and kept(tree, second[:45]) == second[:45]
    assert kept(tree, [*range(40), 99]) == list(range(40)) and kept(tree, [5, 6]) == []
    assert kept(tree, first, mark=1) == []


def test_without_memory_for_a_copy_nothing_changes() -> None:
    tree = PrefixTree(PrefixMemory(1 << 20))
    first = list(range(60))
    add(tree, first)

    def fail(start: int, end: int) -> Parts:
        raise MemoryError

    with pytest.raises(MemoryError):
        tree.add(0, [*range(40), *range(100, 130)], fail)
    assert set(tree.whole.nodes) == set(below(tree)) and tree.whole.bytes == size(tree)
    assert kept(tree, first) == first


def test_a_short_end_is_not_worth_a_copy() -> None:
    tree = PrefixTree(PrefixMemory(1 << 20))
    assert add(tree, list(range(LEAST - 1))) == []
    add(tree, list(range(60)))
    assert add(tree, [*range(60), *range(LEAST - 1)]) == [] and add(tree, [*range(60), *range(LEAST)])


def test_the_bound_holds_and_what_was_used_last_stays() -> None:
    each = 4 * 50 + OVERHEAD
    whole = PrefixMemory(3 * each)
    tree, other = PrefixTree(whole), PrefixTree(whole)  # two models share the bound
    texts = [[k * 100 + i for i in range(50)] for k in range(5)]
    for text in texts[:3]:
        add(tree, text)
    add(tree, texts[0])  # used again: now the second one is the oldest
    add(other, texts[3])
    assert [bool(kept(tree, text)) for text in texts[:3]] == [True, False, True]
    assert kept(other, texts[3]) == texts[3] and whole.bytes == size(tree) + size(other) <= whole.limit
    tree.clear()
    assert whole.bytes == size(other) == each and not kept(tree, texts[0])


def test_a_text_beyond_the_bound_is_cut() -> None:
    whole = PrefixMemory(2000)
    tree = PrefixTree(whole)
    text = list(range(1000))
    assert add(tree, text) == [(0, 1000)]  # the first one tells the size of a token
    assert kept(tree, text) == text[:372] and whole.bytes == whole.limit
    assert add(tree, text) == [] and add(tree, text[::-1]) == [(0, 372)]
    assert not kept(tree, text) and whole.bytes <= whole.limit
    nothing = PrefixTree(PrefixMemory(OVERHEAD))
    assert add(nothing, text) == [(0, 1000)] and not kept(nothing, text)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_found_is_what_was_kept(seed: int) -> None:
    """Random texts with common beginnings: the pieces are right, and the sizes add up."""
    rng, whole = Random(seed), PrefixMemory(12000)
    tree, texts = PrefixTree(whole), list[list[int]]()
    for _ in range(100):
        begin = rng.choice(texts)[: rng.randrange(80)] if texts and rng.random() < 0.8 else []
        text = [*begin, *(rng.randrange(3) for _ in range(rng.randrange(1, 60)))]
        texts.append(text)
        found = kept(tree, text)
        assert found == text[: len(found)]
        add(tree, text)
        assert whole.bytes == size(tree) <= whole.limit
        assert set(whole.nodes) == set(below(tree))
    assert any(kept(tree, text) for text in texts)
