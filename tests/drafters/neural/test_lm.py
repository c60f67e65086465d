"""The LM drafter: what it drafts is what its model says on the whole text, and it reads nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Draft, Job, Signals
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.core.stops import stop
from draftwise.drafters.neural.chains import Chain, extend
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


Model = Callable[[list[int]], Tensor]
"""The logits after a text, shape (vocabulary,)."""


def by_hand(model: Model, tokens: list[int], length: int, rule: Stop) -> list[int]:
    """The greedy draft, read from the beginning for each token."""
    text, joint, previous = list(tokens), 1.0, None
    for position in range(length):
        p = model(text).softmax(-1)
        first, second = p.topk(2).values.tolist()
        text.append(int(p.argmax()))
        now = Signals(first, second, float(-(p * p.log()).sum()), first)
        joint *= first
        if stop(rule, now, position=position, previous=previous, joint=joint):
            break
        previous = now
    return text[len(tokens) :]


def reads(made: Any) -> Model:
    """A model of Transformers."""

    def after(text: list[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = made(torch.tensor([text])).logits[0, -1, :VOCAB].float()
        return logits

    return after


def check_rule(drafter: Any, model: Model, rule: Stop) -> None:
    """A draft ends where its rule says, in a batch of texts of several lengths."""
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(3 + 13 * i)] for i in range(4)]
    hand = [by_hand(model, text, 8, rule) for text in texts]
    drafts = drafter.draft([Job(request(i, text), 8, (rule,)) for i, text in enumerate(texts)])
    assert [list(draft.tokens) for draft in drafts] == hand
    assert len({len(tokens) for tokens in hand}) > 1, "the rule must matter"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_a_draft_ends_where_its_rule_says(made: Any, rule: Stop) -> None:
    check_rule(LMDrafter(made, VOCAB), reads(made), rule)


def test_signals_are_the_raw_softmax_whatever_the_temperature(made: Any) -> None:
    r = request(0, [3, 4, 5], temperature=0.3, top_k=3)
    rules = (Stop("logit-margin", -1.0), Stop("svip", 99.0), Stop("confidence", 0.0))
    (draft,) = LMDrafter(made, VOCAB).draft([Job(r, 4, rules)])
    text = [3, 4, 5]
    for token, signals in zip(draft.tokens, draft.signals, strict=True):
        p = reads(made)(text).softmax(-1)
        first, second = p.topk(2).values.tolist()
        entropy = float(-(p * p.log()).sum())
        seen = (signals.top1, signals.top2, signals.entropy, signals.chosen)
        assert seen == pytest.approx((first, second, entropy, float(p[token])), abs=1e-5)
        text.append(token)


def test_chains_of_one_call_have_the_signals_of_their_own_rows() -> None:
    """One is done, one samples, and one has no rule: the others read the probability of their token."""
    rule, logits = Stop("confidence", 0.0), torch.randn(5, VOCAB, generator=torch.manual_seed(3))
    chains = [Chain(Job(request(i, [1, 2]), 4, (rule,)), VOCAB) for i in range(5)]
    chains[0].done = True
    chains[2] = Chain(Job(request(2, [1, 2], temperature=1.0), 4, (rule,)), VOCAB)
    chains[3] = Chain(Job(request(3, [1, 2]), 4), VOCAB)
    extend(chains, logits, None)
    assert [len(chain.tokens) for chain in chains] == [0, 1, 1, 1, 1] and not chains[3].signals
    for i in (1, 2, 4):
        (token,), (now,) = chains[i].tokens, chains[i].signals
        assert now.chosen == pytest.approx(float(logits[i].softmax(-1)[token]))
        assert chains[i].is_sampled or token == int(logits[i].argmax())


def check_vocabulary(drafter: Any, size: int, temperature: float) -> None:
    """Only tokens of the target are drafted, and distributions are over its vocabulary."""
    (draft,) = drafter.draft([Job(request(0, [3, 4, 5], temperature=temperature), 8)])
    assert len(draft.tokens) == 8 and max(draft.tokens) < min(size, VOCAB)
    for q, token, p in zip(draft.dist or [], draft.tokens, draft.probs, strict=temperature > 0):
        assert q.shape == (VOCAB,) and float(q.sum()) == pytest.approx(1.0) and float(q[token]) == p
    assert (draft.dist is not None) == (temperature > 0)


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_of_another_size_is_cut_or_filled_with_zeros(size: int, temperature: float) -> None:
    small = model("llama", scale=3.0)
    small.resize_token_embeddings(size)
    if size > VOCAB:  # padding that the model would love to write
        with torch.no_grad():
            small.lm_head.weight[VOCAB:] = 50 * small.lm_head.weight[:9].abs().max()
    check_vocabulary(LMDrafter(small.double(), VOCAB), size, temperature)


def check_turns(drafter: Any, model: Model) -> None:
    """Each request has a row of its own from its first draft on, whoever is asked about next."""
    requests = [request(i, [Random(i).randrange(2, VOCAB) for _ in range(20 + i)]) for i in range(3)]
    for asked in ([0], [1], [0], [2, 1], [0, 2], [1], [0, 1, 2]):
        drafts = drafter.draft([Job(requests[i], 4) for i in asked])
        for i, draft in zip(asked, drafts, strict=True):
            assert list(draft.tokens) == by_hand(model, requests[i].tokens, 4, Stop())
            requests[i].tokens += [*draft.tokens[:2], 5]


def test_requests_may_take_turns(made: Any) -> None:
    check_turns(LMDrafter(made, VOCAB), reads(made))


def check_nothing_is_read_twice(drafter: Any, read: list[int], model: Model) -> None:
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
    assert list(third.tokens) == by_hand(model, r.tokens, 4, Stop())
    drafter.close(r)
    assert not drafter.cached


def test_nothing_is_read_twice(made: Any) -> None:
    drafter = LMDrafter(made, VOCAB)
    read = watch_passes(drafter.runner)
    check_nothing_is_read_twice(drafter, read, reads(made))
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
    drafters: dict[str, Drafter] = {"none": NoneDrafter(), "lm": LMDrafter(made, VOCAB, width=6)}
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
