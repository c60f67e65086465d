"""Every named policy, held to its source: arms, learner and its constants, reward, scope and stop rules.

One row a name, with all options at their defaults, then with other options.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest

from draftwise import registry
from draftwise.core.arms import NEVER, Context, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.errors import UserError
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.classifiers.routing import RoutedPolicy
from draftwise.policies.recorders.bandit import Bandit, block_divergence
from draftwise.state.learned import is_learned

TEAM = ["a", "b", "c"]
RULES = (  # TapOut, Table 1; AdaEDL's first threshold is ours
    Stop("max-confidence", 0.8),
    Stop("svip", 0.6),
    Stop("adaedl", 0.6),
    Stop("svip-difference", 0.2),
    Stop("logit-margin", 0.2),
)

TABLE = """
# MetaSD, arXiv 2604.05417: N_max 5, beta 0.01, gamma 0.4, one pull between eliminations (F.4); the
# constant and horizon of Algorithm 4 (23 is 4 ln 256), the discount of 6 and the window of 8 are ours
metasd-ucb | a:5 b:5 c:5 | UCB1 strength=0.01 | block_divergence | each
metasd-exp3 | a:5 b:5 c:5 | EXP3 gamma=0.4 | block_divergence | each
metasd-sh | a:5 b:5 c:5 | SequentialHalving | block_divergence | each
metasd-petc | a:5 b:5 c:5 | ExploreThenCommit budget=23 horizon=256 constant=4 | block_divergence | each
metasd-ducb | a:5 b:5 c:5 | DiscountedUCB strength=0.01 discount=0.98 | block_divergence | each
metasd-swucb | a:5 b:5 c:5 | SlidingWindowUCB strength=0.01 window=100 | block_divergence | each
draft-all | all:5x3 | Uniform | accepted | all
# BanditSpec, arXiv 2505.15141: section 4; lengths 0 to 4 by throughput in Figure 1
ucbspec | a:5 b:5 c:5 | UCBSpec strength=1 | accepted | each
exp3spec | a:5 b:5 c:5 | EXP3Spec | accepted | each
ucbspec?arms=lengths | none a:1 a:2 a:3 a:4 | UCBSpec strength=1 | Rate 0.999 | each
exp3spec?arms=lengths | none a:1 a:2 a:3 a:4 | EXP3Spec | Rate 0.999 | each
# TapOut, arXiv 2511.02017: gamma_max 128, blended reward, AdaEDL as it prints it; prior and noise are ours
tapout-seq-ucb1 | a:128~RULES | UCB1 strength=1 + AdaEDL 0.6 0.9 tapout | blended | all
tapout-seq-ucbtuned | a:128~RULES | UCBTuned strength=1 + AdaEDL 0.6 0.9 tapout | blended | all
tapout-seq-ts |
    a:128~RULES | GaussianThompson mean=0.5 variance=0.25 noise=0.25 + AdaEDL 0.6 0.9 tapout | blended | all
tapout-token-ucb1 | a:128 | TokenPolicy + Separate places=128 + AdaEDL 0.6 0.9 tapout | accepted | all
tapout-token-ts | a:128 | TokenPolicy + BetaBank places=128 + AdaEDL 0.6 0.9 tapout | accepted | all
max-confidence | a:128~max-confidence(0.8) | Fixed | accepted | all
svip-difference | a:128~svip-difference(0.2) | Fixed | accepted | all
logit-margin | a:128~logit-margin(0.2) | Fixed | accepted | all
# SVIP, arXiv 2411.18462: h 0.3; its code tests sqrt(0.15 H) > 0.3; AdaEDL, arXiv 2410.18351
svip | a:40~svip(0.6) | Fixed | accepted | all
svip?form=paper | a:40~svip(0.3) | Fixed | accepted | all
svip?form=code | a:40~svip(0.774597) | Fixed | accepted | all
adaedl | a:40~adaedl(0.6) | Fixed + AdaEDL 0.6 0.9 paper | accepted | all
adaedl?form=tapout | a:40~adaedl(0.6) | Fixed + AdaEDL 0.6 0.9 tapout | accepted | all
# HedgeSpec, arXiv 2510.20064; the unbiased estimate and cursors are ours
hedgespec | a:5 b:5 c:5 | NormalHedge memory=1 | Grading rb cursor length wait 1 1 | each
hedgespec-hedge | a:5 b:5 c:5 | Hedge memory=1 | Grading rb cursor length wait 1 1 | each
hedgespec?every=16 | a:5 b:5 c:5 | NormalHedge memory=1 | Grading ratio cursor length wait 16 1 | each
hedgespec-hedge?every=4 | a:5 b:5 c:5 | Hedge memory=1 | Grading ratio cursor length wait 4 1 | each
# Transformers 5: 20 tokens, 0.4; Leviathan et al. 2023; Auer et al. 2002, Figure 1; Li et al. 2010, whose
# strength 1/2 and ridge 1 are ours; baselines of ours
hf-threshold | a:20~confidence(0.4) | Fixed + ConfidenceRefit 0.4 | accepted | each
hf-heuristic | a:1 a:2 ... a:64 | LengthPolicy start=20 | accepted | all
static | a:5 | Fixed | accepted | all
static-7 | a:7 | Fixed | accepted | all
none | none | Fixed | accepted | all
ucb1 | a:5 b:5 c:5 | UCB1 strength=1 | accepted | all
ucb1?arms=lengths | a:1 a:2 a:4 a:8 | UCB1 strength=1 | Rate 0.999 | all
ucb1?arms=stops | a:5~RULES | UCB1 strength=1 | Rate 0.999 | all
linucb | a:5 b:5 c:5 | LinUCB dimensions=7 strength=0.5 ridge=1 | accepted | all
linucb?arms=lengths | a:1 a:2 a:4 a:8 | LinUCB dimensions=5 strength=0.5 ridge=1 | Rate 0.999 | all
random | a:5 b:5 c:5 | Uniform | accepted | all
random?arms=lengths | a:1 a:2 a:4 a:8 | Uniform | accepted | all
# options reach what they name
metasd-ucb?beta=0.3&length=7&reward=block-efficiency | a:7 b:7 c:7 | UCB1 strength=0.3 | accepted | each
metasd-exp3?gamma=0.2&per_query=false | a:5 b:5 c:5 | EXP3 gamma=0.2 | block_divergence | all
metasd-sh?budget=60&reward=blended | a:5 b:5 c:5 | SequentialHalving budget=60 | blended | each
metasd-petc?constant=2&horizon=99&length=3 |
    a:3 b:3 c:3 | ExploreThenCommit budget=10 horizon=99 constant=2 | block_divergence | each
