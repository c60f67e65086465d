"""What each kind of policy, moving rule and reward decides and learns: numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, nan
from random import Random

import pytest

from draftwise.core.arms import Arm, Context, Decision, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.errors import UserError
from draftwise.policies.adaptive import AdaEDL, ConfidenceRefit, HeuristicLength, LengthPolicy
from draftwise.policies.arms import tapout_rules
from draftwise.policies.bandit import BanditPolicy, ContextPolicy, ExpertPolicy
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.recorders.bandit import REWARDS, Rate, reward
from draftwise.policies.tokens import Separate, TokenPolicy

RNG = Random(0)


@dataclass
class Script:
    """Chooses what it is told to, in turn, and keeps what it hears."""

    arms: int
    turn: int = 0
    heard: list[tuple[int, float, float]] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        self.turn += 1
        return allowed[(self.turn - 1) % len(allowed)], 0.5

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.heard.append((arm, reward, propensity))

    def abort(self, arm: int) -> None:
        self.aborted.append(arm)

    def estimates(self) -> list[float]:
        return [0.0] * self.arms


# -- bandits -------------------------------------------------------------------------------------------


def test_an_arm_out_of_use_is_not_chosen() -> None:
    policy = BanditPolicy((Arm("a", 1), Arm("b", 1)), Script)
    assert policy.choose(Context(unavailable=frozenset({"a"})), RNG).arm == 1
    assert policy.choose(Context(unavailable=frozenset({"a", "b"})), RNG).arm in (0, 1)


def test_per_query_learners_are_their_own() -> None:
    policy = BanditPolicy((Arm("a", 1), Arm("b", 1)), Script, per_query=True)
    assert [policy.choose(Context(request=r), RNG).arm for r in (1, 1, 2)] == [0, 1, 0]
    policy.close(1)
    assert policy.choose(Context(request=1), RNG).arm == 0


def test_adaedls_threshold_follows_its_own_rounds_into_the_decision() -> None:
    arms = (Arm("a", 4, stop=Stop("adaedl", 0.6)), Arm("a", 4, stop=Stop("svip", 0.6)))
    rule = AdaEDL()
    policy = BanditPolicy(arms, Script, moving=(rule, None))
    assert policy.choose(Context(), RNG).stops == (Stop("adaedl", 0.6),)
    policy.learn(Feedback(0, Decision(0), (Outcome(0, accepted=0, drafted=4),)))
    # AR = 0.45 < 0.9, so lambda' = 0.61 and lambda = 0.9 * 0.6 + 0.1 * 0.61
    assert rule.threshold == pytest.approx(0.601)
    policy.choose(Context(), RNG)
    policy.learn(Feedback(0, Decision(1), (Outcome(1, accepted=0, drafted=4),)))
    assert rule.threshold == pytest.approx(0.601)  # another rule's round
    assert policy.choose(Context(), RNG).stops[0].threshold == pytest.approx(0.601)


# -- TapOut, token level -----------------------------------------------------------------------------------


def token_policy(length: int) -> TokenPolicy:
    rules = tapout_rules()
    moving = tuple(AdaEDL(form="tapout") if rule.rule == "adaedl" else None for rule in rules)
    return TokenPolicy((Arm("a", length),), rules, Separate(len(rules), length, Script), moving)


def scripts(policy: TokenPolicy) -> list[Script]:
    assert isinstance(policy.bank, Separate)
    return [learner for learner in policy.bank.learners if isinstance(learner, Script)]


def test_a_choice_that_no_draft_reached_stands() -> None:
    policy = token_policy(3)
    decision = policy.choose(Context(), RNG)
    policy.learn(Feedback(0, decision, (Outcome(0, accepted=1, drafted=1),)))
    rules = tapout_rules()
    assert policy.choose(Context(), RNG).stops == (rules[1], rules[0], rules[0])
    assert [s.turn for s in scripts(policy)] == [2, 1, 1]
    policy.close(0)
    # the second choice for position 0 and the first ones of the others were never tried
    assert [s.aborted for s in scripts(policy)] == [[1], [0], [0]]


def test_requests_choose_apart_and_learn_together() -> None:
    policy = token_policy(2)
    rules = tapout_rules()
    assert policy.choose(Context(request=1), RNG).stops[0] == rules[0]
    second = policy.choose(Context(request=2), RNG)
    assert second.stops[0] == rules[1]
    policy.learn(Feedback(2, second, (Outcome(0, accepted=2, drafted=2),)))
    assert scripts(policy)[0].heard == [(1, 1.0, 1.0)]


def test_adaedl_at_a_token_takes_lambda_as_it_stands() -> None:
    policy = token_policy(2)
    for _ in range(3):  # the script comes to the third rule
        decision = policy.choose(Context(), RNG)
        policy.learn(Feedback(0, decision, (Outcome(0, accepted=0, drafted=2),)))
    assert decision.stops[0].rule == "adaedl" and decision.stops[0].threshold == 0.6
    assert policy.moving[2] is not None and policy.moving[2].stop.threshold == pytest.approx(0.601)


def test_a_round_that_says_nothing_leaves_every_choice_standing() -> None:
    policy = token_policy(2)
    before = policy.choose(Context(), RNG)
    policy.learn(Feedback(0, before))
    assert policy.choose(Context(), RNG).stops == before.stops


# -- experts -----------------------------------------------------------------------------------------------


def test_experts_take_vectors_of_losses_with_sleepers() -> None:
    policy = ExpertPolicy((Arm("a", 2), Arm("b", 2)), NormalHedge, per_query=False)
    for _ in range(5):
        policy.learn(Feedback(0, Decision(0), losses=(1.0, 0.0)))
    policy.learn(Feedback(0, Decision(0), losses=(None, 0.5)))
    policy.learn(Feedback(0, Decision(0)))  # nothing was known yet
    assert policy.choose(Context(), RNG).arm == 1
    assert policy.choose(Context(unavailable=frozenset({"b"})), RNG).arm == 0


def test_the_best_is_kept_until_another_is_better() -> None:
    policy = ExpertPolicy((Arm("a", 2), Arm("b", 2)), Hedge, play="best")
    assert policy.choose(Context(), RNG).arm == 0
    policy.learn(Feedback(0, Decision(0), losses=(0.6, 0.5)))
    assert policy.choose(Context(), RNG) == Decision(1, 1.0)
    policy.learn(Feedback(0, Decision(0), losses=(0.5, 0.6)))
    assert policy.choose(Context(), RNG).arm == 1, "level"


# -- context and lengths -----------------------------------------------------------------------------------


def test_linucb_learns_which_match_length_makes_which_drafter_right() -> None:
    arms = (Arm("lm", 4), Arm("ngram", 4))
    policy = ContextPolicy(arms, ("lm", "ngram"), LinUCB(2, ContextPolicy.dimensions(2), strength=0.3))
    rng = Random(1)
    right = 0
    for step in range(600):
        match = rng.choice((0.0, 12.0))
        decision = policy.choose(Context(hints={"lm": 1.0, "ngram": match}, position=step), rng)
        best = int(match > 0)
        right += step >= 300 and decision.arm == best
        worth = 0.9 if decision.arm == best else 0.1
        signals = (Signals(0.5, 0.2, 1.0, 0.5),)
        policy.learn(Feedback(0, decision, (Outcome(decision.arm, 1, 2, reward=worth, signals=signals),)))
    assert right > 0.95 * 300
    policy.close(0)
    assert not policy.features and not policy.entropies


def test_linucb_counts_a_round_that_says_nothing_out_again() -> None:
    policy = ContextPolicy((Arm("a", 2),), ("a",), LinUCB(1, ContextPolicy.dimensions(1)))
    decision = policy.choose(Context(), RNG)
    assert policy.learner.flight == [1]
    policy.learn(Feedback(0, decision))
    assert policy.learner.flight == [0]


@pytest.mark.parametrize("transient", [False, True])
def test_transformers_heuristic_length(transient: bool) -> None:
    policy = LengthPolicy(tuple(Arm("a", n) for n in range(1, 9)), start=4, transient=transient)

    def play(request: int, accepted: int) -> int:
        decision = policy.choose(Context(request=request), RNG)
        length = policy.arms[decision.arm].length
        outcome = Outcome(decision.arm, min(accepted, length), length)
        policy.learn(Feedback(request, decision, (outcome,)))
        return length

    assert [play(0, 99), play(0, 99), play(0, 99), play(0, 0), play(0, 0)] == [4, 6, 8, 8, 7]
    policy.close(0)
    assert play(1, 0) == (4 if transient else 6)


def test_linucb_plays_every_arm_once_however_well_the_first_one_pays() -> None:
    """A rate's first reading is worth 1, and a bonus of constant strength would never reach beyond it."""
    policy = ContextPolicy(
        tuple(Arm("a", n) for n in (0, 1, 2)), ("a",), LinUCB(3, ContextPolicy.dimensions(1))
    )
    played = []
    for _ in range(3):
        decision = policy.choose(Context(), RNG)
        played.append(decision.arm)
        policy.learn(Feedback(0, decision, (Outcome(decision.arm, 0, 0, reward=1.0),)))
    assert played == [0, 1, 2]


