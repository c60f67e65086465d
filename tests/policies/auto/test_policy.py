"""The choices of `auto`, what it learns and keeps apart, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import NEVER, Arm, Context, Decision
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome, RoundCost, Window
from draftwise.errors import UserError
from draftwise.policies.auto.chances import CONTEXTS, match_length
from draftwise.policies.auto.drafts import LENGTHS, TAKEN, Candidate
from draftwise.policies.auto.guard import Guard
from draftwise.policies.auto.policy import KINDS, AutoPolicy
from draftwise.policies.auto.prices import ENOUGH, WAIT, WINDOW, DraftPrice, Rate, RoundCosts, size_class
from draftwise.policies.catalogue import default, method
from draftwise.policies.catalogue.auto import team
from draftwise.state.learned import restart

NAN = float("nan")
CASCADE = ("lm:a", "ngram", "cascade:lm:a>ngram?match=1")


def new(*names: str, looks_up: bool = True, lengths: tuple[int, ...] = LENGTHS) -> AutoPolicy:
    arms, drafters, _ = team(names, lengths, width=1)
    return AutoPolicy(arms, drafters, (looks_up,) * len(names))


def teach(
    policy: AutoPolicy,
    chances: Mapping[int, float],
    *,
    rate: float = 100.0,
    token: float = 0.0,
    extra: float = 0.0,
    batch: int = 1,
) -> AutoPolicy:
    """Teach what each drafter's chance is, what its tokens cost, and what one more in the pass does."""
    policy.rates[size_class(batch)] = Rate(tokens=[rate, rate], seconds=[1.0, 1.0])
    for i, chance in chances.items():
        policy.acceptance[i].tested = [[1000.0] * LENGTHS[-1] for _ in range(CONTEXTS)]
        policy.acceptance[i].accepted = [[1000.0 * chance] * LENGTHS[-1] for _ in range(CONTEXTS)]
        priced(policy.draft_price(i), token, batch=batch)
    for _ in range(100):
        for tokens in (batch, 17 * batch):
            policy.pass_prices[size_class(batch)].add(tokens, 0.01 + extra * (tokens - batch))
    return policy


def priced(price: DraftPrice, token: float, *, start: float = 0.0, batch: int = 1) -> None:
    for _ in range(10):
        for longest in (1, 4):
            price.add(longest, 0, start + token * longest, batch, batch)


def taught(
    chance: float, *, rate: float = 100.0, token: float = 0.0, extra: float = 0.0, batch: int = 1
) -> AutoPolicy:
    """A policy that knows one lookup."""
    return teach(new("a"), {0: chance}, rate=rate, token=token, extra=extra, batch=batch)


def play(policy: AutoPolicy, hints: Mapping[str, float] | None = None, **context: Any) -> Arm:
    """The arm that is chosen."""
    chosen = policy.choose(Context(hints=hints or {}, **context), Random(0))
    return policy.arms[chosen.arm]


def spend(
    policy: AutoPolicy,
    tokens: int,
    target: float,
    *,
    written: int = 1,
    requests: int = 1,
    reading: float = 0.0,
    seconds: float | None = None,
    **cost: Any,
) -> None:
    """One round: what it took for all its requests, each of which wrote so many tokens."""
    one = (target if seconds is None else seconds) / requests
    rounds = {k: (one, written) for k in range(requests)}
    matched = [k for k, text in policy.texts.items() if text.matched]
    spent = RoundCost(0.0, target, tokens, requests, **cost)
    policy.spent(RoundCosts(spent, [], rounds, matched, False, policy.trial), reading)


# -- choosing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chance", "token", "extra", "length"),
    [
        (0.9, 0.0, 0.0, 16),  # nothing costs anything
        (0.5, 0.0, 0.0005, 4),  # at 100 tokens/s a token costs 0.05: 0.5^4 pays for itself, 0.5^5 does not
        (0.5, 0.0005, 0.0005, 3),
        (0.3, 0.0, 0.004, 0),  # 0.3 tokens for 0.4
    ],
)
def test_a_draft_goes_as_far_as_its_last_token_pays(
    chance: float, token: float, extra: float, length: int
) -> None:
    assert play(taught(chance, token=token, extra=extra), {"a": 2.0}).length == length


