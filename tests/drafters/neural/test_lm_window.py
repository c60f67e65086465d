"""A model that sees the beginning and the end of a text only: short caches, the same text."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.policies.recorders.full_information import Grading
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone, watch_passes, written
from tests.drafters.neural.heads import check_sampled, target
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.tiny import VOCAB, model, own_text

WINDOW, SINKS = 8, 3


def request_of(n: int, seed: int = 5) -> Request:
    rng = Random(seed)
    text = [rng.randrange(VOCAB) for _ in range(n)]
    return Request(seed, text, n, Sampling(max_new_tokens=90), Random(0), Random(0))


def small() -> Any:
    return model("llama", seed=3)


def seen(tokens: list[int], skip: int) -> list[int]:
    return [*tokens[:SINKS], *tokens[SINKS + skip :]]


def test_a_draft_is_what_the_model_says_of_what_it_sees() -> None:
    """Token by token, from a text shorter than the window to one much longer."""
    made = small()
    drafter = LMDrafter(made, VOCAB, window=WINDOW, sinks=SINKS)
    whole, request = request_of(70).tokens, request_of(4)
    sizes = []
    for n in range(4, 70, 2):
        request.tokens = whole[:n]
        (draft,) = drafter.draft([Job(request, 3)])
        view = seen(request.tokens, drafter.cached[request.id].skip)
        assert len(view) <= SINKS + 2 * WINDOW and view[-min(n, WINDOW) :] == whole[max(0, n - WINDOW) : n]
        assert list(draft.tokens) == own_text(made, view, 3)
        sizes.append(drafter.runner.cached_lengths[0])
    assert max(sizes) <= SINKS + 2 * WINDOW + 3


def test_one_asked_late_reads_no_more_than_it_sees() -> None:
    drafter = LMDrafter(small(), VOCAB, window=WINDOW, sinks=SINKS)
    read = watch_passes(drafter.runner)
    drafter.draft([Job(request_of(100), 1)])
    assert sum(read) == SINKS + WINDOW


def test_grades_are_of_what_it_sees_and_signals_of_where_it_stands() -> None:
    made = small()
    drafter = LMDrafter(made, VOCAB, window=WINDOW, sinks=SINKS)
    request = request_of(40)
    request.prompt_length = 30
    stops = (Stop("svip", 99.0),)
    for start in (30, 34, 12):
        needs = frozenset({"place", "entropy"})
        (grades,) = drafter.grade([GradeJob(request, start, [1.0] * (40 - start), signals=needs)])
        view = seen(request.tokens, skip := drafter.cached[request.id].skip)
        with torch.inference_mode():
            picks = made(torch.tensor([view])).logits[0].argmax(-1).tolist()
        right = [float(picks[j - skip - 1] == request.tokens[j]) for j in range(start, 40)]
        assert [g.accept for g in grades] == right
        assert [g.signals.place for g in grades if g.signals] == [j - 30 for j in range(start, 40)]
    (draft,) = drafter.draft([Job(request, 2, stops)])
    assert list(draft.tokens) == own_text(made, seen(request.tokens, drafter.cached[request.id].skip), 2)


def loop_of(made: Any) -> Loop:
    team: dict[str, Any] = {
        "short": LMDrafter(small(), VOCAB, window=WINDOW, sinks=SINKS),
        "same": LMDrafter(made, VOCAB, window=4, sinks=0),
    }
    arms = (Arm("short", 3), Arm("same", 4), Arm("none", 0))
    return Loop(HFTarget(made, chunk=8), team, Anyone(arms), Grading(arms))


def test_greedy_text_is_the_models_own() -> None:
    made = target()
    own = [own_text(made, p, 40) for p in prompts()]
    for batch in (1, 3):
        assert written(loop_of(made), prompts(), 40, batch) == own


def test_the_distribution_is_the_targets() -> None:
    made = target(scale=5.0)
    loop = loop_of(made)
    check_sampled(loop, distribution_of(made), beside=60)
