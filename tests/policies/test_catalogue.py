"""Every named policy: it builds, its options work, and the text stays the target's own with all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from draftwise import registry
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, Graders, RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import TogetherDrafter
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.errors import UserError
from draftwise.policies.catalogue import method
from draftwise.policies.recorders.bandit import reward
from draftwise.registry.entries import describe
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.distributions import check_distribution, exact, sample
from tests.effort import some
from tests.exactness.test_exact_distribution import BAD, GOOD, LENGTH, PROMPT, P, V

LEARNED = {"disco", "router", "specdecpp"}  # need a classifier's file: tests/policies/test_learned.py, train/
NAMES = sorted(set(registry.names("policies")) - LEARNED)
MORE = [
    "hedgespec?form=product&windows=all",
    "hedgespec?form=ratio&every=2&play=best",
    "hedgespec?windows=rounds&censored=weight&per_query=false",
    "hedgespec?windows=all&loss=acceptance&thin=2",
    "hedgespec-hedge?arms=drafters*lengths&lengths=0,1,3&rate=0.3&memory=0.9",
    "hedgespec?arms=drafters*stops",
    "metasd-ucb?reward=block-efficiency&beta=1",
    "metasd-exp3?reward=block-divergence&gamma=0.9",
    "ucbspec?arms=lengths&strength=0.1",
    "exp3spec?arms=drafters*lengths&reward=rate",
    "tapout-seq-ucb1?reward=simple&length=6",
    "tapout-token-ts?length=6",
    "svip?form=paper",
    "svip?form=code&drafter=bad",
    "adaedl?form=tapout",
    "hf-heuristic?transient=true&start=3&longest=5",
    "hf-threshold?refit=false&drafter=bad",
    "linucb?arms=drafters*lengths&lengths=0,1,3",
]
CONTRACT = """
none static ucb1 random max-confidence svip svip-difference adaedl logit-margin hf-heuristic hf-threshold
disco specdecpp tapout-seq-ucb1 tapout-seq-ucbtuned tapout-seq-ts tapout-token-ucb1 tapout-token-ts
metasd-ucb metasd-exp3 metasd-sh metasd-petc metasd-ducb metasd-swucb ucbspec exp3spec hedgespec
hedgespec-hedge linucb draft-all
"""


def team() -> dict[str, Drafter]:
    parts: dict[str, Drafter] = {
        "good": SimDrafter(markov(GOOD)),
        "bad": SimDrafter(markov(BAD)),
        "picked-bad": SimDrafter(markov(BAD), sampled=False),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }
    return parts | {"all": TogetherDrafter()}


def make(policy: str) -> Loop:
    drafters = team()
    chosen = method(policy, [name for name in drafters if name != "all"])
    return Loop(SimTarget(markov(P), V), drafters, chosen.policy, chosen.recorder)


def test_every_name_of_the_contract_is_there() -> None:
    assert set(CONTRACT.split()) <= set(registry.names("policies"))


def test_every_policy_says_what_it_is_where_it_comes_from_and_what_its_options_set() -> None:
    ours = {"baseline", "Draftwise", "Transformers (assisted generation)"}
    for entry in describe("policies"):
        assert entry.help.endswith(".") and len(entry.help) > 20, entry.name
        assert entry.origin in ours or re.search(
            r"\((arXiv \d{4}\.\d{5}|arXiv 1003.0146|doi 10\.)", entry.origin
        ), entry
        assert all(option.help for option in entry.options.values()), entry


@pytest.mark.parametrize("policy", some([*NAMES, *MORE], 5))
def test_sampled_text_keeps_the_distribution(policy: str) -> None:
    settings = Sampling(max_new_tokens=LENGTH, temperature=0.9, top_p=0.95, presence_penalty=0.2)
    distribution = exact(markov(P), PROMPT, V, LENGTH, settings)
    check_distribution(make(policy), PROMPT, settings, 1500, distribution, batch=3)


@pytest.mark.parametrize("policy", [*NAMES, *MORE])
def test_greedy_text_is_the_targets_own(policy: str) -> None:
    sampling = Sampling(max_new_tokens=60, repetition_penalty=1.3)
    plain = sample(make("none"), PROMPT, sampling, 2)
    assert sample(make(policy), PROMPT, sampling, 2, batch=2) == plain


@pytest.mark.parametrize("policy", [*NAMES, *MORE])
def test_a_request_leaves_nothing_behind(policy: str) -> None:
    loop = make(policy)
    list(loop.run([list(PROMPT)] * 3, Sampling(max_new_tokens=20, temperature=1.0), batch=2))
    policy_now, recorder = loop.policy, loop.recorder
    for name in ("learners", "choices", "features", "entropies", "last", "own"):
        value = getattr(policy_now, name, None)
        assert not isinstance(value, dict) or not value, name
    assert not getattr(recorder, "texts", None)
    shared = getattr(policy_now, "shared", None)
    assert not any(getattr(shared, "flight", None) or [0])


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("hedgespec?form=mean", "form=mean"),
        ("hedgespec?play=worst", "play=worst"),
        ("hedgespec?every=16&form=rb", "form=ratio"),
        ("hedgespec-hedge?rate=-1", "rate=-1"),
        ("hedgespec?memory=0", "memory=0"),
        ("svip?form=mine", "form=mine"),
        ("adaedl?form=mine", "form=mine"),
        ("metasd-ucb?reward=luck", "reward=luck"),
        ("tapout-seq-ucb1?length=0", "length=0"),
        ("draft-all?length=-2", "length=-2"),
        ("metasd-exp3?beta=1", "beta"),
        ("disco?model=/nowhere", "no such file"),
    ],
)
def test_bad_options_are_named(policy: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        method(policy, ["good", "bad"])


def test_block_divergence_is_the_sum_of_overlaps_over_the_longest_draft() -> None:
    value = reward("block-divergence")(Outcome(0, 1, 4, overlaps=(0.8, 0.2, 0.4, 0.6)), 5)
    assert value == pytest.approx(0.4)  # 2 of 5
    assert reward("block-divergence")(Outcome(0, 0, 0), 5) == 0.0


@pytest.mark.parametrize(
    "sampling", [Sampling(max_new_tokens=9), Sampling(max_new_tokens=9, temperature=0.5)]
)
@pytest.mark.parametrize("name", ["good", "picked-bad", "ngram"])
def test_the_overlap_of_a_round_is_that_of_the_raw_laws_whatever_the_settings(
    name: str, sampling: Sampling
) -> None:
    drafters, chosen = team(), method("metasd-ucb?length=1", [name])
    heard: list[tuple[RoundRecord, int]] = []

    class Ear:
        reads = chosen.recorder.reads

        def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
            # what the round began after, while the text still ends with the round
            heard.extend((seen, seen.request.tokens[-1 - len(seen.tokens)]) for seen in batch)
            return chosen.recorder.add(batch, graders)

        def close(self, request: Request) -> Sequence[Feedback]:
            return chosen.recorder.close(request)

    loop = Loop(SimTarget(markov(P), V), drafters, chosen.policy, Ear())
    list(loop.run([list(PROMPT)] * 3, sampling))
    drafted = [(seen, at) for seen, at in heard if seen.outcome.drafted]
    assert len(drafted) > 3
    for seen, at in drafted:
        distribution = {"good": GOOD, "picked-bad": BAD}.get(name)
        (token,) = seen.draft.tokens
        overlap = P[at, token] if distribution is None else np.minimum(P[at], distribution[at]).sum()
        assert seen.outcome.overlap == pytest.approx(overlap)