def test_before_any_pass_a_drafter_is_tried_with_one_token() -> None:
    """Its trial is free but for the longer pass; it grows from there."""
    policy = new("a")
    policy.reasons = []
    assert play(policy, {"a": 2.0}) == Arm("a", 1) and policy.trial
    assert [(one.trial, one.seconds) for one in policy.reasons[0].candidates] == [(True, 0.0)]


def test_who_cannot_draft_is_not_asked() -> None:
    policy = taught(0.9)
    assert play(policy, {"a": 3.0}).length > 0
    assert play(policy, {"a": 0.0}).length == play(policy).length == 0, "a lookup without a match"
    assert play(policy, {"a": 3.0}, unavailable=frozenset({"a"})).length == 0


def test_a_model_that_was_never_graded_does_not_draft() -> None:
    policy = new("m", looks_up=False)
    assert play(policy, {"m": 1.0}).length == 0
    policy.learn(Feedback(0, Decision(0), windows=(Window(0, 0, (1.0,)),)))
    assert play(policy, {"m": 1.0}).length == 1


def test_of_two_drafters_the_one_of_the_higher_gain_drafts() -> None:
    """The second is right less often, and costs less."""
    policy = teach(new("a", "b"), {0: 0.7, 1: 0.6}, extra=0.001)
    assert play(policy, {"a": 2.0, "b": 2.0}).drafter == "a"
    policy.draft_prices[0] = DraftPrice()
    priced(policy.draft_price(0), 0.003)
    assert play(policy, {"a": 2.0, "b": 2.0}).drafter == "b"


def test_a_second_is_worth_at_least_what_plain_decoding_writes_in_it() -> None:
    policy = taught(0.5, rate=1.0)
    assert policy.rate(1, False) == pytest.approx(100.0, rel=0.01)
    assert taught(0.5, rate=300.0).rate(1, False) == pytest.approx(300.0, rel=0.01)


def test_a_trial_has_to_pay_for_the_longer_pass() -> None:
    """A draft whose cost is unknown is free, but not the tokens that the longer pass would have written."""
    cheap, dear = (taught(0.5, extra=extra) for extra in (0.001, 0.02))
    for policy in (cheap, dear):
        policy.draft_prices[0] = DraftPrice()
    assert play(cheap, {"a": 2.0}).length == 1 and cheap.trial
    assert play(dear, {"a": 2.0}).length == 0 and not dear.trial


def test_a_drafter_that_is_too_expensive_is_tried_again_after_a_while() -> None:
    policy = taught(0.9, token=0.5)
    lengths = [play(policy, {"a": 2.0}).length for _ in range(WAIT + 1)]
    assert lengths == [0] * WAIT + [1]


def test_rounds_in_which_it_could_not_draft_bring_no_new_trial_nearer() -> None:
    policy = taught(0.9, token=0.5)
    for _ in range(2 * WAIT):
        play(policy)
    assert policy.draft_price(0).idle == 0.0 and play(policy, {"a": 2.0}).length == 0


def test_a_model_is_told_apart_by_the_longest_match_of_any_lookup() -> None:
    policy = AutoPolicy(*team(["ngram", "model", "suffix"], LENGTHS))
    play(policy, {"ngram": 2.0, "suffix": 9.0, "model": 1.0})
    short, long = match_length(2.0), match_length(9.0)
    assert short != long and policy.texts[0].contexts == [short, long, long] and policy.texts[0].matched
    play(policy)
    assert policy.texts[0].contexts == [0, 0, 0] and not policy.texts[0].matched


def test_a_longest_draft_can_be_named() -> None:
    draft: Any = method("auto?length=5", ["a", "b"]).policy
    assert draft.lengths == (1, 2, 3, 4, 5) and max(arm.length for arm in draft.arms) == 5
    usual: Any = method("auto", ["a"]).policy
    assert usual.lengths == LENGTHS


