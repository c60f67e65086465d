"""A drafter that lacks ids of its target reads others in their place; grades are those of real drafts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.constraint import constraint_of
from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.early_exit import EarlyExitDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.neural.medusa import MedusaDrafter
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.drafters.neural.heads import random_eagle, random_medusa, random_mtp, target
from tests.effort import some
from tests.tiny import VOCAB, model, own_text


def smaller(size: int) -> Any:
    made = model("llama", seed=9)
    made.resize_token_embeddings(size)
    return made


SIZES = (VOCAB - 4, VOCAB, VOCAB + 9)
KINDS = [(size, policy, n) for size in SIZES for policy in ("static-3", "auto", "hedgespec") for n in (1, 3)]


@pytest.mark.parametrize(("size", "policy", "batch"), some(KINDS, 5))
def test_the_text_is_the_targets_own_and_nothing_fails(size: int, policy: str, batch: int) -> None:
    made = model("llama", scale=5.0)
    loop = loop_with(HFTarget(made), {"lm": LMDrafter(smaller(size), VOCAB)}, policy)
    prompts = [[VOCAB - 1, 3, VOCAB - 2], [4, VOCAB - 1] * 40, [5]]
    rounds = list(loop.run(prompts, Sampling(max_new_tokens=30), batch=batch))
    assert not any(round.fault for round in rounds)
    assert group_tokens(rounds) == [own_text(made, prompt, 30) for prompt in prompts]
    assert any(round.drafted for round in rounds) or policy == "auto"


class Fourths:
    """A masker that allows a fourth of the tokens, others at each position."""

    def allowed(self, n: int, size: int) -> torch.Tensor:
        return (torch.arange(size) + n) % 4 == 0

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores.masked_fill(~self.allowed(ids.shape[1], scores.shape[1]), -inf)

    def mask(self, text: Any, start: int, ahead: Any, scores: Any) -> Any:
        return scores.masked_fill(~self.allowed(len(text) + len(ahead), len(scores)), -inf)

    def only(self, text: Any, start: int, ahead: Any) -> int:
        return -1

    def allows(self, text: Any, start: int, ahead: Any, token: int) -> bool:
        return (len(text) + len(ahead) + token) % 4 == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["lm", "exit", "eagle", "medusa", "mtp"])
def test_grades_under_a_mask_are_those_of_the_drafts(kind: str, temperature: float) -> None:
    made = target()
    reads = HFTarget(made)
    makes: dict[str, Callable[[], Any]] = {
        "lm": lambda: LMDrafter(model("llama", seed=9), VOCAB),
        "exit": lambda: EarlyExitDrafter(reads),
        "eagle": lambda: EagleDrafter(random_eagle(made), reads),
        "medusa": lambda: MedusaDrafter(random_medusa(made), reads),
        "mtp": lambda: EagleDrafter(random_mtp(made), reads),
    }
    check_grades_under_a_mask(makes[kind](), reads, temperature)


def check_grades_under_a_mask(drafter: Any, reads: HFTarget, temperature: float) -> None:
    settings = Sampling(max_new_tokens=400, temperature=temperature, processors=(Fourths(),))
    request = Request(1, [3, 4, 5, 6, 7, 8, 9], 7, settings, Random(0), Random(0))
    reads.open(request)

    def step() -> tuple[Any, int]:
        (scores,) = reads.verify([(request, Draft())])
        token = scores.choice(-1)
        request.tokens.append(token)
        reads.commit([(request, Draft(), Verdict((), token))])
        return scores, token

    step()
    for _ in range(25):
        (draft,) = drafter.draft([Job(request, 1, constraint=constraint_of(request))])
        scores, token = step()
        chance, rows = scores.chance(-1, token), scores.distributions([-1])
        job = GradeJob(request, len(request.tokens) - 1, [chance], distributions=rows)
        accept = drafter.grade([job])[0][0].accept
        right = float(draft.tokens == (token,))
        wanted = min(1.0, float(draft.dist[0][token]) / chance) if temperature else right
        assert accept == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("kind", ["granite", "cohere"])
def test_early_exit_grades_by_the_scale_of_its_models_logits(kind: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    more = {"logits_scaling": 0.2} if kind == "granite" else {"logit_scale": 5.0}
    config = AutoConfig.for_model(kind, vocab_size=VOCAB, num_key_value_heads=2, **size, **more)
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).double().eval()
    reads = HFTarget(made)
    drafter = EarlyExitDrafter(reads)
    settings = Sampling(max_new_tokens=60, temperature=1.0)
    request = Request(1, [3, 4, 5, 6], 4, settings, Random(0), Random(0))
    reads.open(request)
    for at in range(8):
        draft = drafter.draft([Job(request, 1)])[0] if at else Draft()
        (scores,) = reads.verify([(request, Draft())])
        token = scores.choice(-1)
        request.tokens.append(token)
        reads.commit([(request, Draft(), Verdict((), token))])
        if at:
            chance = scores.chance(-1, token)
            (grade,) = drafter.grade([GradeJob(request, len(request.tokens) - 1, [chance])])[0]
            assert grade.accept == pytest.approx(min(1.0, float(draft.dist[0][token]) / chance), abs=1e-3)
