"""Every named policy, held to its source: arms, learner and its constants, reward, scope and stop rules.

One row a name, with all options at their defaults, then with other options.
"""

from __future__ import annotations

from dataclasses import fields
from math import ceil, log
from random import Random
from typing import Any, NamedTuple

import pytest

from draftwise import registry
from draftwise.core.arms import NEVER, Arm, Context, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.errors import UserError
from draftwise.policies.adaptive import AdaEDL, ConfidenceRefit, HeuristicLength, LengthPolicy
from draftwise.policies.bandit import BanditPolicy, ContextPolicy, ExpertPolicy
from draftwise.policies.catalogue import Method, method
from draftwise.policies.classifiers.routing import RoutedPolicy
from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.learners.halving import ExploreThenCommit, SequentialHalving
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB, UCBSpec, UCBTuned
from draftwise.policies.recorders.bandit import Bandit, Rate, accepted, blended, block_divergence
from draftwise.policies.recorders.full_information import Grading
from draftwise.policies.tokens import BetaBank, Separate, TokenPolicy
from draftwise.state.learned import is_learned

TEAM = ["a", "b", "c"]
RULES = (  # TapOut, Table 1; AdaEDL's first threshold is ours
    Stop("max-confidence", 0.8),
    Stop("svip", 0.6),
    Stop("adaedl", 0.6),
    Stop("svip-difference", 0.2),
    Stop("logit-margin", 0.2),
)
EDL: dict[str, Any] = {"start": 0.6, "target": 0.9}


def each(length: int) -> tuple[Arm, ...]:
    """An arm for every drafter."""
    return tuple(Arm(name, length) for name in TEAM)


def rules(length: int) -> tuple[Arm, ...]:
    """An arm for every rule of TapOut's, with one drafter."""
    return tuple(Arm("a", length, stop=rule) for rule in RULES)


def lengths(*numbers: int) -> tuple[Arm, ...]:
    return tuple(Arm("a", n) if n else Arm("none", 0) for n in numbers)


def options(thing: Any) -> dict[str, Any]:
    """All fields of a learner or a rule that are not learned."""
    return {f.name: getattr(thing, f.name) for f in fields(thing) if not is_learned(f) and f.init}


class Row(NamedTuple):
    """A bandit of the catalogue, and what it must be made of."""

    name: str
    arms: tuple[Arm, ...]
    learner: type
    constants: dict[str, Any]
    reward: Any
    per_query: bool


def fixed(name: str, length: int, stop: Stop = NEVER, *, drafter: str = "a", per_query: bool = False) -> Row:
    """A row of a policy that always plays one arm."""
    return Row(name, (Arm(drafter, length, stop=stop),), Fixed, {"arm": 0}, accepted, per_query)


