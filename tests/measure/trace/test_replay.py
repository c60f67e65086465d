"""Replay equals life: every round of every policy that does not look at the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from draftwise.core.arms import Arm, Decision, Stop
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import UserError
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.costs import DrafterCosts
from draftwise.measure.trace.record import Prompt
from draftwise.measure.trace.results import replayed as write_replay
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.drafts import TAKEN
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.compose import fixed
from tests.measure.trace.sims import COSTS, TEAM, counts, live, recorded, replayed, settings, target, team

POLICIES = [
    "none",
    "static-3",
    "static?length=8&drafter=suffix",
    "static?length=7&drafter=bad&stop=svip(0.9)",
    "random?arms=drafters*lengths&lengths=0,1,2,5",
    "ucb1",
    "ucb1?arms=drafters*lengths*stops&lengths=2,6&reward=blended",
    "metasd-ucb",
    "metasd-exp3",
    "ucbspec?strength=0.1",
    "tapout-seq-ucb1?length=8",
    "tapout-seq-ts?length=8",
    "tapout-token-ucb1?length=8",
    "tapout-token-ts?length=8",
    "adaedl?length=8",
    "hf-threshold?length=8",
    "hf-heuristic?start=4&longest=8",
    "linucb",
    "linucb?arms=drafters*stops&length=8&reward=blended",
    "hedgespec",
    "hedgespec?arms=drafters*stops&length=6",
    "hedgespec?windows=all&thin=2",
    "hedgespec?windows=rounds&censored=weight",
    "hedgespec-hedge?arms=drafters*lengths&every=4",
    "draft-all",
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=10)


@pytest.mark.parametrize("name", POLICIES)
def test_every_replayed_round_is_the_live_one(name: str, trace: Trace) -> None:
    there, here = live(name, trace, seed=3), replayed(name, trace, seed=3)
    assert here == there


@pytest.mark.parametrize("name", ["ucb1", "hedgespec", "draft-all", "linucb"])
def test_a_trace_of_some_of_its_drafters_is_as_if_the_others_were_not_there(name: str, trace: Trace) -> None:
    some = Trace(trace.folder, ["ngram", "bad"])
    assert some.drafters == ["ngram", "bad"]
    assert replayed(name, some, seed=3) == live(name, some, seed=3)
    with pytest.raises(UserError, match="drafter 'nobody' was not recorded: choose from good, bad"):
        Trace(trace.folder, ["ngram", "nobody"])


BOTH = ("cascade:good>ngram?first=2", "cascade:bad>ngram?match=1", "cascade:good>ngram?match=2")
BACK = ("cascade:ngram>bad?instead=true", "cascade:ngram>good?first=0", "cascade:suffix>ngram?match=1")


@pytest.mark.parametrize(
    ("name", "cascades"),
    [
        ("random?arms=drafters*lengths&lengths=0,1,2,5", (*BOTH, *BACK)),
        ("ucb1?arms=drafters*lengths*stops&lengths=2,8&reward=blended", BOTH),
    ],
)
def test_cascades_are_replayed_from_their_parts(name: str, cascades: tuple[str, ...], trace: Trace) -> None:
    whole = Trace(trace.folder, [*TEAM, *cascades])
    assert whole.drafters == [*TEAM, *cascades]
    there = live(name, whole, seed=3)
    assert replayed(name, whole, seed=3) == there
    assert {r[1].drafter for r in there} >= set(cascades)
    assert any(r[4] > 2 for r in there if r[1].drafter in cascades)


@pytest.mark.parametrize("cascade", ["cascade:good>ngram?first=2", "cascade:good>ngram?match=1"])
def test_a_cascade_takes_its_models_time_until_the_lookup_takes_over(cascade: str, trace: Trace) -> None:
    whole = Trace(trace.folder, [*TEAM, cascade])
    made = method("random?arms=drafters*lengths&lengths=6", whole.drafters)
    loop, heads = Replay(whole, made, COSTS), set()
    for one in whole:
        read, written = {"good": 0, "bad": 0}, one.prompt.size
        for r in loop.replay(ReplayState(one)):
            who = "good" if r.arm.drafter == cascade else r.arm.drafter
            if who != r.arm.drafter and r.drafted:
                head = loop.pool.last_draft.prefix_length
                late = COSTS.of(who).catch_up * (written - read[who])
                assert r.seconds.draft == pytest.approx(COSTS.of("good").draft(head) + late), (
                    "lookups are free"
                )
                heads.add((head, r.drafted))
            written += len(r.tokens)
            if who in read:
                read[who] = written
    assert {drafted - head for head, drafted in heads} > {0}, "with the lookup, and without"
    assert "first" in cascade or len({head for head, _ in heads}) > 2


def test_what_a_cascade_needs_is_said(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no drafter 'bad' beside it"):
        replayed("static-3", Trace(trace.folder, ["good", "ngram", "cascade:bad>ngram"]))
    dear = Trace(trace.folder, [*TEAM, "cascade:ngram>good?first=0"])
    with pytest.raises(UserError, match="give no stop rule"):
        replayed("ucb1?arms=drafters*stops&length=6", dear)
    drawn = recorded(tmp_path, n=1, sampling=settings(8, 1.0, seed=1))
    with pytest.raises(UserError, match="record at --temperature 0"):
        replayed("random?length=3", Trace(drawn.folder, [*TEAM, "cascade:good>ngram"]))


def test_auto_plays_a_cascade_and_knows_its_parts(trace: Trace) -> None:
    """It pays where passes cost the same for all lengths; what is learned goes to the parts."""
    cascade = "cascade:good>ngram?match=1"
    whole, mates = Trace(trace.folder, ["good", "ngram", cascade]), ["good", cascade]
    made = method("auto?length=8", mates)  # alone, the lookup drafts where its match is long
    loop = Replay(whole, made, replace(COSTS, passes=(1.0,)))
    rounds = [r for _ in range(4) for one in whole for r in loop.replay(ReplayState(one))]
    mine = [r for r in rounds if r.arm.drafter == cascade]
    assert len(mine) > 9 and any(r.accepted > 4 for r in mine)
    policy = made.policy
    assert isinstance(policy, AutoPolicy)
    good, tail = (policy.acceptance[mates.index(name)] for name in mates)
    assert good.seen > 0.0
    assert tail.tested[TAKEN][0] > tail.accepted[TAKEN][0] > 0.0, "it takes over now and then"
    assert sum(tested[0] for tested in tail.tested[TAKEN + 1 :]) <= tail.accepted[TAKEN][0]
    assert any(sum(accepted) >= 1.0 for accepted in tail.accepted[TAKEN + 1 :]), "and is right"
    prices = [policy.draft_price(mates.index(name)) for name in mates]
    assert [price.trial > 0 for price in prices] == [False, True], "its price is that of its first part"


def test_a_policy_that_fails_ends_the_replay(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live it would cost drafts and no text; here its seconds would be wrong."""
    made = method("auto?length=8", trace.drafters)
    loop, stages = Replay(trace, made, COSTS), [ReplayState(one) for one in trace]
    assert list(loop.replay(stages[0]))

    def broken(*given: object, **named: object) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr(AutoPolicy, "spent", broken)
    with pytest.raises(UserError, match="replay: policy: IndexError: out of range"):
        list(loop.replay(stages[1]))


