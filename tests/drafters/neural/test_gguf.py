"""The GGUF drafter: what it drafts is what llama.cpp says on the whole text, and it reads nothing twice."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job, Signals
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.sampling import Sampling
from draftwise.core.stops import stop
from draftwise.drafters.neural.gguf import GgufDrafter, gguf
from draftwise.models.distributions import warp, warpers
from tests.drafters.neural.test_lm import check_nothing_is_read_twice
from tests.gguf import Plain, tiny, watch_feeds
from tests.tiny import VOCAB

RULES = [Stop("max-confidence", 0.6), Stop("svip", 0.9), Stop("cumulative", 0.3)]


def drafter(**options: Any) -> GgufDrafter:
    made = gguf(tiny(), VOCAB, **options)
    assert isinstance(made, GgufDrafter)
    return made


def request(at: int, tokens: list[int], **settings: Any) -> Request:
    sampling = Sampling(**{"max_new_tokens": 60} | settings)
    return Request(at, tokens, len(tokens), sampling, Random(at), Random(at))


def texts(n: int = 4) -> list[list[int]]:
    return [[Random(i).randrange(2, VOCAB) for _ in range(3 + 13 * i)] for i in range(n)]


def by_hand(plain: Plain, tokens: list[int], length: int, rule: Stop) -> list[int]:
    """The greedy draft, read from the beginning for each token."""
    text, joint, previous = list(tokens), 1.0, None
    for position in range(length):
        p = torch.from_numpy(plain.after(text)).softmax(-1)
        first, second = p.topk(2).values.tolist()
        text.append(int(p.argmax()))
        now = Signals(first, second, float(-(p * p.log()).sum()), first)
        joint *= first
        if stop(rule, now, position=position, previous=previous, joint=joint):
            break
        previous = now
    return text[len(tokens) :]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_a_draft_ends_where_its_rule_says(rule: Stop) -> None:
    plain, made = Plain(tiny(head=6.0)), gguf(tiny(head=6.0), VOCAB)
    jobs = [Job(request(i, text), 8, (rule,)) for i, text in enumerate(texts())]
    hand = [by_hand(plain, text, 8, rule) for text in texts()]
    assert [list(draft.tokens) for draft in made.draft(jobs)] == hand
    assert len({len(tokens) for tokens in hand}) > 1, "the rule must matter"


def test_requests_may_take_turns() -> None:
    made, plain = drafter(), Plain(tiny())
    requests = [request(i, text) for i, text in enumerate(texts(3))]
    for asked in ([0], [1], [0], [2, 1], [0, 2], [1], [0, 1, 2]):
        drafts = made.draft([Job(requests[i], 4) for i in asked])
        for i, draft in zip(asked, drafts, strict=True):
            assert list(draft.tokens) == by_hand(plain, requests[i].tokens, 4, Stop())
            requests[i].tokens += [*draft.tokens[:2], 5]


def test_nothing_is_read_twice() -> None:
    made, plain = drafter(), Plain(tiny())
    check_nothing_is_read_twice(made, watch_feeds(made), lambda text: by_hand(plain, text, 4, Stop()))
    assert not made.rows.cached_lengths


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_another_size_is_cut_or_filled_with_zeros(size: int, temperature: float) -> None:
    made = gguf(tiny(vocab=size), VOCAB)
    (draft,) = made.draft([Job(request(0, [3, 4, 5], temperature=temperature), 8)])
    assert len(draft.tokens) == 8 and max(draft.tokens) < min(size, VOCAB)
    for q, token, p in zip(draft.dist or [], draft.tokens, draft.probs, strict=temperature > 0):
        assert q.shape == (VOCAB,) and float(q.sum()) == pytest.approx(1.0) and float(q[token]) == p
    assert (draft.dist is not None) == (temperature > 0)


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "top_k": 12}], ids=["greedy", "warm"])
def test_grades_are_those_of_its_own_distributions(settings: dict[str, Any], drafted: bool) -> None:
    """Read in one pass, or known from the rows that it drafted with."""
    made, plain, rng = drafter(), Plain(tiny()), Random(2)
    jobs, expected = [], []
    for i, text in enumerate(texts()):
        r = request(i, text, **settings)
        start, draft = len(text), None
        if drafted:
            (draft,) = made.draft([Job(r, 3, rows=True)])
        likely = int(plain.after(text).argmax())
        r.tokens += [*(draft.tokens[:2] if draft else [likely]), rng.randrange(VOCAB), rng.randrange(VOCAB)]
        n = len(r.tokens) - start
        jobs.append(GradeJob(r, start, [0.5] * n, draft=draft))
        rows = np.stack([plain.after(r.tokens[: start + k]) for k in range(n)])
        new = torch.tensor(r.tokens[start:])
        if settings:
            q = warp(warpers(r.sampling), torch.from_numpy(rows)).gather(1, new[:, None])[:, 0]
            expected.append([min(1.0, float(p) / 0.5) for p in q])
        else:
            expected.append((torch.from_numpy(rows.argmax(-1)) == new).float().tolist())
    found = made.grade(jobs)
    for mine, hand in zip(found, expected, strict=True):
        assert [grade.accept for grade in mine] == pytest.approx(hand, abs=1e-5)
    assert any(grade.accept > 0 for mine in found for grade in mine)


def test_a_seat_is_what_another_text_has_read() -> None:
    made, text = drafter(), texts()[3]
    whole, view = request(0, text), request(1, text[:20])
    made.draft([Job(whole, 2)])
    made.seat(whole, view)
    assert made.rows.cached_lengths[1] == 19
    assert list(made.draft([Job(view, 3)])[0].tokens) == by_hand(Plain(tiny()), text[:20], 3, Stop())


def test_nothing_is_drafted_beyond_the_context() -> None:
    made = drafter(context=40)
    drafts = made.draft([Job(request(i, [5] * n), 4) for i, n in enumerate((30, 38, 40, 50))])
    assert [len(draft.tokens) for draft in drafts] == [4, 2, 0, 0]
    assert made.hint(request(9, [5] * 39)) == 1.0 and made.hint(request(9, [5] * 40)) == 0.0