DIVERGENCE, PETC = block_divergence, {"constant": 4.0, "horizon": 256, "budget": ceil(4 * log(256))}
SHORT = {"constant": 2.0, "horizon": 99, "budget": ceil(2 * log(99))}
SPEC, NORMAL = {"strength": 1.0}, {"mean": 0.5, "variance": 0.25, "noise": 0.25}
ROWS = [
    # MetaSD, arXiv 2604.05417: N_max 5, beta 0.01, gamma 0.4, one pull between eliminations (F.4); the
    # constant and horizon of Algorithm 4, the discount of 6 and the window of 8 are ours
    Row("metasd-ucb", each(5), UCB1, {"strength": 0.01}, DIVERGENCE, True),
    Row("metasd-exp3", each(5), EXP3, {"gamma": 0.4}, DIVERGENCE, True),
    Row("metasd-sh", each(5), SequentialHalving, {"budget": 0}, DIVERGENCE, True),
    Row("metasd-petc", each(5), ExploreThenCommit, PETC, DIVERGENCE, True),
    Row("metasd-ducb", each(5), DiscountedUCB, {"strength": 0.01, "discount": 0.98}, DIVERGENCE, True),
    Row("metasd-swucb", each(5), SlidingWindowUCB, {"strength": 0.01, "window": 100}, DIVERGENCE, True),
    Row("draft-all", (Arm("all", 5, width=3),), Uniform, {}, accepted, False),
    # BanditSpec, arXiv 2505.15141: section 4 and Theorem 4.3; lengths 0 to 4 by throughput in Figure 1
    Row("ucbspec", each(5), UCBSpec, SPEC, accepted, True),
    Row("exp3spec", each(5), EXP3Spec, {}, accepted, True),
    Row("ucbspec?arms=lengths", lengths(0, 1, 2, 3, 4), UCBSpec, SPEC, Rate, True),
    Row("exp3spec?arms=lengths", lengths(0, 1, 2, 3, 4), EXP3Spec, {}, Rate, True),
    # TapOut, arXiv 2511.02017: gamma_max 128, blended reward; the normal prior and noise are ours
    Row("tapout-seq-ucb1", rules(128), UCB1, {"strength": 1.0}, blended, False),
    Row("tapout-seq-ucbtuned", rules(128), UCBTuned, {"strength": 1.0}, blended, False),
    Row("tapout-seq-ts", rules(128), GaussianThompson, NORMAL, blended, False),
    fixed("max-confidence", 128, RULES[0]),
    fixed("svip-difference", 128, RULES[3]),
    fixed("logit-margin", 128, RULES[4]),
    # SVIP, arXiv 2411.18462: h 0.3; its code tests sqrt(0.15 H) > 0.3; AdaEDL, arXiv 2410.18351
    fixed("svip", 40, RULES[1]),
    fixed("svip?form=paper", 40, Stop("svip", 0.3)),
    fixed("svip?form=code", 40, Stop("svip", 0.3 / 0.15**0.5)),
    fixed("adaedl", 40, RULES[2]),
    fixed("adaedl?form=tapout", 40, RULES[2]),
    # Transformers 5: 20 tokens, 0.4; Leviathan et al. 2023; Auer et al. 2002, Figure 1; baselines of ours
    fixed("hf-threshold", 20, Stop("confidence", 0.4), per_query=True),
    fixed("static", 5),
    fixed("static-7", 7),
    fixed("none", 0, drafter="none"),
    Row("ucb1", each(5), UCB1, {"strength": 1.0}, accepted, False),
    Row("ucb1?arms=lengths", lengths(1, 2, 4, 8), UCB1, {"strength": 1.0}, Rate, False),
    Row("ucb1?arms=stops", rules(5), UCB1, {"strength": 1.0}, Rate, False),
    Row("random", each(5), Uniform, {}, accepted, False),
    Row("random?arms=lengths", lengths(1, 2, 4, 8), Uniform, {}, accepted, False),
    # options reach what they name
    Row(
        "metasd-ucb?beta=0.3&length=7&reward=block-efficiency",
        each(7),
        UCB1,
        {"strength": 0.3},
        accepted,
        True,
    ),
    Row("metasd-exp3?gamma=0.2&per_query=false", each(5), EXP3, {"gamma": 0.2}, DIVERGENCE, False),
    Row("metasd-sh?budget=60&reward=blended", each(5), SequentialHalving, {"budget": 60}, blended, True),
    Row("metasd-petc?constant=2&horizon=99&length=3", each(3), ExploreThenCommit, SHORT, DIVERGENCE, True),
    Row(
        "metasd-ducb?discount=0.9&beta=0.3&length=3&reward=simple&per_query=false",
        *(each(3), DiscountedUCB, {"strength": 0.3, "discount": 0.9}, accepted, False),
    ),
    Row(
        "metasd-swucb?window=50&beta=0.3&length=3&reward=simple&per_query=false",
        *(each(3), SlidingWindowUCB, {"strength": 0.3, "window": 50}, accepted, False),
    ),
    Row(
        "ucbspec?strength=0.1&length=7&reward=rate&per_query=false",
        *(each(7), UCBSpec, {"strength": 0.1}, Rate, False),
    ),
    Row("exp3spec?length=7&reward=rate&per_query=false", each(7), EXP3Spec, {}, Rate, False),
    Row("ucbspec?arms=drafters*lengths&lengths=0,3", (Arm("none", 0), *each(3)), UCBSpec, SPEC, Rate, True),
    Row("exp3spec?arms=lengths&drafter=b&lengths=3,6", (Arm("b", 3), Arm("b", 6)), EXP3Spec, {}, Rate, True),
    Row(
        "ucb1?strength=0.1&length=7&reward=simple&per_query=true",
        each(7),
        UCB1,
        {"strength": 0.1},
        accepted,
        True,
    ),
    Row("tapout-seq-ucb1?reward=simple&length=9", rules(9), UCB1, {"strength": 1.0}, accepted, False),
    Row("tapout-seq-ucbtuned?per_query=true", rules(128), UCBTuned, {"strength": 1.0}, blended, True),
    Row(
        "tapout-seq-ts?reward=simple&length=9&per_query=true",
        rules(9),
        GaussianThompson,
        NORMAL,
        accepted,
        True,
    ),
    fixed("static?drafter=b&length=3&stop=svip(0.5)", 3, Stop("svip", 0.5), drafter="b"),
    fixed("max-confidence?threshold=0.5&length=9&drafter=b", 9, Stop("max-confidence", 0.5), drafter="b"),
    fixed("svip?threshold=0.5&length=9&drafter=b", 9, Stop("svip", 0.5), drafter="b"),
    Row("draft-all?length=3", (Arm("all", 3, width=3),), Uniform, {}, accepted, False),
]