def test_the_texts_end_in_all_ways_and_drafters_differ(trace: Trace) -> None:
    """Else the comparison would show little."""
    recordings = list(trace)
    assert {one.ended for one in recordings} == {True, False}
    rounds = live("ucb1", trace)
    assert len({r[1].drafter for r in rounds}) == len(TEAM)
    rounds = live("static?length=8&drafter=good", trace)
    assert any(r[4] > len(r[5]) for r in rounds), "no draft was accepted beyond the end of a text"
    suffix = [one.drafts["suffix"] for one in recordings]
    assert any((a.start != a.start[:, -1:]).any() for a in suffix), "short drafts always began longer ones"


def test_short_budgets(tmp_path: Path) -> None:
    """Near the end of its budget a text leaves no room: rounds are shorter, and say nothing of their arm."""
    trace = recorded(tmp_path, sampling=settings(5), n=12)
    for name in ("ucb1?length=8", "hedgespec?length=8", "metasd-ucb?length=8"):
        assert replayed(name, trace) == live(name, trace)


def test_what_the_trace_lacks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    trace = recorded(tmp_path, n=1, overlap=False)
    for name, said in {
        "static-9": "record with --length 9, or give the policy a shorter one",
        "tapout-seq-ucb1": r"up to 128 tokens .* \?length=8",
        "metasd-ucb": "record the trace with --overlap",
    }.items():
        with pytest.raises(UserError, match=said):
            replayed(name, trace)