def test_linucb_counts_an_arm_in_flight_as_tried() -> None:
    policy = ContextPolicy((Arm("a", 0), Arm("a", 1)), ("a",), LinUCB(2, ContextPolicy.dimensions(1)))
    assert [policy.choose(Context(request=r), RNG).arm for r in range(2)] == [0, 1]


@pytest.mark.parametrize("per_query", [True, False])
def test_adaedls_threshold_starts_anew_with_every_text_where_the_learner_does(per_query: bool) -> None:
    policy = BanditPolicy((Arm("a", 4),), Script, per_query, moving=(AdaEDL(),))

    def threshold(request: int) -> float:
        return policy.choose(Context(request=request), RNG).stops[0].threshold

    assert threshold(1) == 0.6
    policy.learn(Feedback(1, Decision(0), (Outcome(0, 0, 4),)))
    moved = threshold(1)
    assert moved > 0.6 and threshold(2) == (0.6 if per_query else moved)  # beside it
    policy.close(1)
    assert threshold(3) == threshold(1) == (0.6 if per_query else moved)  # after it


def test_linucbs_features_are_what_their_docstring_says() -> None:
    learner = LinUCB(2, ContextPolicy.dimensions(3))
    policy = ContextPolicy((Arm("lm", 4), Arm("ngram", 8)), ("lm", "ngram", "mute"), learner)
    policy.choose(Context(request=7, hints={"lm": 15.0, "ngram": -1.0}), RNG)
    known = log(16) / log(17)
    assert policy.features[7] == pytest.approx([1.0, known, 0.0, 0.0, 0.0, 0.0, 0.0])
    signals = (Signals(0.5, 0.2, 1.0, 0.5), Signals(0.5, 0.2, 2.0, 0.5))
    policy.learn(Feedback(7, Decision(0), (Outcome(0, 2, 2, reward=0.5, signals=signals),)))
    policy.choose(Context(request=7, hints={"ngram": 3.0}, position=100, last_accepted=2), RNG)
    expected = [1.0, 0.0, log(4) / log(17), 0.0, log(101) / log(513), 2 / 8, 1.5 / 5]
    assert policy.features[7] == pytest.approx(expected)
    loud = (Signals(0.5, 0.2, 9.0, 0.5),)
    policy.learn(Feedback(7, Decision(0), (Outcome(0, 2, 2, reward=0.5, signals=loud),)))
    policy.choose(Context(request=7), RNG)
    assert policy.features[7][-1] == 1.0


