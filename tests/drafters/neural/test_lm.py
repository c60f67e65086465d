"""The LM drafter: what it drafts is what its model says on the whole text, and it reads nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Draft, Job, Signals
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.core.stops import stop
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.none import NoneDrafter
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.targets.hf import HFTarget
from draftwise.testing.exact import exact_of
from tests.core.turns import group_tokens, watch_passes
from tests.distributions import check_distribution
from tests.tiny import VOCAB, model

RULES = [
    Stop("max-confidence", 0.6),
    Stop("confidence", 0.6),
    Stop("cumulative", 0.3),
    Stop("svip", 0.9),
    Stop("svip-difference", 0.1),
    Stop("logit-margin", 0.3),
]


@pytest.fixture(scope="module")
def made() -> Any:
    """A model that is sure of some tokens and not of others."""
    made = model("llama", scale=6.0)
    with torch.no_grad():
        made.lm_head.weight *= 10
    return made


def request(at: int, tokens: list[int], **settings: Any) -> Request:
    sampling = Sampling(**{"max_new_tokens": 60} | settings)
    return Request(at, tokens, len(tokens), sampling, Random(at), Random(at))


@torch.inference_mode()
def by_hand(made: Any, tokens: list[int], length: int, rule: Stop) -> tuple[list[int], list[Signals]]:
    """The greedy draft, read from the beginning for each token."""
    text, signals, joint = list(tokens), list[Signals](), 1.0
    previous = None
    for position in range(length):
        p = made(torch.tensor([text])).logits[0, -1, :VOCAB].float().softmax(-1)
        first, second = p.topk(2).values.tolist()
        text.append(int(p.argmax()))
        now = Signals(first, second, float(-(p * p.log()).sum()), first)
        signals.append(now)
        joint *= first
        if stop(rule, now, position=position, previous=previous, joint=joint):
            break
        previous = now
    return text[len(tokens) :], signals


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_a_draft_ends_where_its_rule_says(made: Any, rule: Stop) -> None:
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(3 + 9 * i)] for i in range(5)]
    drafter = LMDrafter(made, VOCAB)
    jobs = [Job(request(i, text), 8, (rule,)) for i, text in enumerate(texts)]
    hand = [by_hand(made, text, 8, rule) for text in texts]
    assert [list(draft.tokens) for draft in drafter.draft(jobs)] == [tokens for tokens, _ in hand]
    assert len({len(tokens) for tokens, _ in hand}) > 1, "the rule must matter"


def test_signals_are_the_raw_softmax_whatever_the_temperature(made: Any) -> None:
    r = request(0, [3, 4, 5], temperature=0.3, top_k=3)
    rules = (Stop("logit-margin", -1.0), Stop("svip", 99.0), Stop("confidence", 0.0))
    (draft,) = LMDrafter(made, VOCAB).draft([Job(r, 4, rules)])
    text = [3, 4, 5]
    with torch.inference_mode():
        for token, signals in zip(draft.tokens, draft.signals, strict=True):
            p = made(torch.tensor([text])).logits[0, -1].float().softmax(-1)
            first, second = p.topk(2).values.tolist()
            entropy = float(-(p * p.log()).sum())
            seen = (signals.top1, signals.top2, signals.entropy, signals.chosen)
            assert seen == pytest.approx((first, second, entropy, float(p[token])), abs=1e-5)
            text.append(token)


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_another_size_is_cut_or_filled_with_zeros(size: int, temperature: float) -> None:
    small = model("llama", scale=3.0)
    small.resize_token_embeddings(size)
    if size > VOCAB:  # padding that the model would love to write
        with torch.no_grad():
            small.lm_head.weight[VOCAB:] = 50 * small.lm_head.weight[:9].abs().max()
    drafter = LMDrafter(small.double(), VOCAB)
    (draft,) = drafter.draft([Job(request(0, [3, 4, 5], temperature=temperature), 8)])
    assert len(draft.tokens) == 8 and max(draft.tokens) < min(size, VOCAB)
    for q, token, p in zip(draft.dist or [], draft.tokens, draft.probs, strict=temperature > 0):
        assert q.shape == (VOCAB,) and float(q.sum()) == pytest.approx(1.0) and float(q[token]) == p
    assert (draft.dist is not None) == (temperature > 0)


def test_requests_may_take_turns(made: Any) -> None:
    """Each has a row of its own from its first draft on, whoever is asked about next."""
    drafter = LMDrafter(made, VOCAB)
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(20 + i)] for i in range(3)]
    requests = [request(i, list(text)) for i, text in enumerate(texts)]
    for asked in ([0], [1], [0], [2, 1], [0, 2], [1], [0, 1, 2]):
        drafts = drafter.draft([Job(requests[i], 4) for i in asked])
        for i, draft in zip(asked, drafts, strict=True):
            assert list(draft.tokens) == by_hand(made, requests[i].tokens, 4, Stop())[0]
            requests[i].tokens += [*draft.tokens[:2], 5]


def check_nothing_is_read_twice(
    drafter: Any, read: list[int], by_hand: Callable[[list[int]], list[int]]
) -> None:
    """Accepted tokens are known from drafting them; only the last one, or a correction, is new.

    `read` gets the number of tokens of each pass.
    """
    r = request(0, [Random(0).randrange(2, VOCAB) for _ in range(30)])

    def tokens_of(draft: Draft) -> list[int]:
        read.clear()
        return list(draft.tokens)

    first = drafter.draft([Job(r, 4)])[0]
    assert read == [30, 1, 1, 1]
    r.tokens += [*tokens_of(first), 7]  # all four accepted: the last of them was never fed
    second = drafter.draft([Job(r, 4)])[0]
    assert read == [2, 1, 1, 1]
    r.tokens += [*tokens_of(second)[:2], (second.tokens[2] + 1) % VOCAB]  # two accepted, one corrected
    third = drafter.draft([Job(r, 4)])[0]
    assert read == [1, 1, 1, 1]
    assert list(third.tokens) == by_hand(r.tokens)
    drafter.close(r)
    assert not drafter.cached


def test_nothing_is_read_twice(made: Any) -> None:
    drafter = LMDrafter(made, VOCAB)
    read = watch_passes(drafter.runner)
    check_nothing_is_read_twice(drafter, read, lambda text: by_hand(made, text, 4, Stop())[0])
    assert not drafter.runner.request_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_wider_draft_has_the_likeliest_others_beside_each_token(made: Any, temperature: float) -> None:
    """The chain is the same as without; what may not come is no sibling."""
    text, wide = [3, 4, 5], LMDrafter(made, VOCAB, width=4)
    (alone,) = LMDrafter(made, VOCAB).draft([Job(request(0, text, temperature=temperature), 5)])
    (draft,) = wide.draft([Job(request(0, text, temperature=temperature), 5)])
    n = len(alone.tokens)
    assert (draft.tokens[:n], draft.parents[:n], draft.probs) == (alone.tokens, alone.parents, alone.probs)
    for place in range(n):
        with torch.inference_mode():
            best = made(torch.tensor([text + list(draft.tokens[:place])])).logits[0, -1, :VOCAB].topk(4)
        beside = [
            draft.tokens[node] for node in range(n, len(draft.tokens)) if draft.parents[node] == place - 1
        ]
        assert beside == [token for token in best.indices.tolist() if token != draft.tokens[place]][:3]
    asked = request(1, text, temperature=temperature)
    narrow = LMDrafter(made, VOCAB)
    narrow.allowed = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, torch.tensor([7, 9]), True)
    (draft,) = narrow.draft([Job(asked, 3, width=4)])
    assert len(draft.tokens) == 6 and set(draft.tokens) == {7, 9}


def wide_loop(made: Any, arm: Arm) -> Loop:
    """A target, and a drafter that is seldom right, with siblings."""
    target = HFTarget(model("llama", seed=5, scale=6.0))
    drafters = {"none": NoneDrafter(), "lm": LMDrafter(made, VOCAB, width=6)}
    return Loop(target, drafters, BanditPolicy((arm,), Fixed), Bandit(reward("accepted"), 3))


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_text_with_siblings_is_the_targets_own(made: Any, batch: int) -> None:
    texts, settings = [[3, 4, 5], [9, 8, 7, 6], [2, 2, 3]][:batch], Sampling(max_new_tokens=40)
    plain = group_tokens(wide_loop(made, Arm("none", 0)).run(texts, settings, batch=batch))
    rounds = list(wide_loop(made, Arm("lm", 3)).run(texts, settings, batch=batch))
    assert group_tokens(rounds) == plain and any(round.accepted for round in rounds)


def test_sampled_text_with_siblings_has_the_targets_distribution(made: Any) -> None:
    settings, loop = Sampling(max_new_tokens=3, temperature=1.0, top_k=4), wide_loop(made, Arm("lm", 2))
    expected = exact_of(loop.target, [3, 4, 5], 3, settings)
    check_distribution(loop, [3, 4, 5], settings, 2000, expected, batch=25)
