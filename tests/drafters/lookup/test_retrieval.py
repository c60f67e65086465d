from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from draftwise.core.arms import Stop
from draftwise.drafters.lookup.datastore import build
from draftwise.drafters.lookup.picked import share
from draftwise.drafters.lookup.retrieval import RetrievalDrafter
from draftwise.errors import UserError

from .texts import chunks, commit, draft, make_request, starts_of

SIZE = 40


def store(path: Path, *documents: list[int]) -> str:
    source = path / "corpus.jsonl"
    source.write_text("".join(json.dumps({"text": " ".join(map(str, d))}) + "\n" for d in documents))
    out = path / "store"
    build([source], out, encode=lambda t: [int(x) for x in t.split()], vocab_size=SIZE, fingerprint="ours")
    return str(out)


def scan(
    documents: list[list[int]], text: list[int], *, shortest: int, longest: int
) -> tuple[int, list[list[int]]]:
    """The longest known end of the text, and what followed it in the documents."""
    for n in range(min(longest, len(text)), shortest - 1, -1):
        found = [d[at + n :] for d in documents for at in starts_of(d, text[-n:])]
        if found:
            return n, found
    return 0, []


def vote(rows: list[list[int]], tokens: tuple[int, ...], length: int, min_prob: float) -> list[float]:
    """Check that each token won its vote; give the probabilities. Ties may go either way."""
    joint = 1.0
    probs: list[float] = []
    for i in range(length + 1):
        counts = Counter(row[i] if i < len(row) else None for row in rows)
        top = max(counts.values(), default=0)
        p = share(top, counts.total())
        if i == len(tokens):
            over = i == length or not rows or joint * p < min_prob or counts[None] == top
            assert over, "the draft ended early"
            return probs
        assert counts[tokens[i]] == top
        joint *= p
        probs.append(p)
        rows = [row for row in rows if i < len(row) and row[i] == tokens[i]]
    raise AssertionError("the draft is too long")


@pytest.mark.parametrize("alphabet", [2, 5, 30])
@pytest.mark.parametrize(("shortest", "longest", "min_prob"), [(1, 3, 0.0), (2, 16, 0.2), (3, 3, 0.5)])
def test_agrees_with_a_scan_of_the_documents(
    tmp_path: Path, alphabet: int, shortest: int, longest: int, min_prob: float
) -> None:
    rng = Random(alphabet + longest)
    documents = [[t for new in chunks(rng, 8, alphabet) for t in new] for _ in range(15)]
    drafter = RetrievalDrafter(
        store(tmp_path, *documents),
        min_match=shortest,
        max_match=longest,
        candidates=100_000,
        min_prob=min_prob,
    )
    request = make_request()
    for new in chunks(rng, 100, alphabet):
        commit(drafter, request, new)
        match, rows = scan(documents, request.tokens, shortest=shortest, longest=longest)
        made = draft(drafter, request, 6)
        assert drafter.hint(request) == match
        assert made.probs == pytest.approx(vote(rows, made.tokens, 6, min_prob))
        assert all(s.chosen == s.top1 >= s.top2 > 0.0 and s.entropy > 0.0 for s in made.signals)


def test_few_candidates_never_draft_what_no_document_has(tmp_path: Path) -> None:
    rng = Random(8)
    documents = [[rng.randrange(6) for _ in range(30)] for _ in range(20)]
    drafter = RetrievalDrafter(store(tmp_path, *documents), min_match=1, candidates=3, min_prob=0.0)
    request = make_request()
    for _ in range(200):
        commit(drafter, request, [rng.randrange(6)])
        made = draft(drafter, request, 5)
        match = int(drafter.hint(request))
        whole = request.tokens[len(request.tokens) - match :] + list(made.tokens)
        assert any(starts_of(document, whole) for document in documents)


def test_min_prob_and_stop_rules_end_a_draft(tmp_path: Path) -> None:
    path = store(tmp_path, list(range(20)))
    request = make_request()
    lengths = {}
    for min_prob in (0.0, 0.2, 0.5, 0.7):
        drafter = RetrievalDrafter(path, min_prob=min_prob)
        commit(drafter, make_request(), [3, 4])
        lengths[min_prob] = len(draft(drafter, request).tokens)
    assert lengths == {0.0: 8, 0.2: 3, 0.5: 1, 0.7: 0}  # powers of 2/3
    drafter = RetrievalDrafter(path, min_prob=0.0)
    commit(drafter, request, [3, 4])
    assert draft(drafter, request, 8, Stop("cumulative", 0.5)).tokens == (5, 6)


def test_a_request_goes_on_until_it_is_closed(tmp_path: Path) -> None:
    drafter = RetrievalDrafter(store(tmp_path, [1, 2, 3, 4, 5, 6]))
    request = make_request()
    commit(drafter, request, [1, 2])
    assert drafter.hint(request) == 2.0
    commit(drafter, request, [3])
    assert drafter.hint(request) == 3.0
    commit(drafter, request, [9, 4, 5])  # the next turn
    assert draft(drafter, request).tokens == (6,)
    drafter.close(request)
    drafter.close(request)
    assert drafter.texts == {}
    assert draft(drafter, request).tokens == ()


def test_check_is_the_datastores(tmp_path: Path) -> None:
    drafter = RetrievalDrafter(store(tmp_path, [1, 2]))
    drafter.check(SIZE, "ours")
    with pytest.raises(UserError, match="another vocabulary"):
        drafter.check(SIZE, "theirs")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_match": 0}, "min_match=0"),
        ({"min_match": 5, "max_match": 4}, "min_match=5&max_match=4"),
        ({"max_match": 33}, "max_match=33"),
    ],
)
def test_bad_settings_name_the_value(tmp_path: Path, options: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        RetrievalDrafter(store(tmp_path, [1, 2]), **options)


def test_a_path_is_needed() -> None:
    with pytest.raises(UserError, match="retrieval:PATH"):
        RetrievalDrafter()
