"""How an LM drafter grades itself: against its own draft distributions, and against its own decoding of the
text."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob, Graders, RoundRecord
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural import chains
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.distributions import warp, warpers
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.policies.recorders.full_information import Grading
from draftwise.targets.hf import HFTarget
from tests.effort import some
from tests.tiny import VOCAB, model

GREEDY = Sampling(max_new_tokens=30)
WARM = Sampling(max_new_tokens=30, temperature=0.8, top_k=12)


@pytest.fixture(scope="module")
def target_model() -> Any:
    return sharp(model("llama", scale=6.0))


@pytest.fixture(scope="module")
def near(target_model: Any) -> Any:
    """Nearly the target: right now and then."""
    made = sharp(model("llama", scale=6.0))
    with torch.no_grad():
        for weight in made.parameters():
            weight += (
                0.08
                * weight.std()
                * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3), dtype=weight.dtype)
            )
    return made


def sharp(made: Any) -> Any:
    with torch.no_grad():
        made.lm_head.weight *= 4
    return made


def request(at: int, tokens: list[int], sampling: Sampling) -> Request:
    return Request(at, tokens, 3, sampling, Random(at), Random(at))


@torch.inference_mode()
def by_hand(made: Any, tokens: Sequence[int], start: int, sampling: Sampling) -> torch.Tensor:
    logits = made(torch.tensor([list(tokens)])).logits[0, start - 1 : -1, :VOCAB]
    return warp(warpers(sampling), logits)


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_grades_are_min_1_q_over_p_and_the_overlap(near: Any, sample: bool, sampling: Sampling) -> None:
    drafter = LMDrafter(near, VOCAB, sample=sample)
    rng = Random(2)
    jobs, distributions = [], []
    for i, start in enumerate((4, 30, 9)):
        tokens = [rng.randrange(VOCAB) for _ in range(start + 5 + i)]
        n = len(tokens) - start
        distribution = torch.rand((n, VOCAB), generator=torch.Generator().manual_seed(i)).double().softmax(-1)
        distributions.append(distribution)
        probs = (
            [float(distribution[k, tokens[start + k]]) for k in range(n)]
            if not sampling.greedy
            else [1.0] * n
        )
        one = request(i, tokens, sampling)
        jobs.append(GradeJob(one, start, probs, None if sampling.greedy else distribution.float()))
    for job, distribution, grades in zip(jobs, distributions, drafter.grade(jobs), strict=True):
        q = by_hand(near, job.request.tokens, job.start, sampling)
        for k, grade in enumerate(grades):
            token = job.request.tokens[job.start + k]
            if sample and not sampling.greedy:
                assert grade.accept == pytest.approx(min(1.0, float(q[k, token]) / job.probs[k]), abs=1e-5)
                assert grade.overlap == pytest.approx(
                    float(torch.minimum(q[k], distribution[k]).sum()), abs=1e-5
                )
            else:
                pick = int(q[k].argmax())
                assert grade.accept == float(pick == token)
                want = float(distribution[k, pick]) if not sampling.greedy else grade.accept
                assert grade.overlap == pytest.approx(want, abs=1e-5)


def test_rows_of_its_own_draft_are_not_read_again(near: Any) -> None:
    """Grading after a draft says the same as grading the text afresh, with at most one pass over its end."""
    text = [1, 2, 3, 4, 5]
    one, other = LMDrafter(near, VOCAB), LMDrafter(near, VOCAB)
    for accepted in range(5):
        mine = request(accepted, list(text), WARM)
        (draft,) = one.draft([Job(mine, 4, rows=True)])
        assert len(draft.rows) == 4
        mine.tokens += [*draft.tokens[:accepted], (draft.tokens[accepted] + 1) % VOCAB if accepted < 4 else 7]
        probs = [0.5] * (accepted + 1)
        distribution = torch.full((accepted + 1, VOCAB), 1 / VOCAB)
        before = one.runner.seconds
        known = one.grade([GradeJob(mine, 5, probs, distribution, draft)])
        assert (one.runner.seconds > before) == (accepted == 4)
        afresh = other.grade([GradeJob(mine, 5, probs, distribution)])
        for a, b in zip(known[0], afresh[0], strict=True):
            assert a.accept == pytest.approx(b.accept, abs=1e-5)
            assert a.overlap == pytest.approx(b.overlap, abs=1e-5)
        # and the next draft continues from the text as it is now
        (again,), (anew,) = (d.draft([Job(request(accepted, mine.tokens, GREEDY), 3)]) for d in (one, other))
        assert again.tokens == anew.tokens


ARMS = (
    Arm("near", 2),
    Arm("near", 5),
    Arm("near", 5, stop=Stop("max-confidence", 0.6)),
    Arm("near", 5, stop=Stop("cumulative", 0.3)),
    Arm("far", 3),
    Arm("ngram", 4),
    Arm("none", 0),
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 4, 5, 6, 7], list(range(2, 22))]


class Ear(BanditPolicy):
    def __init__(self) -> None:
        super().__init__(ARMS, Uniform)
        self.losses: dict[int, list[tuple[float | None, ...]]] = {}

    def learn(self, feedback: Feedback) -> None:
        if feedback.losses:
            self.losses.setdefault(feedback.request, []).append(feedback.losses)


def drafters(near: Any) -> dict[str, Any]:
    far = sharp(model("gpt2", scale=4.0))
    return {"near": LMDrafter(near, VOCAB), "far": LMDrafter(far, VOCAB), "ngram": NgramDrafter()}


def write(target_model: Any, near: Any, policy: Any, recorder: Any, batch: int) -> list[Round]:
    loop = Loop(HFTarget(target_model), drafters(near), policy, recorder)
    rounds = list(loop.run(PROMPTS, GREEDY, batch=batch))
    assert not any(loop.faults.values())
    return rounds


@pytest.mark.parametrize("batch", some([1, 3], 2))
@pytest.mark.parametrize("options", [{}, {"form": "ratio", "every": 7}], ids=["each round", "every 7"])
def test_greedy_the_cursors_are_each_models_own_rounds(
    target_model: Any, near: Any, batch: int, options: dict[str, Any]
) -> None:
    ear = Ear()
    written = write(target_model, near, ear, Grading(ARMS, **options), batch)
    plain = write(target_model, near, BanditPolicy((ARMS[-1],), Fixed), Bandit(reward("accepted"), 1), 1)
    for at in range(3):
        assert tokens(written, at) == tokens(plain, at)
    for i, arm in enumerate(ARMS):
        own = write(target_model, near, BanditPolicy((arm,), Fixed), Bandit(reward("accepted"), 5), 1)
        for at in range(3):
            losses = [row[i] or 0.0 for row in ear.losses[at]]
            assert sum(losses) == sum(r.request == at for r in own), (arm.name, at)
    assert len({sum(row[i] or 0.0 for row in ear.losses[1]) for i in range(len(ARMS))}) > 2


def tokens(rounds: Sequence[Round], at: int) -> list[int]:
    return [t for r in rounds if r.request == at for t in r.tokens]


@pytest.mark.parametrize("batch", [1, 3])
def test_block_divergence_comes_from_the_device_for_models_and_lookups(
    target_model: Any, near: Any, batch: int
) -> None:
    made = method("metasd-ucb?length=4", ["near", "far", "ngram"])
    heard: list[tuple[RoundRecord, list[int]]] = []

    class Ears:
        reads = made.recorder.reads

        def add(self, seen: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
            heard.extend((s, s.request.tokens[: -len(s.tokens)]) for s in seen if s.outcome.drafted)
            return made.recorder.add(seen, graders)

        def close(self, request: Request) -> Sequence[Feedback]:
            return made.recorder.close(request)

    models = {name: d.runner.model for name, d in drafters(near).items() if isinstance(d, LMDrafter)}
    write(target_model, near, made.policy, Ears(), batch)
    assert {made.policy.arms[s.decision.arm].drafter for s, _ in heard} >= {"near", "far", "ngram"}
    raw = Sampling(temperature=1.0)
    for seen, before in heard:
        text = [*before, *seen.draft.tokens]
        p = by_hand(target_model, text, len(before), raw)
        name = made.policy.arms[seen.decision.arm].drafter
        if name in models:
            q = by_hand(models[name], text, len(before), raw)
            overlap = torch.minimum(p, q).sum(-1).mean()
        else:
            overlap = p.gather(1, torch.tensor(seen.draft.tokens)[:, None]).mean()
        assert seen.outcome.overlap == pytest.approx(float(overlap), abs=1e-5)


@pytest.mark.parametrize("wanted", [frozenset({"chosen"}), frozenset({"chosen", "top1"})], ids=["one", "two"])
def test_signals_of_graded_tokens_are_those_of_each_row(near: Any, wanted: frozenset[str]) -> None:
    """Also of a token that the drafter does not have: its probability is 0."""
    tokens = [3, 1, 4, 1, 5, 9, 2, VOCAB + 2]
    logits = near(torch.tensor([tokens[:-1]])).logits[0, 2:, :VOCAB]
    job = GradeJob(request(0, tokens, WARM), 3, [0.5] * 5, signals=wanted)
    with torch.no_grad():
        found = chains.grades(job, logits, None, vocab_size=VOCAB + 5)
    want = [float(row.softmax(-1)[token]) for row, token in zip(logits[:-1], tokens[3:-1], strict=True)]
    assert [grade.signals.chosen for grade in found if grade.signals] == pytest.approx([*want, 0.0])
    assert found[-1].accept == 0.0