metasd-ducb?discount=0.9&beta=0.3&reward=simple&printed=1 |
    a:5 b:5 c:5 | DiscountedUCB strength=0.3 discount=0.9 printed=True | accepted | each
metasd-swucb?window=50&beta=0.3&per_query=false&printed=1 |
    a:5 b:5 c:5 | SlidingWindowUCB strength=0.3 window=50 printed=True | block_divergence | all
ucbspec?strength=0.1&length=7&reward=rate&per_query=false |
    a:7 b:7 c:7 | UCBSpec strength=0.1 | Rate 0.999 | all
exp3spec?length=7&reward=rate&per_query=false | a:7 b:7 c:7 | EXP3Spec | Rate 0.999 | all
ucbspec?arms=drafters*lengths&lengths=0,3 | none a:3 b:3 c:3 | UCBSpec strength=1 | Rate 0.999 | each
exp3spec?arms=lengths&drafter=b&lengths=3,6 | b:3 b:6 | EXP3Spec | Rate 0.999 | each
ucb1?strength=0.1&length=7&reward=simple&per_query=true | a:7 b:7 c:7 | UCB1 strength=0.1 | accepted | each
tapout-seq-ucb1?reward=simple&length=9&printed=1 |
    a:9~RULES | UCB1 strength=1 ahead=1 + AdaEDL 0.6 0.9 tapout | accepted | all
tapout-seq-ucbtuned?per_query=true&printed=1 |
    a:128~RULES | UCBTuned strength=1 ahead=1 + AdaEDL 0.6 0.9 tapout | blended | each
tapout-seq-ts?reward=simple&length=9&per_query=true |
    a:9~RULES | GaussianThompson mean=0.5 variance=0.25 noise=0.25 + AdaEDL 0.6 0.9 tapout | accepted | each
tapout-token-ts?length=9&drafter=b |
    b:9 | TokenPolicy + BetaBank places=9 + AdaEDL 0.6 0.9 tapout | accepted | all
tapout-token-ucb1?length=9&drafter=b |
    b:9 | TokenPolicy + Separate places=9 + AdaEDL 0.6 0.9 tapout | accepted | all
static?drafter=b&length=3&stop=svip(0.5) | b:3~svip(0.5) | Fixed | accepted | all
max-confidence?threshold=0.5&length=9&drafter=b | b:9~max-confidence(0.5) | Fixed | accepted | all
svip?threshold=0.5&length=9&drafter=b | b:9~svip(0.5) | Fixed | accepted | all
adaedl?start=0.3&target=0.8 | a:40~adaedl(0.3) | Fixed + AdaEDL 0.3 0.8 paper | accepted | all
hf-threshold?refit=false&threshold=0.3&length=9&drafter=b | b:9~confidence(0.3) | Fixed | accepted | each
hf-heuristic?start=5&longest=9&transient=true&drafter=b |
    b:1 b:2 ... b:9 | LengthPolicy start=5 transient=True | accepted | all
draft-all?length=3 | all:3x3 | Uniform | accepted | all
hedgespec?windows=all&form=product&loss=acceptance |
    a:5 b:5 c:5 | NormalHedge memory=1 | Grading product all acceptance wait 1 1 | each
hedgespec?windows=rounds&censored=weight&thin=3 |
    a:5 b:5 c:5 | NormalHedge memory=1 | Grading rb rounds length weight 1 3 | each
