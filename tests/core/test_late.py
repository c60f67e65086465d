"""What a policy learns while the next pass runs on a device: nothing is lost, and no text depends on it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from draftwise.core import loop as looping
from draftwise.core.arms import Context, Decision
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import DraftwiseWarning
from draftwise.policies.catalogue import Method, method
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.exact import exact_of, p_value
from draftwise.testing.target import SimTarget
from tests.core.asynchronous import ThreadTarget
from tests.core.turns import decode_all, group_tokens, loop_with

V = 8
P = np.roll(np.eye(V), 1, axis=1) * 0.6 + np.roll(np.eye(V), 3, axis=1) * 0.35 + 0.05 / V
BAD = np.roll(np.eye(V), 5, axis=1) * 0.9 + 0.1 / V
PROMPTS = [[0], [3, 1], [2, 2, 5], [7], [6, 0], [1], [4, 4], [5]]
LATE = (
    *("static-3?drafter=good", "static-3?drafter=bad", "ucb1?arms=drafters*lengths&lengths=0,2,4"),
    *("metasd-ucb", "metasd-exp3", "metasd-sh", "hedgespec", "tapout-seq-ucb1?drafter=good", "auto"),
)
AT_ONCE = (
    *("tapout-token-ucb1?drafter=good", "tapout-token-ts?drafter=good", "linucb"),
    *("hf-heuristic?drafter=good", "random"),
)


def team(*, sampled: bool = True) -> dict[str, Any]:
    return {
        "good": SimDrafter(markov(P), sampled=sampled),
        "bad": SimDrafter(markov(BAD), sampled=sampled),
        "ngram": NgramDrafter(),
    }


class Spy:
    """A policy that notes what it was told, and when."""

    def __init__(self, policy: Any, log: list[str]) -> None:
        self._policy, self._log = policy, log
        self.heard: list[Feedback] = []
        self.decided: list[Decision] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def choose(self, context: Context, rng: random.Random) -> Decision:
        self._log.append("choose")
        self.decided.append(self._policy.choose(context, rng))
        return self.decided[-1]

    def learn(self, feedback: Feedback) -> None:
        self._log.append("learn")
        self.heard.append(feedback)
        self._policy.learn(feedback)

    def close(self, request: int) -> None:
        self._log.append("close")
        self._policy.close(request)


def late(policy: str = "static-3?drafter=good", *, sampled: bool = True, **options: Any) -> tuple[Any, Any]:
    """A loop whose target computes beside the host, and the policy's spy."""
    drafters, target = team(sampled=sampled), ThreadTarget(markov(P), V)
    chosen: Method = method(policy, list(drafters))
    spy: Any = Spy(chosen.policy, target.log)
    return Loop(target, drafters, spy, chosen.recorder, **options), spy


def usual(policy: str, *, sampled: bool = True) -> Loop:
    drafters = team(sampled=sampled)
    return loop_with(SimTarget(markov(P), V), drafters, policy)


def texts(loop: Loop, sampling: Sampling, *, batch: int = 1) -> list[list[int]]:
    return tokens_of(loop.run(PROMPTS, sampling, batch=batch))


def tokens_of(rounds: Iterable[Round]) -> list[list[int]]:
    rounds = [*rounds]
    assert not any(round.fault for round in rounds), [round.fault for round in rounds]
    return group_tokens(rounds)


def test_a_round_is_learned_from_while_the_next_pass_runs() -> None:
    loop, spy = late()
    list(loop.run([[0]], Sampling(max_new_tokens=9)))
    first, *middle = ["choose", "launch", "read"], ["choose", "launch", "learn", "read"]
    rounds = len(spy.decided)
    assert rounds > 2 and loop.target.log == [*first, *(middle[0] * (rounds - 1)), "learn", "close"]
    assert len(spy.heard) == rounds


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("policy", [*LATE, *AT_ONCE])
def test_greedy_texts_are_those_of_plain_decoding(policy: str, batch: int) -> None:
    sampling = Sampling(max_new_tokens=40, repetition_penalty=1.3)
    loop, spy = late(policy, sampled=False)
    assert texts(loop, sampling, batch=batch) == texts(usual("none"), sampling)
    assert loop.target.launches > 1 and spy.decided


@pytest.mark.parametrize("batch", [1, 8])
def test_sampled_texts_depend_on_decisions_alone(batch: int) -> None:
    """The same arm in every round: token for token as where the policy learns at once."""
    sampling = Sampling(max_new_tokens=40, temperature=0.9, seed=5)
    for policy in ("static-3?drafter=good", "static-3?drafter=bad"):
        assert texts(late(policy)[0], sampling, batch=batch) == texts(usual(policy), sampling, batch=batch)


