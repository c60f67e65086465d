"""The indices in C++ do what those in Python do, to the last bit, or there are none."""

from __future__ import annotations

import gc
import logging
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from draftwise.drafters.lookup import automaton, indices, ngrams
from draftwise.drafters.lookup.automaton import ROOT, Walks
from draftwise.drafters.lookup.indices import library
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter

from .texts import chunks, commit, draft, make_request

HEADER = Path(sysconfig.get_path("include"), "Python.h")
made = pytest.mark.skipif(library() is None, reason="no C++ compiler, or no header files of Python")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has not looked for the module yet, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(indices, "library", library.__wrapped__)


def written(rng: Random, text: list[int], alphabet: int) -> list[int]:
    """Tokens that another drafter may have drafted: some of them occur in the text."""
    if text and rng.random() < 0.5:
        at = rng.randrange(len(text))
        return text[at : at + rng.randint(1, 40)]
    return [rng.randrange(alphabet + 1) for _ in range(rng.randint(0, 5))]


def walks(rng: Random) -> Walks:
    return Walks(
        rng.randint(1, 6),
        rng.choice([0.0, 0.1, 0.7, 1.0, 2.0, 9.3, 1e5]),
        rng.choice([0.0, 0.5, 1.0, 3.0]),
        rng.choice([0.0, 0.1, 0.2, 0.5, 1.0]),
    )


@pytest.mark.skipif(
    not (any(map(shutil.which, ("g++", "clang++", "c++"))) and HEADER.is_file()),
    reason="no C++ compiler here, or no header files of Python",
)
def test_the_sources_compile_where_they_can(fresh: None) -> None:
    """Else all tests of what they do would be left out."""
    assert indices.compiled_file().is_file()
    assert type(indices.automaton(4)).__module__ == type(indices.ngrams(1, 4)).__module__ == "lookups"


@made
@pytest.mark.parametrize("alphabet", [1, 2, 3, 6, 40])
@pytest.mark.parametrize("seed", range(12))
def test_automata_are_the_same(seed: int, alphabet: int) -> None:
    rng = Random(100 * seed + alphabet)
    depth = rng.choice([1, 2, 3, 5, 8, 32])
    a, b = automaton.Automaton(depth), indices.automaton(depth)
    text: list[int] = []
    other = ROOT, 0
    b.extend([])
    assert b.match == a.match == 0
    for new in chunks(rng, 60, alphabet):
        if len(text) % 37 == 5:
            for index in (a, b):
                index.begin()
                assert index.match == index.span == 0 and index.deepest == ROOT
        for index in (a, b):
            index.extend(new)
        text += new
        for name in ("size", "depth", "match", "deepest", "span"):
            assert getattr(a, name) == getattr(b, name), name
        more = written(rng, text, alphabet)
        assert a.steps(*other, more) == b.steps(*other, more)
        other = a.steps(*other, more)
        for at in ((a.deepest, a.match), a.steps(a.deepest, a.span, more), other):
            assert a.matched(*at) == b.matched(*at)
            length, which = rng.randint(0, 20), walks(rng)
            found = a.best_walk(*at, length, which)
            assert b.best_walk(*at, length, which) == found
            assert all(a.counts(step[3]) == b.counts(step[3]) for step in found[1])


@made
@pytest.mark.parametrize("alphabet", [1, 2, 3, 6, 1000])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 4), (1, 1), (2, 3), (3, 40), (64, 64)])
def test_ngrams_are_the_same(shortest: int, longest: int, alphabet: int) -> None:
    rng = Random(100 * longest + alphabet)
    a, b = ngrams.Ngrams(shortest, longest), indices.ngrams(shortest, longest)
    text: list[int] = []
    for new in chunks(rng, 150, alphabet):
        a.extend(new)
        b.extend(new)
        text += new
        more, most = written(rng, text, alphabet), rng.randint(0, 20)
        assert a.length == b.length
        assert a.matched(more) == b.matched(more) and a.matched([]) == b.matched([])
        assert a.continuation(most, more) == b.continuation(most, more)
        assert a.continuation(most) == b.continuation(most), "and nothing has changed"
        assert a.length == b.length == a.matched([])


@made
def test_a_long_text_is_indexed_like_a_short_one() -> None:
    rng = Random(1)
    text = [rng.randrange(50) * rng.randrange(60) for _ in range(20_000)]
    a, b = automaton.Automaton(32), indices.automaton(32)
    c, d = ngrams.Ngrams(1, 4), indices.ngrams(1, 4)
    for index in (a, b, c, d):
        index.extend(text)
    everything = Walks(50, 2.0, 1.0, 0.0)
    assert a.best_walk(a.deepest, a.match, 64, everything) == b.best_walk(b.deepest, b.match, 64, everything)
    assert c.continuation(64) == d.continuation(64) and a.match == b.match and c.length == d.length