def made(name: str) -> Method:
    return method(name, TEAM)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bandit_is_made_of_what_its_source_says(row: Row) -> None:
    built = made(row.name)
    policy, recorder = built.policy, built.recorder
    assert isinstance(policy, BanditPolicy) and isinstance(recorder, Bandit)
    assert policy.arms == row.arms
    assert policy.per_query is row.per_query
    learner = policy._learner(0)
    assert type(learner) is row.learner
    usual = {"ahead": 0} if issubclass(row.learner, UCB1) else {}
    usual |= {"printed": False} if row.learner in (DiscountedUCB, SlidingWindowUCB) else {}
    assert options(learner) == {"arms": len(row.arms)} | usual | row.constants
    if row.reward is Rate:
        assert isinstance(recorder.reward, Rate) and recorder.reward.memory == 0.999
    else:
        assert recorder.reward is row.reward
    assert recorder.longest == max(1, *(arm.length for arm in row.arms), 1)
    reads = {"overlap", "rows"} if row.reward is block_divergence else set()
    assert recorder.reads == reads


@pytest.mark.parametrize("name", ["ucb1", "ucbtuned", "ts"])
def test_one_of_tapouts_rules_moves_as_tapout_prints(name: str) -> None:
    policy = made(f"tapout-seq-{name}").policy
    assert isinstance(policy, BanditPolicy)
    first, second, edl, *last = policy.moving
    assert (first, second, last) == (None, None, [None, None])
    assert isinstance(edl, AdaEDL) and options(edl) == EDL | {"form": "tapout"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("adaedl", EDL | {"form": "paper"}),
        ("adaedl?form=tapout", EDL | {"form": "tapout"}),
        ("adaedl?start=0.3&target=0.8", EDL | {"start": 0.3, "target": 0.8, "form": "paper"}),
    ],
)
def test_adaedls_constants(name: str, known: dict[str, Any]) -> None:
    policy = made(name).policy
    assert isinstance(policy, BanditPolicy)
    (rule,) = policy.moving
    assert isinstance(rule, AdaEDL) and options(rule) == known
    assert (rule.threshold, rule.rate) == (known["start"], known["target"])
    assert policy.arms[0].stop == rule.stop == Stop("adaedl", known["start"])


@pytest.mark.parametrize(("name", "second"), [("hf-threshold", 0.4), ("hf-threshold?per_query=false", 0.7)])
def test_transformers_threshold_starts_anew_with_each_text(name: str, second: float) -> None:
    policy = made(name).policy
    first = policy.choose(Context(request=1), Random(0))
    assert first.stops[0].threshold == 0.4
    drafted = (0.9, 0.8, 0.7, 0.7, 0.7, 0.2)  # all but the last were accepted
    signals = tuple(Signals(p, 1.0 - p, 0.0, p) for p in drafted)
    policy.learn(Feedback(1, first, (Outcome(0, 5, 6, signals=signals),)))
    assert policy.choose(Context(request=1), Random(0)).stops[0].threshold == 0.7
    assert policy.choose(Context(request=2), Random(0)).stops[0].threshold == second