@pytest.mark.parametrize(("rule", "signals"), [("disco", "place, top"), ("specdecpp", "hidden")])
def test_rules_that_ask_a_classifier_are_refused_with_what_to_do(
    rule: str, signals: str, trace: Trace
) -> None:
    made = fixed(Arm("good", 3, stop=Stop(rule, 0.5, scorer=object())))
    with pytest.raises(UserError, match=rf"read {signals}, .* measure it with `draftwise bench`"):
        Replay(trace, made, COSTS)


def test_seconds_are_the_costs(trace: Trace) -> None:
    """A round costs its draft, the pass, and what its drafter had not read; first rounds teach no time."""
    made = method("static?length=4&drafter=good", trace.drafters)
    loop, mine = Replay(trace, made, COSTS), COSTS.of("good")
    for one in trace:
        read = 0
        for number, round in enumerate(loop.replay(ReplayState(one))):
            asked = min(4, one.budget - 1 - (read - one.prompt.size if number else 0)) > 0
            late = mine.catch_up * one.prompt.size if number == 0 else 0.0
            wanted = mine.draft(round.drafted) + late if asked else 0.0
            assert round.seconds.draft == pytest.approx(wanted)
            assert round.seconds.verify == pytest.approx(COSTS.target(1 + round.drafted))
            assert round.seconds.choose == round.seconds.learn == round.seconds.grade == 0.0
            read = read + len(round.tokens) if number else one.prompt.size + len(round.tokens)


def test_grading_and_catching_up_are_charged(trace: Trace) -> None:
    """Two models that grade each token read it all; with one that is never asked it costs nothing."""
    loop = Replay(trace, method("hedgespec", trace.drafters), COSTS)
    spent = [round.seconds.grade for one in trace for round in loop.replay(ReplayState(one))]
    assert min(spent) >= 0.0 and max(spent) > COSTS.of("bad").grade
    alone = Replay(trace, method("static?length=4&drafter=ngram", trace.drafters), COSTS)
    assert all(r.seconds.draft == 0.0 for one in trace for r in alone.replay(ReplayState(one)))


def test_a_policy_on_the_clock_decides_by_the_costs(trace: Trace) -> None:
    """The same costs, the same rounds; made expensive, a drafter is hardly played any more."""
    name = "ucb1?reward=rate&strength=0.1"
    rounds = replayed(name, trace)
    assert replayed(name, trace) == rounds
    dear = replace(COSTS, drafters={**COSTS.drafters, "good": DrafterCosts(first=50.0)})
    played = [sum(r[1].drafter == "good" for r in found) for found in (rounds, replayed(name, trace, dear))]
    assert played[1] < played[0] / 2


@pytest.mark.parametrize(("drafter", "length"), [("good", 3), ("bad", 4), ("ngram", 5)])
def test_a_drawn_trace_gives_the_expectation(drafter: str, length: int, tmp_path: Path) -> None:
    """Over texts and lots, rounds and accepted tokens of replays have the mean of live runs."""
    n, name = 220, f"static?length={length}&drafter={drafter}"
    prompt = [1, 2, 3, 1, 2]
    sampling = settings(14, temperature=1.0)
    trace = recorded(
        tmp_path, names=[drafter], length=length, sampling=sampling, asked=[Prompt("p", "c", prompt)] * n
    )
    made = method(name, [drafter])
    loop = Loop(target(), team(drafter), made.policy, made.recorder, seed=11)
    there = np.array([counts(list(loop.run([prompt], sampling))) for _ in range(n)])
    back = Replay(trace, method(name, [drafter]), COSTS, seed=5)
    here = np.array([counts(list(back.replay(ReplayState(one)))) for one in trace])
    spread = np.sqrt(there.var(0) / n + here.var(0) / n)
    assert (np.abs(there.mean(0) - here.mean(0)) < 4 * spread).all()
    assert there[:, 2].mean() > 0.4, "nothing was accepted, so nothing was compared"