def test_drafts_of_another_engine_may_be_longer_than_its_own() -> None:
    policy = new("a", lengths=(1, 20))
    priced(policy.draft_price(0), 0.0)
    for tokens in (1, 21):
        policy.pass_prices[0].add(tokens, 0.01)
        policy.learn(Feedback(0, Decision(2), windows=(Window(0, 2, (1.0,) * 20),) * 50))
    assert play(policy, {"a": 2.0}).length == 20 and len(policy.values().values) == 3


@pytest.mark.parametrize("option", ["length=0", "length=17", "share=1", "cascades=-1"])
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(UserError, match=rf"auto\?{option}"):
        method(f"auto?{option}", ["ngram"])


def test_it_is_the_default_wherever_there_is_a_drafter() -> None:
    assert default(["ngram"]) == "auto" and default(["none"]) == default([]) == "none"


# -- reading -----------------------------------------------------------------------------------------------


def reads(*, answer: float = 0.0, each: float = 1e-3) -> AutoPolicy:
    """A model that is always right, and reads a token in so many seconds; nothing else costs anything."""
    policy = teach(new("m", looks_up=False), {0: 1.0})
    policy.draft_price(0).read(1000, 1000 * each)
    policy.answer = answer
    return policy


@pytest.mark.parametrize(
    ("answer", "position", "remaining", "tokens"),
    [
        (100.0, 0, inf, 100.0),
        (100.0, 55, inf, 45.0),
        (100.0, 90, inf, 45.0),  # one that is longer than others is taken to go half as far again
        (0.0, 0, inf, 64.0),
        (8.0, 8, inf, 8.0),  # eight tokens at least
        (100.0, 0, 6.0, 6.0),
    ],
)
def test_reading_is_paid_off_over_what_is_left_of_the_answer(
    answer: float, position: int, remaining: float, tokens: float
) -> None:
    """Two tokens are written in a round. Where half of all time was reading, it is worth half as much."""
    policy = reads(answer=answer)
    context = Context(length=1000, position=position, remaining=remaining)
    for share, unread in ((1.0, 1000), (0.5, 1000), (0.5, 10)):
        text = policy._text(context)
        text.read[0] = 1000 - unread
        seconds = policy._reading(0, context, text, [1.0]) / policy.acceptance[0].confidence
        assert seconds == pytest.approx(share * unread / 1000 * 2.0 / tokens, rel=0.02)
        for _ in range(500):
            spend(policy, 1, 0.02, reading=0.01)


def test_a_model_reads_a_prompt_if_the_answer_is_long_enough() -> None:
    """One second for an answer that takes 8 without it, or 0.6."""
    assert play(reads(answer=800.0), length=1000).length == 16
    assert play(reads(answer=60.0), length=1000).length == 0
    assert play(reads(answer=60.0)).length == 16


def test_the_length_of_an_answer_is_learned_from_those_that_ended() -> None:
    policy = new("m")
    for request, written in enumerate((100, 200, 0)):
        policy._text(Context(request=request)).written = written
        policy.close(request)
    assert policy.answer == pytest.approx(110.0) and not policy.texts


def test_a_text_that_goes_on_has_been_read() -> None:
    """The next turn of a conversation: else a call that reads what is new would seem to read all of it."""
    policy = reads()
    policy._text(Context(request=5)).read[0] = 1000
    policy.close(5)
    assert policy._text(Context(request=5)).read == {0: 1000} and not policy._text(Context(request=6)).read
    for request in range(7, 500):
        policy._text(Context(request=request)).read[0] = 1000
        policy.close(request)
    assert len(policy.closed) == WINDOW, "only the latest may go on"


# -- batches ----------------------------------------------------------------------------------------------