def test_transformers_thresholds_and_lengths() -> None:
    policy = made("hf-threshold").policy
    assert isinstance(policy, BanditPolicy)
    (rule,) = policy.moving
    assert isinstance(rule, ConfidenceRefit)
    assert options(rule) == {"start": 0.4} and rule.threshold == 0.4
    kept = made("hf-threshold?refit=false&threshold=0.3&length=9&drafter=b").policy
    assert isinstance(kept, BanditPolicy) and not kept.moving
    assert kept.arms == (Arm("b", 9, stop=Stop("confidence", 0.3)),)
    heuristic = made("hf-heuristic").policy
    assert isinstance(heuristic, LengthPolicy)
    assert heuristic.arms == tuple(Arm("a", n) for n in range(1, 65))
    assert (heuristic.start, heuristic.transient, heuristic.shared) == (20, False, HeuristicLength(20))
    other = made("hf-heuristic?start=9&longest=5&transient=true&drafter=b").policy
    assert isinstance(other, LengthPolicy)
    assert (len(other.arms), other.start, other.transient, other.arms[0]) == (9, 9, True, Arm("b", 1))
    assert HeuristicLength().length == 20


@pytest.mark.parametrize(("name", "bank"), [("ucb1", Separate), ("ts", BetaBank)])
def test_tapouts_token_level(name: str, bank: type) -> None:
    built = made(f"tapout-token-{name}")
    policy = built.policy
    assert isinstance(policy, TokenPolicy) and isinstance(policy.bank, bank)
    assert policy.arms == (Arm("a", 128),) and policy.rules == RULES
    assert (policy.bank.arms, policy.bank.places) == (5, 128)
    assert [type(rule) for rule in policy.moving] == [type(None)] * 2 + [AdaEDL] + [type(None)] * 2
    moving = policy.moving[2]
    assert isinstance(moving, AdaEDL) and options(moving) == EDL | {"form": "tapout"}
    assert isinstance(built.recorder, Bandit) and built.recorder.reward is accepted
    if isinstance(policy.bank, BetaBank):
        assert policy.bank.successes == policy.bank.failures == [1.0] * 640
    else:
        assert isinstance(policy.bank, Separate)
        assert [(type(x), options(x)) for x in policy.bank.learners] == [
            (UCB1, {"arms": 5, "strength": 1.0, "ahead": 0})
        ] * 128
    short = made(f"tapout-token-{name}?length=9&drafter=b").policy
    assert isinstance(short, TokenPolicy)
    assert (short.arms, short.bank.places) == ((Arm("b", 9),), 9)


GRADED: dict[str, Any] = dict(
    form="rb", windows="cursor", loss="length", censored="wait", every=1, thin=1, reads=frozenset({"rows"})
)


RATIO, RATELESS = {"form": "ratio"}, {"rate": None, "memory": 1.0}
ACCEPTANCE = {"windows": "all", "form": "product", "loss": "acceptance"}
WEIGHED = {"windows": "rounds", "censored": "weight", "thin": 3}


@pytest.mark.parametrize(
    ("name", "learner", "constants", "graded", "play", "per_query"),
    [
        ("hedgespec", NormalHedge, {"memory": 1.0}, {}, "sample", True),
        ("hedgespec-hedge", Hedge, RATELESS, {}, "sample", True),
        ("hedgespec?every=16", NormalHedge, {"memory": 1.0}, {"every": 16, **RATIO}, "sample", True),
        ("hedgespec-hedge?every=4", Hedge, RATELESS, {"every": 4, **RATIO}, "sample", True),
        (
            "hedgespec?windows=all&form=product&loss=acceptance",
            *(NormalHedge, {"memory": 1.0}),
            *(ACCEPTANCE, "sample", True),
        ),
        (
            "hedgespec?windows=rounds&censored=weight&thin=3",
            *(NormalHedge, {"memory": 1.0}),
            *(WEIGHED, "sample", True),
        ),
        ("hedgespec?memory=0.9&play=best&per_query=false", NormalHedge, {"memory": 0.9}, {}, "best", False),
        (
            "hedgespec-hedge?rate=0.3&memory=0.9&thin=2",
            *(Hedge, {"rate": 0.3, "memory": 0.9}),
            *({"thin": 2}, "sample", True),
        ),
    ],
)
def test_hedgespec(
    name: str, learner: type, constants: dict[str, Any], graded: dict[str, Any], play: str, per_query: bool
) -> None:
    """HedgeSpec, arXiv 2510.20064, section 1.5 of its learner; the unbiased estimate and cursors are ours."""
    built = made(name)
    policy, recorder = built.policy, built.recorder
    assert isinstance(policy, ExpertPolicy) and isinstance(recorder, Grading)
    assert (policy.arms, policy.play, policy.per_query) == (each(5), play, per_query)
    assert policy.arms == recorder.arms
    assert {key: getattr(recorder, key) for key in GRADED} == GRADED | graded
    made_of = policy._learner(0)
    assert type(made_of) is learner and options(made_of) == {"arms": 3} | constants