hedgespec?memory=0.9&play=best&per_query=false |
    a:5 b:5 c:5 | NormalHedge memory=0.9 + best | Grading rb cursor length wait 1 1 | all
hedgespec-hedge?rate=0.3&memory=0.9&thin=2 |
    a:5 b:5 c:5 | Hedge rate=0.3 memory=0.9 | Grading rb cursor length wait 1 2 | each
hedgespec?arms=drafters*lengths&lengths=0,3 |
    none a:3 b:3 c:3 | NormalHedge memory=1 | Grading rb cursor length wait 1 1 | each
hedgespec-hedge?arms=lengths&lengths=3&drafter=b |
    b:3 | Hedge memory=1 | Grading rb cursor length wait 1 1 | each
linucb?strength=0.1&reward=simple&arms=drafters*lengths&lengths=0,3 |
    none a:3 b:3 c:3 | LinUCB dimensions=7 strength=0.1 ridge=1 | accepted | all
random?arms=lengths&lengths=3&drafter=b | b:3 | Uniform | accepted | all
"""


def options(thing: Any, *, named: bool = False) -> str:
    """A part and its options: those that are set, with their names, or the values of all."""
    values = {f.name: getattr(thing, f.name) for f in fields(thing) if f.init and not is_learned(f)}
    given = {k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items() if v and k != "arms"}
    plain = {k: v for k, v in given.items() if isinstance(v, (int, str))}
    return " ".join([type(thing).__name__, *(f"{k}={v}" if named else str(v) for k, v in plain.items())])


def told(name: str) -> list[str]:
    """The arms of a policy, what chooses, by which feedback, and whether each text or all teach it."""
    built = method(name, TEAM)
    policy: Any = built.policy
    recorder: Any = built.recorder
    arms = [arm.name for arm in policy.arms]
    if tuple(arm.stop for arm in policy.arms) == RULES:
        arms = [f"{policy.arms[0].drafter}:{policy.arms[0].length}~RULES"]
    chooser = policy._learner(0) if hasattr(policy, "_learner") else getattr(policy, "learner", policy)
    parts = [options(part, named=True) for part in (chooser, getattr(policy, "bank", None)) if part]
    parts += [options(rule) for rule in getattr(policy, "moving", ()) if rule]
    if isinstance(recorder, Bandit):
        assert recorder.longest == max(arm.length for arm in policy.arms)
        assert recorder.reads == ({"overlap", "rows"} if recorder.reward is block_divergence else set())
    reward = getattr(recorder, "reward", recorder)
    parts += ["best"] if getattr(policy, "play", "") == "best" else []
    scope = "each" if getattr(policy, "per_query", False) else "all"
    shown = arms if len(arms) < 9 else [*arms[:2], "...", arms[-1]]
    feedback = options(reward) if is_dataclass(reward) else reward.__name__
    return [" ".join(shown), " + ".join(parts), feedback, scope]


LINES = [line for line in TABLE.replace("\n    ", " ").splitlines() if "|" in line]
ROWS = [[part.strip() for part in line.split("|")] for line in LINES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_policy_is_made_of_what_its_source_says(row: list[str]) -> None:
    assert told(row[0]) == row[1:]


def test_no_name_is_left_out() -> None:
    here = {row[0].partition("?")[0] for row in ROWS} - {"static-7"}
    assert here | {"disco", "specdecpp", "router", "auto"} == set(registry.names("policies"))


@pytest.mark.parametrize("name", ["ucb1", "ts"])
def test_tapouts_token_level(name: str) -> None:
    policy: Any = method(f"tapout-token-{name}", TEAM).policy
    assert policy.rules == RULES
    assert [rule is not None for rule in policy.moving] == [False, False, True, False, False]
    if name == "ucb1":
        assert {options(learner) for learner in policy.bank.learners} == {"UCB1 1"}
    else:
        assert policy.bank.successes == policy.bank.failures == [1.0] * 640


@pytest.mark.parametrize(("name", "second"), [("hf-threshold", 0.4), ("hf-threshold?per_query=false", 0.7)])
def test_transformers_threshold_starts_anew_with_each_text(name: str, second: float) -> None:
    policy = method(name, TEAM).policy
    first = policy.choose(Context(request=1), Random(0))
    assert first.stops[0].threshold == 0.4
    drafted = (0.9, 0.8, 0.7, 0.7, 0.7, 0.2)  # all but the last were accepted
    signals = tuple(Signals(p, 1.0 - p, 0.0, p) for p in drafted)
    policy.learn(Feedback(1, first, (Outcome(0, 5, 6, signals=signals),)))
    assert policy.choose(Context(request=1), Random(0)).stops[0].threshold == 0.7
    assert policy.choose(Context(request=2), Random(0)).stops[0].threshold == second


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


def test_all_drafters_at_once_need_one() -> None:
    with pytest.raises(UserError, match="this policy needs a drafter"):
        method("draft-all", ["none"])