def plan(policy: AutoPolicy, hints: list[dict[str, float]], **context: Any) -> list[int]:
    """The length of each request's draft."""
    batch = [Context(request=k, hints=mine, batch_size=len(hints), **context) for k, mine in enumerate(hints)]
    assert not policy.rests(len(hints))
    policy.plan(batch)
    return [policy.arms[policy.choose(one, Random(0)).arm].length for one in batch]


def test_in_a_batch_those_with_a_match_draft() -> None:
    policy = taught(0.8, batch=4, rate=400.0)
    lengths = plan(policy, [{"a": 2.0}, {}, {"a": 2.0}, {}])
    assert lengths[1] == lengths[3] == 0 and lengths[0] == lengths[2] > 4


def test_before_any_pass_of_a_batch_nobody_drafts() -> None:
    assert plan(new("a"), [{"a": 2.0}] * 4) == [0] * 4


def test_a_request_with_an_arm_of_its_own_may_be_planned_alone() -> None:
    """The loop may ask for one request of a batch of which no plan was made."""
    policy = taught(0.8, batch=4, rate=400.0)
    assert play(policy, {"a": 2.0}, request=9, batch_size=4).length > 0


def test_a_plan_holds_for_one_round() -> None:
    policy = taught(0.8, batch=2, rate=200.0)
    assert min(plan(policy, [{"a": 2.0}] * 2)) > 0
    assert plan(policy, [{}] * 2) == [0, 0] and not policy.planned


def test_a_trial_needs_no_text_that_must_be_read_first() -> None:
    """One of four has been read: it shows what the drafter costs, and the others need not read for that."""
    policy = teach(new("m", looks_up=False), {0: 0.9}, batch=4, rate=400.0)
    policy.draft_prices[0] = DraftPrice()
    policy.draft_price(0).read(1000, 0.001)
    for k in range(4):
        policy._text(Context(request=k)).read = {0: 999} if k == 2 else {}
    lengths = plan(policy, [{}] * 4, length=1000)
    assert lengths == [0, 0, 1, 0] and policy.trial


def test_one_request_that_measures_a_drafter_makes_the_round_of_all_a_trial() -> None:
    policy = taught(0.9, batch=2)
    contexts = [Context(request=k, hints={"a": 2.0}, batch_size=2) for k in range(2)]
    for trial in (True, False):
        assert not policy.rests(2)
        drafts = [Candidate(0, 1, 1.0, 0.0, 1.0, trial=trial and k == 0) for k in range(2)]
        policy.planned = {k: (draft, 100.0) for k, draft in enumerate(drafts)}
        for one in contexts:
            policy.choose(one, Random(0))
        assert policy.trial == trial


# -- learning what rounds took ------------------------------------------------------------------------------


def test_padded_rows_are_tokens_of_the_pass() -> None:
    policy = new("a")
    for _ in range(20):
        spend(policy, 4, 0.010, requests=4, width=1)
        spend(policy, 7, 0.014, requests=4, width=4)
    assert policy.padded and policy.passes(4).usual(16) == pytest.approx(0.014)
    assert policy.passes(4).usual(7) == 0.0


def test_rounds_that_read_a_prompt_teach_no_prices() -> None:
    policy = new("a")
    spend(policy, 1, 0.5, seconds=NAN)
    assert not policy.passes(1).has_readings and policy.rate(1, False) == 0.0


def test_a_size_of_batch_that_was_not_seen_has_the_prices_of_the_nearest_one() -> None:
    policy = new("a")
    policy.pass_prices[size_class(8)].add(8, 0.02)
    assert policy.passes(1) is policy.passes(100) is policy.pass_prices[size_class(8)]
    policy.pass_prices[size_class(1)].add(1, 0.01)
    assert policy.passes(2) is policy.passes(1) is not policy.passes(100)