def test_the_other_learners_over_products_of_arms() -> None:
    products = (Arm("none", 0), Arm("a", 3), Arm("b", 3), Arm("c", 3))
    for name in ("hedgespec", "hedgespec-hedge", "linucb", "ucb1", "random"):
        assert made(f"{name}?arms=drafters*lengths&lengths=0,3").policy.arms == products, name
        assert made(f"{name}?length=3&drafter=b").policy.arms == (Arm("b", 3),), name
        assert made(f"{name}?arms=lengths").policy.arms == lengths(1, 2, 4, 8), name


def test_linucb() -> None:
    """Li et al. 2010, Algorithm 1; strength 1/2 and ridge 1 are ours."""
    built = made("linucb")
    policy = built.policy
    assert isinstance(policy, ContextPolicy) and isinstance(built.recorder, Bandit)
    assert (policy.arms, policy.drafters) == (each(5), ("a", "b", "c"))
    assert options(policy.learner) == {"arms": 3, "dimensions": 7, "strength": 0.5, "ridge": 1.0}
    assert built.recorder.reward is accepted
    other = made("linucb?strength=0.1&reward=simple&arms=drafters*lengths&lengths=0,3")
    assert isinstance(other.policy, ContextPolicy) and isinstance(other.recorder, Bandit)
    assert other.policy.learner.strength == 0.1 and other.recorder.reward is accepted
    assert other.policy.drafters == ("a", "b", "c")  # no draft has no hint
    rate = made("linucb?arms=lengths").recorder
    assert isinstance(rate, Bandit) and isinstance(rate.reward, Rate)


def test_the_classifiers() -> None:
    """DISCO (arXiv 2405.04304) and SpecDec++ (arXiv 2405.19715), with the bundled ones."""
    for name, length, threshold, shortest in (("disco", 40, 0.5, 1), ("specdecpp", 20, 0.7, 2)):
        policy = method(name, ["zoo:general"]).policy
        assert isinstance(policy, BanditPolicy) and not policy.moving
        (arm,) = policy.arms
        assert (arm.drafter, arm.length) == ("zoo:general", length)
        stop = arm.stop
        assert isinstance(stop, Stop) and stop.scorer is not None
        assert (stop.rule, stop.threshold, stop.shortest) == (name, threshold, shortest)
        other = method(f"{name}?length=9&threshold=0.3", ["zoo:general"]).policy.arms[0]
        assert (other.length, other.stops[0].threshold) == (9, 0.3)


def test_the_router_gives_each_drafter_five_tokens() -> None:
    """MetaSD's router (arXiv 2604.05417): one drafter for the whole text."""
    team = [f"zoo:{name}" for name in ("code", "math", "qa", "sql", "summarization", "translation")]
    built = method("router:zoo:router", team)
    assert isinstance(built.policy, RoutedPolicy) and isinstance(built.recorder, Bandit)
    assert sorted(arm.drafter for arm in built.policy.arms) == team
    assert {(arm.length, arm.stop) for arm in built.policy.arms} == {(5, NEVER)}
    assert {arm.length for arm in method("router:zoo:router?length=3", team).policy.arms} == {3}


def test_auto() -> None:
    policy = made("auto").policy
    numbers = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
    assert policy.arms == (Arm("none", 0), *(Arm(name, n) for name in TEAM for n in numbers))
    few = made("auto?length=5").policy
    assert few.arms == (Arm("none", 0), *(Arm(name, n) for name in TEAM for n in (1, 2, 3, 4, 5)))


def test_no_name_is_left_out() -> None:
    here = {row.name.partition("?")[0] for row in ROWS} - {"static-7"}
    here |= {"hf-heuristic", "tapout-token-ucb1", "tapout-token-ts", "hedgespec", "hedgespec-hedge", "linucb"}
    assert here | {"disco", "specdecpp", "router", "auto"} == set(registry.names("policies"))


def test_all_drafters_at_once_need_one() -> None:
    with pytest.raises(UserError, match="this policy needs a drafter"):
        method("draft-all", ["none"])
