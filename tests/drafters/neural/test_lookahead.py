"""Lookahead keeps the target's text and distribution, and its guesses turn into n-grams that the target has
said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.core.accept import accept
from draftwise.core.arms import Arm
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.lookahead import LookaheadDrafter
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import check_sampled, target
from tests.drafters.neural.test_eagle import opened, texts_of
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.tiny import own_text

ARMS = (Arm("ahead", 6, width=6), Arm("ahead", 3), Arm("ahead", 3, width=4), Arm("ngram", 3), Arm("none", 0))


def loop_of(made: Any, arms: tuple[Arm, ...] = ARMS, n: int = 4) -> Loop:
    reads = HFTarget(made, chunk=8)
    policy = Anyone(arms)
    return Loop(reads, {"ahead": LookaheadDrafter(reads, n=n), "ngram": NgramDrafter()}, policy, policy)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3-window"])
def test_greedy_text_is_the_models_own(name: str) -> None:
    made = target(name)
    own = [own_text(made, p, 40) for p in prompts()]
    for batch in (1, 3):
        texts, rounds = texts_of(loop_of(made), 40, batch)
        assert texts == own
        assert all(r.accepted <= r.arm.length for r in rounds)
        assert any(r.accepted for r in rounds if r.arm.drafter == "ahead")


@pytest.mark.parametrize("settings", ["shaped", "penalties"])
def test_the_distribution_is_the_targets(settings: str) -> None:
    made = target(scale=5.0)
    loop = loop_of(made, (Arm("ahead", 3, width=6), Arm("ngram", 2)), n=3)
    check_sampled(loop, distribution_of(made), settings, beside=60)


def test_new_n_grams_are_what_the_target_says_after_the_window() -> None:
    """Every column of the window and the target's most likely token after it, given the trunk before it."""
    made = target()
    reads, requests = opened(made, [[3, 4, 5, 9]])
    (request,) = requests
    drafter = LookaheadDrafter(reads, n=3)
    drafter.observe(request, request.tokens)
    for _ in range(3):
        (draft,) = drafter.draft([Job(request, 4, width=6)])
        window = [list(column) for column in drafter.texts[0].window]
        assert len(window) == 3 and all(len(column) == 2 for column in window)
        wanted = []
        for k, column in enumerate(window):
            text = [*request.tokens, *(first for first, _ in window[:k]), *column]
            with torch.inference_mode():
                wanted.append(int(made(torch.tensor([text])).logits[0, -1].argmax()))
        (scores,) = reads.verify([(request, draft)])
        verdict = accept(draft, scores, request.rng)
        new = [*(draft.tokens[i] for i in verdict.path), verdict.token]
        request.tokens += new
        reads.commit([(request, draft, verdict)])
        drafter.observe(request, new)
        known = drafter.texts[0]
        for column, token, after in zip(window, wanted, known.window, strict=True):
            assert after == [column[1], token]
            assert (column[1], token) in known.grams[column[0]]


def test_the_text_itself_gives_n_grams_and_the_oldest_go() -> None:
    reads, requests = opened(target(), [[3, 4, 5, 3, 6, 7, 3, 8, 9, 3]])
    (request,) = requests
    request.tokens = request.tokens[:10]
    drafter = LookaheadDrafter(reads, n=3, pool=2)
    drafter.observe(request, request.tokens)
    assert list(drafter.texts[0].grams[3]) == [(6, 7), (8, 9)] and drafter.hint(request) == 2.0
    assert drafter.draft([Job(request, 4)])[0].tokens == (8, 9)
    (tree,) = drafter.draft([Job(request, 1, width=4)])
    assert tree.tokens == (8, 6) and tree.parents == (-1, -1)
    drafter.close(request)
    assert drafter.hint(request) == 0.0


def test_nobody_looks_ahead_and_no_guess_is_kept() -> None:
    reads = HFTarget(target())
    policy = Anyone((Arm("ngram", 3),))
    list(Loop(reads, {"ngram": NgramDrafter()}, policy, policy).run(prompts(), Sampling(max_new_tokens=5)))
    assert reads.guesses is None
    loop = loop_of(target())
    list(loop.run(prompts(), Sampling(max_new_tokens=5)))
    kept: Any = loop.target
    assert kept.guesses == {}, "closed texts are forgotten"