@pytest.mark.parametrize("word", ["compiled", "graph"])
def test_each_kind_of_pass_has_prices_of_its_own(word: str) -> None:
    """After a switch nothing is believed of eager prices; what follows a colon is a width, and no kind."""
    policy = new("a")

    def spent(kind: str, seconds: float, rounds: int = 40) -> None:
        for tokens in (1, 5, 9) * rounds:
            spend(policy, tokens, seconds * (1.0 + 0.05 * tokens), kind=kind)

    spent("", 0.02)
    spent("eager", 0.02)
    eager, guard, rate = policy.passes(1)(5), policy.guards[policy.kind], policy.rate(1, False)
    spent(f"{word}:9", 0.008)
    assert policy.passes(1)(5) == pytest.approx(0.010, rel=0.05)
    assert policy.guards[policy.kind] is not guard and policy.rate(1, False) > 2 * rate
    spent("eager", 0.02, rounds=1)
    assert policy.passes(1)(5) == pytest.approx(eager, rel=0.05) and policy.guards[policy.kind] is guard
    spend(policy, 1, 0.02, kind="dreamt")
    assert KINDS[policy.kind] == "other" and policy.passes(1)(1) == pytest.approx(0.02)


def test_rates_are_kept_apart_by_whether_there_is_a_match() -> None:
    policy = new("a")
    for _ in range(100):
        play(policy, {"a": 2.0})
        spend(policy, 9, 0.01, written=9)
        play(policy)
        spend(policy, 1, 0.01)
    assert policy.rate(1, True) > 800 > 200 > policy.rate(1, False)


# -- what rejections cost later ----------------------------------------------------------------------------


def test_a_plain_pass_that_reads_again_is_the_price_of_the_draft_before_it() -> None:
    """Drafts and plain passes in turn, all rejected: drafting two tokens costs 10 ms more, and 15 later."""
    policy = new("a")
    for _ in range(8):
        spend(policy, 1, 0.030)
    for _ in range(60):
        spend(policy, 3, 0.040)
        spend(policy, 1, 0.045, again=3)
        spend(policy, 1, 0.030)
    assert policy.passes(1)(1) == pytest.approx(0.030, rel=0.02)
    assert policy.passes(1)(3) == pytest.approx(0.055, rel=0.05)
    spend(policy, 1, 0.045, again=5)
    spend(policy, 3, 0.040)
    assert policy.owed == 0.0, "what nobody expects of the next draft is owed once"


@pytest.mark.parametrize("again", [3, 0])
def test_the_guard_sees_what_is_read_again(again: int) -> None:
    """One draft in two has a token right: 10 ms more for half a token of 30 pay, 25 ms do not."""
    policy, pauses = new("a"), []
    for _ in range(8):
        spend(policy, 1, 0.030)
    for at in range(200):
        spend(policy, 3, 0.040, written=1 + at % 2)
        spend(policy, 1, 0.045 if again else 0.030, again=again)
        pauses.append(policy.guards[0].pause)
    assert any(pauses) is (again > 0)


def test_a_clean_plain_pass_is_asked_for_first() -> None:
    """Where rejections cost later passes, no draft is made before plain decoding has a price."""
    policy = new("a")
    for tokens, again, drafts in ((2, 0, True), (2, 1, False), (1, 2, False), (1, 0, True)):
        spend(policy, tokens, 0.030, again=again)
        assert (play(policy, {"a": 3.0}).length > 0) is drafts


# -- the guard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_the_guard_does_not_judge_rounds_that_measure_what_a_draft_costs(batch: int) -> None:
    """The first calls prepare memory and read the prompts."""
    policy = taught(0.9, batch=batch)
    price = policy.draft_prices[0] = DraftPrice()

    def one() -> None:
        lengths = plan(policy, [{"a": 2.0}] * batch) if batch > 1 else [play(policy, {"a": 2.0}).length]
        assert all(lengths)
        spend(policy, 2 * batch, 0.01, requests=batch)

    for trial in (1, 1, 4):
        assert price.trial == trial
        one()
        assert policy.guards[0].rounds == 0
        price.add(trial, 0, 1e-3, batch, batch)
    one()
    assert policy.guards[0].rounds == 1