# -- rules and lengths that move ----------------------------------------------------------------------------

ROUNDS = [(4, 4), (3, 3), (4, 2), (4, 0), (4, 4)]
"""Drafted and accepted, of at most 4."""


def lambdas(rule: AdaEDL) -> list[float]:
    after = []
    for drafted, accepted in ROUNDS:
        rule.learn(Outcome(0, accepted, drafted), 4)
        after.append(rule.threshold)
    return after


def test_adaedl_lambda_after_five_rounds() -> None:
    rule = AdaEDL()
    # AR: 0.95, 0.975, 0.7375, 0.36875, 0.684375; so: full, less, more, more, more, a thousandth each
    assert lambdas(rule) == pytest.approx([0.6, 0.599, 0.6, 0.601, 0.602], abs=1e-12)
    assert rule.rate == pytest.approx(0.684375, abs=1e-12)


def test_adaedl_as_tapout_prints_it() -> None:
    # the round's own rate: 1, 1, 0.5, 0, 1 against 0.9
    assert lambdas(AdaEDL(form="tapout")) == pytest.approx([0.599, 0.598, 0.599, 0.6, 0.599], abs=1e-12)


def test_adaedl_learns_nothing_from_an_empty_draft() -> None:
    rule = AdaEDL()
    rule.learn(Outcome(0, 0, 0), 4)
    assert rule == AdaEDL()


def test_heuristic_length_never_goes_below_one() -> None:
    rule = HeuristicLength(2)
    rule.learn(Outcome(0, 0, 0))
    assert rule.length == 2, "an empty draft says nothing"
    for _ in range(4):
        rule.learn(Outcome(0, 0, rule.length))
    assert rule.length == 1


def tell(rule: ConfidenceRefit, chosen: list[float], accepted: int) -> None:
    """A round with these probabilities of its tokens."""
    signals = tuple(Signals(p, 0.0, 0.0, p) for p in chosen)
    rule.learn(Outcome(0, accepted, len(chosen), signals=signals), len(chosen))


def test_refit_waits_for_enough_of_both_kinds() -> None:
    rule = ConfidenceRefit()
    tell(rule, [0.9, 0.8, 0.7], 3)
    tell(rule, [0.6, 0.5, 0.95], 3)
    assert rule.threshold == 0.4, "six pairs, but no miss among them"
    few = ConfidenceRefit()
    tell(few, [0.9, 0.2, 0.8, 0.7, 0.6], 4)
    assert few.threshold == 0.4, "both kinds, but five pairs"