@pytest.mark.parametrize("policy", ["static-3?drafter=bad", "ucb1", "auto"])
def test_sampled_texts_have_the_targets_distribution(policy: str) -> None:
    loop, _ = late(policy)
    sampling = Sampling(max_new_tokens=3, temperature=0.9, top_k=3)
    counts = Counter(map(tuple, tokens_of(loop.run([[0]] * 1500, sampling, batch=3))))
    assert p_value(counts, exact_of(SimTarget(markov(P), V), [0], 3, sampling)) > 1e-6


@pytest.mark.parametrize("policy", AT_ONCE)
def test_a_policy_that_cannot_learn_late_decides_as_ever(policy: str) -> None:
    """What it is told of a decision must come before its next one."""
    sampling = Sampling(max_new_tokens=40, temperature=0.9, seed=5)
    loop, spy = late(policy)
    here = [(r.arm, r.tokens) for r in loop.run(PROMPTS, sampling, batch=3)]
    assert here == [(r.arm, r.tokens) for r in usual(policy).run(PROMPTS, sampling, batch=3)]
    assert len(spy.heard) == len(spy.decided)


@contextmanager
def patched(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def in_flight(policy: Any) -> int:
    return sum(
        map(sum, (learner.flight for learner in (policy.shared, *policy.learners.values()) if learner))
    )


@pytest.mark.parametrize("policy", ["ucb1?arms=drafters*lengths&lengths=0,2,4", "metasd-ucb", "auto"])
def test_nothing_is_lost_where_requests_join_leave_wait_and_fail(policy: str) -> None:
    """Subsets are stepped, some requests are closed between steps, and some passes fail."""
    rng, (loop, spy), waited = random.Random(4), late(policy), 0
    for step in range(200):
        while len(loop.open) < 4:
            loop.add([rng.randrange(V)], Sampling(max_new_tokens=rng.randrange(1, 60), temperature=0.8))
        if rng.random() < 0.15:
            loop.target.faults[loop.target.launches] = rng.choice(["launch", "read"])
        some = [request for request in loop.open.values() if rng.random() < 0.7]
        loop.step(None if step % 3 else some)
        waited += bool(loop.barrier.lessons)
        if rng.random() < 0.1 and loop.open:
            loop.close(rng.choice([*loop.open.values()]))
    loop.catch_up()
    assert waited > 50 and sorted(id(known.decision) for known in spy.heard) == sorted(map(id, spy.decided))
    assert len(spy.heard) > 100 and not loop.barrier.lessons
    if policy != "auto":
        assert in_flight(spy._policy) == 0


def test_a_request_that_is_closed_between_steps_is_learned_from_first() -> None:
    loop, spy = late()
    request = loop.add([0], Sampling(max_new_tokens=50))
    loop.step()
    loop.step()
    loop.close(request)
    assert loop.target.log[-3:] == ["read", "learn", "close"] and len(spy.heard) == 2


def test_the_end_of_one_text_waits_for_no_pass_of_another() -> None:
    loop, spy = late()
    loop.add([0], Sampling(max_new_tokens=50))
    loop.step()
    loop.add([0], Sampling(max_new_tokens=1))
    rounds = loop.step()
    assert [round.done for round in rounds] == [False, True] and len(spy.heard) == 3
    assert spy._log[-4:] == ["read", "learn", "learn", "close"]


def test_who_is_not_stepped_is_learned_from_in_the_next_pass_of_another() -> None:
    loop, spy = late()
    one, other = (loop.add([k], Sampling(max_new_tokens=50)) for k in range(2))
    loop.step([one])
    loop.step([other])
    assert [known.request for known in spy.heard] == [one.id]


@pytest.mark.parametrize("place", ["launch", "read"])
def test_a_pass_that_fails_is_made_again_and_learned_from_once(place: str) -> None:
    """The pass of both fails, then that of the first alone."""
    loop, spy = late()
    one, other = (loop.add([k], Sampling(max_new_tokens=30)) for k in range(2))
    loop.step()
    loop.target.faults = {1: place, 2: place}
    bad, sound = loop.step()
    assert bad.error is not None and bad.request == one.id and sound.error is None
    decode_all(loop)
    plain = list(usual("none").run([[1]], Sampling(max_new_tokens=30)))
    assert other.tokens[1:] == [token for round in plain for token in round.tokens]
    assert sorted(id(known.decision) for known in spy.heard) == sorted(map(id, spy.decided))
    assert [len(known.outcomes) for known in spy.heard if known.request == one.id] == [1, 0]


@pytest.mark.parametrize("who", ["policy", "recorder"])
@pytest.mark.parametrize("policy", ["ucb1", "auto"])
def test_an_error_in_late_learning_costs_no_text(policy: str, who: str) -> None:
    """It is reported in the round in whose pass it came."""
    loop, sampling = late(policy, sampled=False)[0], Sampling(max_new_tokens=12)
    owner, name = (Spy, "learn") if who == "policy" else (type(loop.recorder), "add")
    if who == "recorder" and loop.barrier.late_recorder is not None:
        name = "_spend"  # within what `ask` returned
    usually, calls = getattr(owner, name), count()

    def fail_once(*given: Any) -> Any:
        if next(calls) == 2:
            raise ZeroDivisionError("division by zero")
        return usually(*given)

    with patched(owner, name, fail_once):
        rounds = list(loop.run(PROMPTS[:2], sampling, batch=2))
    plain = texts(usual("none"), sampling)
    assert group_tokens(rounds) == [plain[0], plain[1]]
    assert {round.fault for round in rounds if round.fault} == {"policy: ZeroDivisionError: division by zero"}
    assert loop.faults["policy"] == 1 and next(calls) > 3


def test_an_error_at_the_close_of_a_request_is_a_warning() -> None:
    loop, spy = late()
    request = loop.add([0], Sampling(max_new_tokens=50))
    loop.step()
    spy.learn = lambda feedback: 1 / 0
    with pytest.warns(DraftwiseWarning, match="division by zero"):
        loop.close(request)
    assert not loop.open and not loop.barrier.lessons


class Clock:
    """Time that passes where the test says so: `now` in place of `perf_counter`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_seconds_of_a_pass_are_its_own_and_late_learning_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pass k takes k seconds beside the host, which learns for half a second in it."""
    clock, (loop, spy) = Clock(), late()
    monkeypatch.setattr(looping, "perf_counter", clock.now)
    launch, learn = loop.target.launch, spy.learn

    def launch_timed(batch: Any) -> Any:
        read = launch(batch)
        end = clock.seconds + loop.target.launches

        def read_timed() -> Any:
            clock.seconds = max(clock.seconds, end)
            return read()

        return read_timed

    def learn_timed(feedback: Feedback) -> None:
        clock.seconds += 0.5
        learn(feedback)

    loop.target.launch, spy.learn = launch_timed, learn_timed
    rounds = list(loop.run([[0]], Sampling(max_new_tokens=16)))
    passes = [float(k) for k in range(1, 1 + len(rounds))]
    assert [round.seconds.verify for round in rounds] == passes
    assert [round.seconds.learn for round in rounds] == [0.0] * (len(rounds) - 1) + [0.5]
    assert sum(round.seconds.total for round in rounds) == pytest.approx(clock.seconds, abs=0.01)
    costs = [outcome.cost.target for known in spy.heard for outcome in known.outcomes if outcome.cost]
    assert costs == passes[: len(costs)] and len(costs) > 2


class Busy:
    """A drafter that nobody may ask while a pass runs."""

    def __init__(self, drafter: Any, target: ThreadTarget) -> None:
        self._drafter, self._target = drafter, target

    def __getattr__(self, name: str) -> Any:
        assert not self._target.gap, f"{name} was asked for while a pass runs"
        return getattr(self._drafter, name)


@pytest.mark.parametrize("policy", ["metasd-ucb", "hedgespec", "auto", "ucb1"])
@pytest.mark.parametrize("batch", [1, 3])
def test_no_drafter_and_no_scores_are_asked_while_a_pass_runs(policy: str, batch: int) -> None:
    """A grading would wait for the pass, and the next pass may overwrite what scores are read from."""
    loop, spy = late(policy)
    pool = loop.pool
    for role in (pool.drafters, pool.graders, pool.guessers, pool.waiters):
        role.update({name: Busy(drafter, loop.target) for name, drafter in role.items()})
    texts(loop, Sampling(max_new_tokens=30, temperature=0.9), batch=batch)
    assert len(spy.heard) > 10 and set(loop.faults.values()) == {0}


def test_auto_learns_what_each_round_took_by_its_own_decision() -> None:
    """When it learns, the next round is decided: with another match, or without a trial."""
    loop, spy = late("auto", sampled=False)
    choose, spent = spy.choose, type(spy._policy).spent
    decided: list[tuple[bool, bool]] = []
    learned: list[tuple[bool, bool]] = []
    costs: list[float] = []

    def note_choice(context: Context, rng: random.Random) -> Decision:
        decision: Decision = choose(context, rng)
        decided.append((spy._policy.texts[0].matched, spy._policy.trial))
        return decision

    def note_costs(self: Any, of_round: Any, reading: float) -> None:
        costs.append(of_round.cost.target)
        learned.append((0 in of_round.matched, of_round.is_trial))
        spent(self, of_round, reading)

    spy.choose = note_choice
    with patched(type(spy._policy), "spent", note_costs):
        rounds = list(loop.run([[0]], Sampling(max_new_tokens=60, repetition_penalty=1.1)))
    assert costs == [round.seconds.verify for round in rounds]
    assert learned == decided and len(set(decided)) > 1


def test_a_target_without_a_device_of_its_own_is_verified_at_once() -> None:
    target = ThreadTarget(markov(P), V)
    target.is_asynchronous = False
    loop = loop_with(target, {"good": team()["good"]}, "static-3?drafter=good")
    request = loop.add([0], Sampling(max_new_tokens=50))
    loop.step()
    assert target.log == [] and request.rounds == 1 and not loop.barrier.lessons