def test_the_whole_round_is_held_against_plain_passes() -> None:
    """Four requests that write three tokens each take three passes of 10 ms without drafts."""
    for batch in (1, 4):
        policy = taught(0.9, batch=batch)
        spend(policy, batch, 0.02, requests=batch)
        assert policy.guards[0].rounds == 0, "a round without drafts is not judged"
        policy = taught(0.9, batch=batch)
        spend(policy, 4 * batch, 0.01, written=3, requests=batch, seconds=0.115, reading=0.1)
        assert policy.guards[0].spent == pytest.approx(0.115)
        assert policy.guards[0].plain == pytest.approx(3 * 0.01, rel=0.01)


# -- stop rules ------------------------------------------------------------------------------------------


def stop(policy: AutoPolicy, candidate: Candidate, *, batch: int = 1, rate: float = 0.1) -> float:
    return policy._stop(candidate, batch, policy.passes(batch), rate).threshold


def stops(token: float = 0.01, *, batch: int = 1) -> AutoPolicy:
    """A trusted model and its cascade; of a pass the first five tokens cost nothing more than one does."""
    policy = AutoPolicy(*team(CASCADE, LENGTHS))
    for tokens in range(batch, batch + 18):
        for _ in range(10):
            policy.pass_prices[size_class(batch)].add(tokens, 1.0 + 0.1 * max(0, tokens - batch - 4))
    policy.calibrations[0].seen = ENOUGH
    priced(policy.draft_price(0), token, batch=batch)
    return policy


@pytest.mark.parametrize("composite", [False, True])
def test_a_draft_stops_by_what_its_own_tokens_cost(composite: bool) -> None:
    policy = stops()
    each = policy.draft_price(0)(1)[1]
    for length in (3, 4, 8, 16):
        extra = policy.passes(1).extra(1, 16)[length] / length
        lengths = (16, length) if composite else (length, 0)
        draft = Candidate(2 * composite, lengths[0], 0, 0, 1, prefix_length=lengths[1])
        assert (extra > 0.02) is (length > 4)
        expected = 0.1 * (each + extra) / policy.acceptance[0].mean
        assert stop(policy, draft) == pytest.approx(expected)


def test_in_a_batch_all_requests_share_a_call() -> None:
    alone, many = stops(0.1), stops(0.1, batch=8)
    draft = Candidate(0, 2, 0.0, 0.0, 1.0)
    assert stop(alone, draft) == pytest.approx(0.02) and stop(many, draft, batch=8) == pytest.approx(0.02 / 8)


def test_where_rows_are_padded_no_request_makes_the_pass_shorter_by_stopping() -> None:
    policy = stops(0.1, batch=8)
    draft = Candidate(0, 8, 0.0, 0.0, 1.0)
    before, policy.padded = stop(policy, draft, batch=8), True
    assert before > 0.01 and stop(policy, draft, batch=8) == pytest.approx(0.02 / 8)


def test_what_is_not_known_stops_nothing() -> None:
    """Gradings calibrate a model before its first call."""
    policy, draft = stops(), Candidate(0, 8, 0.5, 0.0, 1.0)
    assert stop(policy, draft) > 0.0
    assert policy._stop(Candidate(1, 8, 0.0, 0.0, 1.0), 1, policy.passes(1), 100.0) == NEVER, "a lookup"
    policy.calibrations[0].seen = ENOUGH - 1.0
    assert stop(policy, draft) == 0.0
    policy.calibrations[0].seen, policy.draft_prices[0] = ENOUGH, DraftPrice()
    assert stop(policy, draft) == 0.0


def test_a_model_is_calibrated_up_to_the_first_wrong_token() -> None:
    policy = new("m", looks_up=False)
    signals = tuple(Signals(0.9, 0.1, 0.3, 0.9) for _ in range(8))
    policy.learn(Feedback(0, Decision(1), (Outcome(policy.index[0, 1, 8], 2, 8, signals=signals),)))
    assert policy.calibrations[0].seen == 3