def test_drawn_traces_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    trace = recorded(tmp_path, sampling=settings(10, temperature=1.0, seed=1), n=2)
    for name in ("static?stop=svip&drafter=good", "draft-all"):
        with pytest.raises(UserError, match="record at --temperature 0"):
            replayed(name, trace)
    request = Request(0, [1], 1, settings(10, temperature=1.0), Random(0), Random(0))
    with pytest.raises(UserError, match="record at --temperature 0"):  # a rule of the round, not of the arm
        ReplayState(next(iter(trace))).draft("good", 0, Job(request, 3, (Stop("svip", 0.6),)))
    assert replayed("static?stop=svip&drafter=ngram", trace)
    assert replayed("hedgespec", trace)


def test_a_policy_whose_rules_move_is_named_when_they_ask_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arms have no rule; a decision has one only once the policy knows the drafter, as `auto`'s do."""

    def moving(name: str, drafters: list[str]) -> Method:
        made = method("static-3" if name == "auto" else name, drafters)
        if name == "auto":
            decision = Decision(0, 1.0, (Stop("svip", 0.6),))
            monkeypatch.setattr(type(made.policy), "choose", lambda self, context, rng: decision)
        return made

    monkeypatch.setattr("draftwise.measure.trace.results.method", moving)
    trace = recorded(tmp_path / "t", names=["good"], sampling=settings(9, temperature=0.7, seed=2), n=1)
    with pytest.raises(UserError, match=r"^auto: the policy stops drafts .* record at --temperature 0"):
        write_replay(trace, ["auto"], COSTS, tmp_path / "o")


@pytest.mark.parametrize("broken", ["match_after", "draft_after"])
def test_a_lookup_that_fails_in_a_cascade_ends_the_replay(
    broken: str, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: NgramDrafter, *_: object) -> None:
        raise RuntimeError("no such table")

    monkeypatch.setattr(NgramDrafter, broken, fails)
    cascade = "cascade:good>ngram?match=1"
    with pytest.raises(UserError, match=r"ngram: .*no such table"):
        replayed("random?length=4", Trace(trace.folder, [*TEAM, cascade]))


def test_auto_weighs_cascades_that_nobody_named(trace: Trace, tmp_path: Path) -> None:
    """As in life; drawn texts have none, since a trace does not hold what they need."""
    both = Trace(trace.folder, ["good", "bad", "suffix", "ngram"])
    cascades = ["cascade:good>suffix?match=1", "cascade:bad>suffix?match=1"]
    assert both.team("auto?length=8") == [*both.drafters, *cascades]
    assert both.team("ucb1") == both.drafters
    named = Trace(trace.folder, ["good", "ngram", "cascade:good>ngram?match=2"])
    assert named.team("auto") == named.drafters
    assert Trace(trace.folder, ["good", "bad"]).team("auto") == ["good", "bad"]
    others = Trace(trace.folder, ["good"])
    others.header = replace(others.header, drafters={"good": True, "retrieval:x": False, "my-own": False})
    assert others.team("auto") == others.drafters  # these cannot take over
    drawn = recorded(tmp_path, n=1, sampling=settings(8, 1.0, seed=1))
    assert drawn.team("auto") == drawn.drafters
    auto = Replay(both, method("auto?length=8", both.team("auto?length=8")), COSTS)
    rounds = [r for one in both for r in auto.replay(ReplayState(one))]
    assert any(r.arm.drafter in cascades and r.accepted > 1 for r in rounds)