@made
@pytest.mark.parametrize("token", [2**31, 2**70, -(2**31) - 1])
def test_a_token_that_is_no_32_bit_number_is_refused(token: int) -> None:
    suffixes, grams = indices.automaton(4), indices.ngrams(1, 4)
    for index in (suffixes, grams):
        with pytest.raises(OverflowError):
            index.extend([1, token])
    assert suffixes.size == 0 and grams.continuation(1) == ([], []), "nothing was added"


@made
@pytest.mark.parametrize(
    "call",
    [
        lambda a, n: a.extend(None),
        lambda a, n: a.extend(["a"]),
        lambda a, n: a.steps(0, 0),
        lambda a, n: a.steps(0, "a", [1]),
        lambda a, n: a.matched(0),
        lambda a, n: a.counts("a"),
        lambda a, n: a.best_walk(0, 0, 1, Walks(1, "a", 1.0, 0.0)),  # type: ignore[arg-type]
        lambda a, n: a.best_walk(0, 0, 1),
        lambda a, n: n.extend(3),
        lambda a, n: n.matched(3),
        lambda a, n: n.continuation(),
        lambda a, n: n.continuation(1, 3),
        lambda a, n: type(a)("a"),
        lambda a, n: type(n)(1),
    ],
)
def test_arguments_of_another_type_are_refused(call: Any) -> None:
    with pytest.raises(TypeError):
        call(indices.automaton(4), indices.ngrams(1, 4))


@made
@pytest.mark.parametrize("state", [-1, 2, 2**31 - 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda a, state: a.steps(state, 0, [1]),
        lambda a, state: a.matched(state, 1),
        lambda a, state: a.counts(state),
        lambda a, state: a.best_walk(state, 1, 4, Walks(1, 1.0, 1.0, 0.0)),
    ],
)
def test_a_state_that_is_not_there_is_refused(call: Any, state: int) -> None:
    suffixes = indices.automaton(4)
    suffixes.extend([7])
    with pytest.raises(IndexError, match=f"no state {state}"):
        call(suffixes, state)


@made
@pytest.mark.parametrize("lengths", [(0, 4), (-1, 4), (3, 2)])
def test_ngrams_of_no_length_are_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"n-grams of -?\d to \d tokens"):
        indices.ngrams(*lengths)


@made
def test_what_a_text_took_is_freed() -> None:
    def run() -> None:
        a, n = indices.automaton(8), indices.ngrams(1, 4)
        text = list(range(1000, 1300)) * 3
        a.extend(text)
        n.extend(text)
        steps = a.best_walk(*a.steps(a.deepest, a.match, [1000]), 20, Walks(4, 2.0, 20.0, 0.0))[1]
        assert len(steps) == len(n.continuation(20, [1000])[0]) == 20
        assert a.counts(steps[0][3]) == [2] and a.matched(a.deepest, a.match) and n.matched([1000])
        wrong: Any = [1, "a"]
        with pytest.raises(TypeError):
            a.extend(wrong)
        with pytest.raises(TypeError):
            n.continuation(1, wrong)

    for _ in range(20):
        run()
    gc.collect()
    before, blocks = resident(), sys.getallocatedblocks()
    for _ in range(300):
        run()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 300, "each run would leave one"
    assert resident() - before < 20e6, "300 texts take 100 MB if they stay"


def resident() -> float:
    """Bytes of this process that are in memory."""
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("this system does not tell")
    (line,) = (one for one in status.read_text().splitlines() if one.startswith("VmRSS"))
    return 1024.0 * float(line.split()[1])


def raising(error: Exception) -> Any:
    def fail(*args: Any, **more: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("harm", ["no compiler", "no headers", "damage", "no home", "no space"])
def test_without_the_module_lookups_are_in_python(
    fresh: None, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: Any, tmp_path: Path
) -> None:
    if harm == "no compiler":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif harm == "no headers":
        monkeypatch.setattr(indices, "get_path", lambda name: str(tmp_path))
    elif harm == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", raising(RuntimeError("could not determine home directory")))
    elif harm == "no space":
        monkeypatch.setattr(Path, "mkdir", raising(OSError(28, "No space left on device")))
    else:
        (tmp_path / "damaged.so").write_bytes(b"\x7fELF and no more")
        monkeypatch.setattr(indices, "compiled_file", lambda: tmp_path / "damaged.so")
    with caplog.at_level(logging.INFO):
        assert isinstance(indices.automaton(4), automaton.Automaton)
    assert isinstance(indices.ngrams(1, 4), ngrams.Ngrams)
    assert "lookups in Python" in caplog.text


def drafters() -> Iterator[SuffixDrafter | NgramDrafter]:
    yield SuffixDrafter()
    yield SuffixDrafter(max_tokens=40, history=100)
    yield NgramDrafter()


@pytest.mark.parametrize("which", range(3))
def test_a_guess_is_the_whole_draft_without_what_it_says(language: str, which: int) -> None:
    drafter, request = list(drafters())[which], make_request()
    assert drafter.guess(request, 9) == []
    drafted = 0
    for new in chunks(Random(which), 80, 4):
        commit(drafter, request, new)
        made = draft(drafter, request, 9).tokens
        assert tuple(drafter.guess(request, 9)) == made
        drafted += len(made)
    assert drafted > 80