@pytest.mark.parametrize("prefix_length", [1, 3])
def test_a_models_confidence_is_judged_by_its_own_tokens(prefix_length: int) -> None:
    """What the lookup adds has signals of another kind."""
    policy = AutoPolicy(*team(CASCADE, (4,)))
    arm, signals = policy.index[2, 1, 4], tuple(Signals(0.9, 0.1, 0.3, 0.9) for _ in range(4))
    outcome = Outcome(arm, 4, 4, signals=signals, prefix_length=prefix_length, match=2)
    policy.learn(Feedback(0, Decision(arm), (outcome,)))
    assert policy.calibrations[0].seen == prefix_length and policy.calibrations[2].seen == 0


# -- cascades --------------------------------------------------------------------------------------------


def weighed(name: str, seconds: float) -> set[str]:
    """Who is worth something where passes take so long, with a model that drafts a token or two."""
    policy = method(name, CASCADE).policy
    assert isinstance(policy, AutoPolicy)
    for tokens in (1, 2, 4):
        policy.pass_prices[0].add(tokens, seconds)
    priced(policy.draft_price(0), 0.3 * seconds)
    lessons = (Window(0, 0, (1.0,)), Window(2, TAKEN, (1.0,)), Window(2, 3, (1.0, 1.0)))
    policy.learn(Feedback(0, Decision(0), windows=lessons))
    policy.reasons = []
    play(policy)
    return {policy.drafters[one.drafter] for one in policy.reasons[0].candidates}


@pytest.mark.parametrize(("options", "least"), [("", 10e-3), ("?cascades=0", 0.0), ("?cascades=80", 80e-3)])
def test_a_cascade_is_weighed_where_a_pass_takes_long_enough(options: str, least: float) -> None:
    for seconds in (1e-3, 9.9e-3, 10.1e-3, 79e-3, 81e-3):
        assert weighed(f"auto{options}", seconds) == {CASCADE[0], *([CASCADE[2]] if seconds >= least else [])}


def test_a_cascade_that_gains_more_than_its_model_is_played() -> None:
    """The lookup's tokens behind the model's are nearly sure, and cost nothing; the model's are not."""
    policy = teach(AutoPolicy(*team(CASCADE, LENGTHS)), {0: 0.5}, token=1e-3, extra=1e-5)
    for _ in range(50):
        windows = (Window(2, TAKEN, (1.0,)), Window(2, 3, (1.0,) * 8))
        policy.learn(Feedback(0, Decision(0), windows=windows))
    chosen = policy.choose(Context(hints={"lm:a": 1.0}), Random(0))
    assert policy.arms[chosen.arm].drafter == CASCADE[2]
    assert chosen.hand_overs and 1 <= len(chosen.stops) < policy.arms[chosen.arm].length


def test_a_cascade_counts_as_the_model_that_begins_its_drafts() -> None:
    policy = teach(AutoPolicy(*team(CASCADE, LENGTHS)), {0: 0.5, 1: 0.01}, token=1e-3, extra=1e-5)
    for _ in range(50):
        windows = (Window(2, TAKEN, (1.0,)), Window(2, 3, (1.0,) * 8))
        policy.learn(Feedback(0, Decision(0), windows=windows))
    for _ in range(10):
        assert play(policy).drafter == CASCADE[2]
    assert policy.draft_price(0).idle == policy.draft_price(1).idle == 0.0
    for _ in range(10):
        assert play(policy, {"ngram": 1.0}).drafter == CASCADE[2]
    assert policy.draft_price(0).idle == 0.0 and policy.draft_price(1).idle == 10.0, "the lookup had a match"


def test_a_lookup_begins_no_cascade() -> None:
    """It is told as one from the first round on, whatever it is called."""
    policy = AutoPolicy(*team(["mine", "ngram", "cascade:mine>ngram?match=1"], LENGTHS), cascades_from=0.0)
    for tokens in (1, 2, 4):
        policy.pass_prices[0].add(tokens, 1e-3)
    priced(policy.draft_price(0), 1e-5)
    lessons = (Window(0, 2, (1.0,)), Window(2, TAKEN, (1.0,)), Window(2, 3, (1.0, 1.0)))
    policy.learn(Feedback(0, Decision(0), windows=lessons))
    played = []
    for looks_up in (False, True):
        policy.looks_up, policy.reasons = (looks_up, True, False), []
        play(policy, {"mine": 2.0})
        played.append({one.drafter for one in policy.reasons[0].candidates})
    assert played == [{0, 2}, {0}]


