"""Every named policy: its options, what it tells, and that the text stays the target's own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise import registry
from draftwise.build import decide
from draftwise.core.arms import Context
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome, RoundCost
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, Graders, RoundRecord, Valuer
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import TogetherDrafter
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.policies.arms import LONGEST
from draftwise.policies.catalogue import default, method
from draftwise.policies.catalogue.compose import weighs_cascades
from draftwise.registry import describe
from draftwise.specs import parse_policy
from draftwise.state.learned import dump
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


NO_STOPS = ("confidence(", "confidence()", "confidence(nan)", "svip(inf)", "svip(0.6")


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


def test_every_policy_says_what_it_is_where_it_comes_from_and_what_its_options_set() -> None:
    ours = {"baseline", "Draftwise", "Transformers (assisted generation)"}
    for entry in describe("policies"):
        assert entry.help.endswith(".") and len(entry.help) > 20, entry.name
        assert entry.origin in ours or re.search(
            r"\((arXiv \d{4}\.\d{5}|arXiv 1003.0146|doi 10\.)", entry.origin
        ), entry
        assert all(option.help for option in entry.options.values()), entry


WHOLE = ("-2", "-1", "0", "1", "2", str(LONGEST), str(LONGEST + 1), str(10**9))
REAL = ("-1e9", "-1.5", "-0.5", "0", "0.5", "1", "1.5", "1e9", "1e300")


def numbers() -> Iterator[str]:
    """Every numeric option of every policy, at values within its range and outside."""
    for name in NAMES:
        for option, parameter in registry.options_of(registry.load("policies", name)).items():
            if type(parameter.default) in (int, float):
                for value in WHOLE if type(parameter.default) is int else REAL:
                    yield f"{name}?{option}={value}"


@pytest.mark.parametrize("spec", some([*numbers()], 5))
def test_a_number_is_refused_in_one_line_or_plays(spec: str) -> None:
    try:
        loop = make(spec)
    except UserError as error:
        assert "\n" not in str(error) and spec.partition("?")[2].partition("=")[0] in str(error)
        return
    request = loop.add(list(PROMPT), Sampling(max_new_tokens=40, temperature=1.0))
    while loop.open:
        for round in loop.step():
            assert not round.fault and not (chance := round.decision.propensity) <= 0.0, chance
            assert not chance > 1.0 + 1e-9, "NaN where it is not known"
    assert request.position == 40


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
        ("hedgespec?windows=some", "windows=some: choose from cursor, all, rounds"),
        ("hedgespec?every=0", "every=0: give 1 or more"),
        ("hedgespec?loss=acceptance", "use windows=all"),
        ("hedgespec?censored=weight", "use windows=rounds"),
        ("hedgespec-hedge?rate=-1", "rate=-1"),
        ("hedgespec?memory=0", "memory=0"),
        ("svip?form=mine", "form=mine"),
        ("adaedl?form=mine", "form=mine"),
        ("metasd-ucb?reward=luck", "reward=luck"),
        ("tapout-seq-ucb1?length=0", "length=0"),
        ("draft-all?length=-2", "length=-2"),
        ("metasd-exp3?beta=1", "beta"),
        ("disco?model=/nowhere", "no such file"),
        *((f"static?stop={stop}", r"is not a number; write svip\(0.6\)") for stop in NO_STOPS),
    ],
)
def test_bad_options_are_named(policy: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        method(policy, ["good", "bad"])


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


# -- what displays are told ---------------------------------------------------------------------------------

TELLING = {"auto", "ucb1", "metasd-ucb", "hedgespec", "linucb", "exp3spec"}


def played(name: str, *, looks: bool) -> tuple[Any, list[int], Any]:
    """A policy after some rounds of three requests, what it chose, and what it knows."""
    policy: Any = method(name, ["a", "b"]).policy
    rng, outcomes, chosen = Random(1), Random(2), []
    for at in range(60):
        request = at % 3
        decision = policy.choose(Context(request, 1, at, hints={"a": 3.0, "b": 1.0}), rng)
        chosen.append(decision.arm)
        arm = policy.arms[decision.arm]
        accepted = outcomes.randint(0, arm.length)
        reward, spent = accepted / max(1, arm.length), RoundCost(0.001, 0.01, 1 + arm.length)
        done = Outcome(decision.arm, accepted, arm.length, 0.011, reward=reward, cost=spent)
        losses = tuple(outcomes.random() for _ in policy.arms)
        policy.learn(Feedback(request, decision, (done,), losses))
        if looks and isinstance(policy, Valuer):
            policy.values(1 + at % 5)
    return policy, chosen, dump(policy)


@pytest.mark.parametrize("name", NAMES)
def test_a_look_changes_nothing(name: str) -> None:
    policy, chosen, known = played(name, looks=True)
    _, others, same = played(name, looks=False)
    assert (chosen, known) == (others, same)
    arms = len(policy.arms)
    assert isinstance(policy, Valuer) or name not in TELLING
    if isinstance(policy, Valuer):
        told = policy.values()
        assert len(told.values) == arms and len(told.seconds) in (0, arms)
        assert any(value is not None for value in told.values)


def test_one_learner_for_each_request_is_shown_by_the_mean() -> None:
    policy, _, _ = played("metasd-ucb", looks=False)
    told = [learner.estimates() for learner in policy.learners.values()]
    assert len(told) == 3
    assert policy.values().values == tuple(
        pytest.approx(sum(column) / 3) for column in zip(*told, strict=True)
    )
    for request in range(3):
        policy.close(request)
    assert policy.values().values == (None,) * len(policy.arms)


def test_a_function_of_the_drafters_names_can_stand_for_a_name() -> None:
    spec = parse_policy(lambda drafters: method("static-3", drafters[1:]))
    assert [arm.name for arm in method(spec, ["ngram", "suffix"]).policy.arms] == ["suffix:3"]
    with pytest.raises(UserError, match=r"policy tuple: it made .*return a Method"):
        method(parse_policy(tuple), ["ngram"])


def test_only_the_default_policy_weighs_cascades_and_without_drafters_there_is_none() -> None:
    assert [name for name in registry.names("policies") if weighs_cascades(name)] == [default(["suffix"])]
    assert default(["ngram"]) == default(["none", "zoo:general"]) == "auto"
    assert default([]) == default(["none"]) == "none"


# -- a model's stop rules over a lookup -------------------------------------------------------------------

LOOKUPS_FIRST = {name: team()[name] for name in ("ngram", "suffix", "good")}


@pytest.mark.parametrize("policy", ["tapout-seq-ucb1", "tapout-token-ts", "svip", "disco", "ucb1?arms=stops"])
def test_a_rule_for_models_over_a_lookup_is_mentioned(policy: str) -> None:
    with pytest.warns(DraftwiseWarning, match=rf"rules of {policy[:4]}.*ngram has only the frequencies"):
        decide(parse_policy(policy), LOOKUPS_FIRST, None, {})


@pytest.mark.parametrize(
    "policy",
    ["auto", "static-5", "ucbspec", "hedgespec", "tapout-seq-ucb1?drafter=good", "svip?drafter=good"],
)
def test_other_policies_and_drafters_are_not(policy: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DraftwiseWarning)
        decide(parse_policy(policy), LOOKUPS_FIRST, None, {})


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("ucb1?lengths=1,2", "lengths has no effect here: add arms=lengths"),
        ("hedgespec?arms=drafters*stops&lengths=1,2", "add arms=lengths"),
        ("ucbspec?arms=lengths&length=3", "length has no effect here: give lengths"),
        ("svip?form=paper&threshold=0.5", "form has no effect here"),
        ("hf-threshold?refit=false&per_query=false", "per_query has no effect here"),
        ("ucb1?drafter=b", "drafter=b leaves one arm: add arms=lengths or arms=stops, or leave it out"),
        ("hf-heuristic?longest=9", "hf-heuristic?start=20&longest=9: give start <= longest"),
    ],
)
def test_an_option_that_does_nothing_is_refused(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        method(spec, ["a", "b"])
