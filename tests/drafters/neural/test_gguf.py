"""The GGUF drafter: what it drafts is what llama.cpp says on the whole text, and it reads nothing twice."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job
from draftwise.core.outcomes import Grade
from draftwise.core.roles import GradeJob
from draftwise.drafters.neural.gguf import GgufDrafter, gguf
from draftwise.targets.hf import HFTarget
from tests.drafters.neural.heads import target
from tests.drafters.neural.test_lm import (
    Model,
    by_hand,
    check_nothing_is_read_twice,
    check_rule,
    check_turns,
    check_vocabulary,
    request,
)
from tests.drafters.neural.test_unknown_ids import check_grades_under_a_mask
from tests.gguf import Plain, tiny, watch_feeds
from tests.tiny import VOCAB

RULES = [Stop("max-confidence", 0.6), Stop("svip", 0.9), Stop("cumulative", 0.3)]


def drafter(**options: Any) -> GgufDrafter:
    made = gguf(tiny(), VOCAB, **options)
    assert isinstance(made, GgufDrafter)
    return made


def texts(n: int = 4) -> list[list[int]]:
    return [[Random(i).randrange(2, VOCAB) for _ in range(3 + 13 * i)] for i in range(n)]


def reads(path: str) -> Model:
    plain = Plain(path)
    return lambda text: torch.from_numpy(plain.after(text))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_a_draft_ends_where_its_rule_says(rule: Stop) -> None:
    check_rule(gguf(tiny(head=6.0), VOCAB), reads(tiny(head=6.0)), rule)


def test_requests_may_take_turns() -> None:
    check_turns(drafter(), reads(tiny()))


def test_nothing_is_read_twice() -> None:
    made = drafter()
    check_nothing_is_read_twice(made, watch_feeds(made), reads(tiny()))
    assert not made.rows.cached_lengths


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_another_size_is_cut_or_filled_with_zeros(size: int, temperature: float) -> None:
    check_vocabulary(gguf(tiny(vocab=size), VOCAB), size, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grades_under_a_mask_are_those_of_the_drafts(temperature: float) -> None:
    check_grades_under_a_mask(drafter(), HFTarget(target()), temperature)


def test_a_seat_is_what_another_text_has_read() -> None:
    made, text = drafter(), texts()[3]
    whole, view = request(0, text), request(1, text[:20])
    made.draft([Job(whole, 2)])
    made.seat(whole, view)
    assert made.rows.cached_lengths[1] == 19
    assert list(made.draft([Job(view, 3)])[0].tokens) == by_hand(reads(tiny()), text[:20], 3, Stop())


def test_a_text_beyond_the_context_is_not_read_for_grades() -> None:
    """Beside one that fits: the memory stays what it is."""
    made, (short, long) = drafter(context=512), ([5, 6, 7] * 9, [5, 6, 7] * 600)
    jobs = [GradeJob(request(i, text), len(text) - 2, [1.0] * 2) for i, text in enumerate((long, short))]
    cells = made.rows.context.cells
    expected = drafter(context=512).grade(jobs[1:])
    assert made.grade(jobs) == [[Grade(0.0, 0.0)] * 2, *expected]
    assert made.rows.context.cells == cells and list(made.rows.cached_lengths.values()) == [len(short) - 1]


def test_nothing_is_drafted_beyond_the_context() -> None:
    made = drafter(context=40)
    drafts = made.draft([Job(request(i, [5] * n), 4) for i, n in enumerate((30, 38, 40, 50))])
    assert [len(draft.tokens) for draft in drafts] == [4, 2, 0, 0]
    assert made.hint(request(9, [5] * 39)) == 1.0 and made.hint(request(9, [5] * 40)) == 0.0


def test_only_texts_beyond_the_sequences_of_llamacpp_go_undrafted() -> None:
    made = drafter()
    most = made.rows.most = made.rows.context.sequences
    jobs = [Job(request(i, [5, 6, 7] * 3), 3) for i in range(most + 2)]
    assert [len(draft.tokens) for draft in made.draft(jobs)] == [3] * most + [0, 0]
    assert [made.hint(job.request) for job in jobs] == [1.0] * most + [0.0, 0.0]
    last = GradeJob(jobs[-1].request, 7, [1.0] * 2)
    assert made.grade([last]) == [[Grade(0.0, 0.0)] * 2]
    made.close(jobs[0].request)
    assert len(made.draft(jobs[-1:])[0].tokens) == 3, "its turn has come"