# -- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "factor", "believed"),
    [(1, 1.0, True), (1, 1.4, True), (1, 0.7, True), (1, 2.0, False), (1, 0.5, False), (40, 50.0, True)],
)
def test_prices_of_another_machine_are_forgotten_at_the_first_pass(
    tokens: int, factor: float, believed: bool
) -> None:
    """The first of a size that is in the file decides, and no later one."""
    policy = taught(0.7, token=0.0003)
    restart(policy)
    spend(policy, tokens, 0.01 * factor)
    assert policy.doubted is (tokens == 40)
    if not policy.doubted and believed:
        spend(policy, 1, 0.05)
    assert (policy.draft_price(0).trial == 0) is believed
    assert (policy.passes(1).usual(17) > 0.0) is believed and policy.acceptance[0].seen > 0.0


# -- what it tells -----------------------------------------------------------------------------------------


def test_the_value_of_an_arm_is_its_gain_where_it_was_tested() -> None:
    policy = taught(0.5, token=0.0005, extra=0.0005)
    told = policy.values()
    assert told.values[0] == told.seconds[0] == 0.0
    for arm, value, seconds in zip(policy.arms[1:], told.values[1:], told.seconds[1:], strict=True):
        accepted = sum(0.5**k for k in range(1, min(arm.length, 5) + 1))  # of what is likely enough to count
        assert seconds == pytest.approx(0.001 * arm.length, rel=0.1)
        assert value == pytest.approx(accepted - 100.0 * (seconds or 0.0), abs=0.03)
    best = max(range(len(policy.arms)), key=lambda i: told.values[i] or 0.0)
    assert policy.arms[best] == play(policy, {"a": 2.0})


@pytest.mark.parametrize("batch", [1, 8])
def test_it_tells_prices_and_what_was_accepted_by_the_length_of_the_match(batch: int) -> None:
    policy = taught(0.5, token=0.004, batch=batch, rate=800.0)
    told = policy.values(batch)
    assert told.seconds[policy.index[0, 1, 4]] == pytest.approx(0.016 / batch, rel=0.1)
    assert told.plain == pytest.approx(0.01, rel=0.01)
    assert told.price == {"without a match": pytest.approx(800.0), "with a match": pytest.approx(800.0)}
    assert set(told.matches) == {"a"} and len(told.matches["a"]) == CONTEXTS
    assert told.matches["a"]["5 to 8"] == pytest.approx((16000.0, 8000.0))


def test_nothing_seen_is_nothing_told() -> None:
    told = new("a", "m").values()
    assert told.values == (0.0, *[None] * (2 * len(LENGTHS))) and told.seconds == told.values
    assert (told.price, told.plain, told.matches) == ({}, None, {"a": {}, "m": {}})


def test_a_reason_says_what_was_played_and_what_it_was_weighed_by() -> None:
    policy = teach(new("a", "b"), {0: 0.7, 1: 0.3}, extra=0.001)
    policy.reasons = []
    arm = play(policy, {"a": 2.0, "b": 2.0}, position=12)
    (reason,) = policy.reasons
    assert (reason.position, reason.arm, reason.paused) == (12, arm, False) and arm.drafter == "a"
    assert [one.drafter for one in reason.candidates] == [0, 1] and reason.rate == pytest.approx(100.0)
    assert reason.candidates[0].gain > reason.candidates[1].gain > 0.0


def test_a_reason_says_if_the_guard_held_a_draft_back() -> None:
    policy = taught(0.5, extra=0.001)
    policy.guards[0], policy.reasons = Guard(pause=5.0), []
    play(policy, {"a": 2.0})
    assert policy.reasons[0].paused and policy.reasons[0].arm.length == 0 and policy.reasons[0].candidates