def test_refit_takes_the_cheapest_point() -> None:
    rule = ConfidenceRefit()
    tell(rule, [0.9, 0.8, 0.3, 0.1, 0.05], 2)  # 0.3 was wrong; 0.1 and 0.05 were never tested
    tell(rule, [0.7, 0.5, 0.2], 2)
    # hits 0.9 0.8 0.7 0.5, misses 0.3 0.2: at 0.5 every hit and no miss
    assert rule.threshold == 0.5
    tell(rule, [0.1], 1)
    # below 0.5 a fifth hit at 0.1 costs both misses (1); without it the cost is 3/5
    assert rule.threshold == 0.5
    tell(rule, [0.15, 0.12], 2)
    # hits 0.9 0.8 0.7 0.5 0.15 0.12 0.1: at 0.5 the cost is 3 * 3/7, at 0.1 it is 1
    assert rule.threshold == 0.1


@pytest.mark.parametrize("steps", [4, 10, 100, 10**9])
def test_refit_chooses_as_scikit_learn_does(steps: int) -> None:
    """Coarse probabilities make ties between points, fine ones make none."""
    metrics = pytest.importorskip("sklearn.metrics")
    compared = 0
    for seed in range(8):
        rng, rule = Random(seed), ConfidenceRefit()
        probs: list[float] = []
        matches: list[int] = []
        for _ in range(25):
            chosen = [rng.randrange(1, steps + 1) / steps for _ in range(rng.randrange(7))]
            accepted = 0
            while accepted < len(chosen) and rng.random() < max(0.3, chosen[accepted]):
                accepted += 1
            tested = chosen[: accepted + 1]
            probs += tested
            matches += [1] * accepted + [0] * (len(tested) - accepted)
            tell(rule, chosen, accepted)
            if len(probs) > 5 and 0 in matches and 1 in matches:
                fpr, tpr, thresholds = metrics.roc_curve(matches, probs)
                costs = fpr + 3 * (1 - tpr)
                assert rule.threshold == thresholds[costs.argmin()]
                compared += 1
    assert compared > 100


# -- rewards -----------------------------------------------------------------------------------------------


def outcome(accepted: int, drafted: int, seconds: float = nan) -> Outcome:
    return Outcome(arm=0, accepted=accepted, drafted=drafted, seconds=seconds)


@pytest.mark.parametrize("name", REWARDS)
def test_plain_decoding_alone_has_a_worth(name: str) -> None:
    worth = reward(name)(outcome(0, 0, seconds=0.1), 0)
    assert worth == (1.0 if name == "rate" else 0.0)
    assert name == "rate" or reward(name)(outcome(0, 0), 5) == 0.0, "nor has an empty draft"


def test_rate_is_relative_to_the_best_so_far() -> None:
    rate = Rate(memory=0.5)
    assert rate(outcome(3, 4, seconds=0.5), 5) == 1.0  # 8 tokens/s
    assert rate(outcome(0, 4, seconds=0.5), 5) == 0.5  # 2 of 4: the maximum has halved
    assert rate(outcome(0, 4, seconds=0.5), 5) == 1.0  # 2 of 2
    assert rate(outcome(4, 4, seconds=0.5), 5) == 1.0  # 10 of 10
    assert rate.top == 10.0


def test_rate_forgets_slowly_by_itself() -> None:
    rate = reward("rate")
    assert rate(outcome(9, 9, seconds=0.001), 9) == 1.0  # one lucky clock reading of 10,000 tokens/s
    later = [rate(outcome(9, 9, seconds=0.1), 9) for _ in range(5000)]
    assert later[0] == pytest.approx(0.01001001, abs=1e-6)
    assert later[-1] == 1.0


def test_rate_learns_nothing_from_a_round_without_a_time() -> None:
    rate = Rate()
    assert rate(outcome(3, 4), 5) is None
    assert rate(outcome(3, 4, seconds=0.0), 5) is None
    assert rate.top == 0.0


def test_each_rate_has_a_maximum_of_its_own() -> None:
    first, second = reward("rate"), reward("rate")
    first(outcome(9, 9, seconds=0.01), 9)
    assert second(outcome(0, 9, seconds=1.0), 9) == 1.0


def test_an_unknown_reward_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match="reward=acepted: choose from accepted"):
        reward("acepted")


def test_the_scale_of_the_rate_does_not_follow_who_plays() -> None:
    """Were there one maximum, an arm that plays alone would soon earn 1, whatever the others could do."""
    rate = Rate()
    assert rate(Outcome(1, 9, 9, seconds=1.0), 9) == 1.0
    alone = [rate(Outcome(0, 0, 0, seconds=1.0), 9) for _ in range(5000)]
    assert set(alone) == {0.1}
