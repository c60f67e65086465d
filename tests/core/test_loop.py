"""The loop: what ends a text, what a policy learns, and what happens when a drafter fails."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.core.request import Request
from draftwise.core.roles import Graders, RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import decode_all, group_tokens, loop_with

V = 8
P = np.roll(np.eye(V), 1, axis=1) * 0.93 + 0.01  # greedy text counts upwards, modulo V


class Spy(BanditPolicy):
    """A policy that remembers what it was told."""

    __slots__ = ("closed", "heard")

    def __init__(self, arms: Sequence[Arm], learner: Any = Fixed) -> None:
        super().__init__(tuple(arms), learner)
        self.heard: list[Feedback] = []
        self.closed: list[int] = []

    def learn(self, feedback: Feedback) -> None:
        self.heard.append(feedback)
        super().learn(feedback)

    def close(self, request: int) -> None:
        self.closed.append(request)
        super().close(request)


def make(team: dict[str, Any], arms: Sequence[Arm], learner: Any = Fixed, **options: Any) -> tuple[Loop, Spy]:
    spy = Spy(arms, learner)
    return Loop(SimTarget(markov(P), V), team, spy, Bandit(reward("accepted"), 5), **options), spy


def good() -> SimDrafter:
    return SimDrafter(markov(P), sampled=False)


def counted(start: int, n: int) -> list[int]:
    return [(start + 1 + i) % V for i in range(n)]


def run(loop: Loop, prompts: Sequence[Sequence[int]], n: int) -> list[list[int]]:
    return group_tokens(loop.run(prompts, Sampling(max_new_tokens=n)))


def test_greedy_rounds_accept_whole_drafts() -> None:
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    rounds = list(loop.run([[0]], Sampling(max_new_tokens=10)))
    assert [len(r.tokens) for r in rounds] == [4, 4, 2]
    assert [t for r in rounds for t in r.tokens] == counted(0, 10)
    assert rounds[-1].done and rounds[-1].finish_reason == "length"
    assert [r.sources for r in rounds] == [3, 3, 1]


def test_the_end_of_text_cuts_and_the_policy_still_learns_the_whole_acceptance() -> None:
    loop, spy = make({"good": good()}, [Arm("good", 5)])
    rounds = list(loop.run([[0]], Sampling(max_new_tokens=50, eos=frozenset({3}))))
    assert [r.tokens for r in rounds] == [(1, 2, 3)]
    assert rounds[0].finish_reason == "eos" and rounds[0].accepted == 5 and rounds[0].sources == 3
    assert spy.heard[0].outcomes[0].reward == 1.0


def test_a_draft_that_only_the_budget_kept_short_teaches_nothing() -> None:
    loop, spy = make({"good": good()}, [Arm("good", 5)])
    list(loop.run([[0]], Sampling(max_new_tokens=8)))
    assert [len(f.outcomes) for f in spy.heard] == [1, 0]


def test_several_ends_of_text_and_criteria() -> None:
    loop, _ = make({"good": good()}, [Arm("good", 4)])
    texts = group_tokens(loop.run([[0], [3]], Sampling(max_new_tokens=50, eos=frozenset({2, 6})), batch=2))
    assert texts == [[1, 2], [4, 5, 6]]

    def ends(tokens: Sequence[int], start: int) -> int | None:
        return next((i + 1 for i, t in enumerate(tokens[start:]) if t == 4), None)

    loop, _ = make({"good": good()}, [Arm("good", 5)])
    rounds = list(loop.run([[0]], Sampling(max_new_tokens=50, ends=ends)))
    assert rounds[-1].tokens == (1, 2, 3, 4) and rounds[-1].finish_reason == "stop"


def test_a_parked_request_goes_on() -> None:
    loop, spy = make({"good": good()}, [Arm("good", 3)])
    request = loop.add([0], Sampling(max_new_tokens=5), keep=True)
    decode_all(loop)
    assert request.id in loop.parked and spy.closed == [request.id]
    loop.extend(request, [6], Sampling(max_new_tokens=3))
    decode_all(loop)
    assert request.tokens == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    loop.close(request)
    with pytest.raises(ValueError, match="parked"):
        loop.extend(request, [1])


def test_a_parked_request_goes_on_to_the_end_of_the_window() -> None:
    loop = loop_with(SimTarget(markov(P), V, max_length=24), {}, "none")
    request = loop.add([0] * 8, Sampling(max_new_tokens=2), keep=True)
    decode_all(loop)
    with pytest.raises(UserError, match="25 tokens and the target's window 24"):
        loop.extend(request, [0] * 15)
    loop.extend(request, [0] * 13, Sampling(max_new_tokens=9))
    decode_all(loop)
    assert len(request.tokens) == 25, "the last one is never read"


def test_closing_a_request_early_leaves_nothing_behind() -> None:
    spy = Spy([Arm("good", 3), Arm("none", 0)], Uniform)
    spy.per_query = True
    loop = Loop(SimTarget(markov(P), V), {"good": good()}, spy, Bandit(reward("accepted"), 5))
    request = loop.add([0], Sampling(max_new_tokens=50), keep=True)
    loop.step()
    assert spy.learners
    loop.close(request)
    assert not (loop.open or loop.parked or spy.learners) and spy.closed == [request.id]
    loop.close(request)
    assert spy.closed == [request.id]


@pytest.mark.parametrize("rounds_read", [1, 3, 4, 7])
def test_who_leaves_a_run_early_leaves_nothing_open(rounds_read: int) -> None:
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    other = loop.add([5], Sampling(max_new_tokens=50))
    rounds = loop.run([[0], [1], [2]], Sampling(max_new_tokens=50), batch=3)
    assert len([*itertools.islice(rounds, rounds_read)]) == rounds_read
    assert len(loop.open) == 3
    rounds.close()
    assert [*loop.open] == [other.id]


def test_scores_of_a_text_may_be_left_within_a_step() -> None:
    """As when the garbage is collected: the target forgets a text between two steps, never within one."""
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    scores, closed = loop.score([1] * 200), list[int]()
    setattr(loop.target, "close", lambda request: closed.append(request.id))  # noqa: B010
    next(scores)

    def leaves(tokens: Sequence[int], start: int) -> None:
        scores.close()
        assert not closed

    request = loop.add([0], Sampling(max_new_tokens=9, ends=leaves))
    loop.step()
    assert not request.done and closed == [0]


def test_what_cannot_be_decoded_is_refused() -> None:
    target = SimTarget(markov(P), V, max_length=10)
    loop = loop_with(target, {}, "none")
    with pytest.raises(UserError, match="empty"):
        loop.add([])
    with pytest.raises(UserError, match="window"):
        loop.add([1] * 11)
    with pytest.raises(UserError, match="arm=good:3: give one of no drafter"):
        loop.add([1], arm=Arm("good", 3))
    assert len(loop.add([1] * 9, Sampling(max_new_tokens=99)).tokens) == 9
    loop.step(), loop.step()
    assert not loop.open


# -- drafters that fail ------------------------------------------------------------------------------------


class Faulty(SimDrafter):
    """Drafts well twice, then fails in its own way."""

    def __init__(self, how: str) -> None:
        super().__init__(markov(P), sampled=False)
        self.how, self.calls = how, 0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        drafts = super().draft(jobs)
        self.calls += 1
        return drafts if self.calls <= 2 else FAULTS[self.how](drafts)


def fail(drafts: list[Draft]) -> list[Draft]:
    raise RuntimeError("out of memory\nand more")


def slow(drafts: list[Draft]) -> list[Draft]:
    time.sleep(0.05)
    return drafts


FAULTS: dict[str, Any] = {
    "raises": fail,
    "outside": lambda drafts: [Draft.chain([V]) for _ in drafts],
    "too-few": lambda drafts: drafts[:-1],
    "slow": slow,
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_faulty_drafter_is_taken_out_and_the_text_is_unaffected(how: str) -> None:
    loop, spy = make({"faulty": Faulty(how)}, [Arm("faulty", 3)], slow_seconds=0.04 if how == "slow" else 5.0)
    rounds = [*loop.run([[0]] * 5, Sampling(max_new_tokens=30))]
    assert group_tokens(rounds) == [counted(0, 30)] * 5
    faults = [r.fault for r in rounds if r.fault]
    assert len(faults) == 3 and all(f.startswith("faulty: ") and "\n" not in f for f in faults)
    assert loop.pool.broken == {"faulty"} and loop.faults == {"faulty": 3}
    after = [r for r in rounds if r.request == 4]
    assert all(r.drafted == 0 and not r.fault for r in after)
    assert sum(1 for f in spy.heard if f.outcomes) == 2


@pytest.mark.parametrize("when", ["hint", "observe", "close"])
def test_other_calls_may_fail_too(when: str) -> None:
    drafter = good()
    setattr(drafter, when, fail)
    loop, spy = make({"bad": drafter}, [Arm("bad", 3)])
    spy.reads_hints = True
    assert run(loop, [[0], [2]], 20) == [counted(0, 20), counted(2, 20)]
    assert loop.faults["bad"] == 2


def test_a_step_of_what_is_no_request_raises_and_the_next_one_runs() -> None:
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    request = loop.add([0], Sampling(max_new_tokens=20))
    nothing: Any = None
    with pytest.raises(AttributeError):
        loop.step([nothing])
    while not request.done:
        loop.step([request])
    assert request.tokens[1:] == counted(0, 20)


def test_a_policy_that_does_not_say_whether_it_reads_hints_gets_none() -> None:
    class Silent:
        """A policy of the shortest kind."""

        arms = (Arm("good", 3),)

        def choose(self, context: Context, rng: random.Random) -> Decision:
            assert context.hints == {}
            return Decision(0)

        def learn(self, feedback: Feedback) -> None: ...

        def close(self, request: int) -> None: ...

    policy: Any = Silent()
    target, recorder = SimTarget(markov(P), V), Bandit(reward("accepted"), 5)
    loop = Loop(target, {"good": good()}, policy, recorder)
    assert run(loop, [[0]], 20) == [counted(0, 20)]
    assert not any(loop.faults.values())


def test_the_policy_turns_to_the_drafters_that_are_left() -> None:
    loop, _ = make({"faulty": Faulty("raises"), "good": good()}, [Arm("faulty", 3), Arm("good", 3)], Uniform)
    rounds = list(loop.run([[0]] * 3, Sampling(max_new_tokens=80)))
    at = next(i for i, r in enumerate(rounds) if r.fault)
    assert all(r.arm.drafter == "good" for r in rounds[at + 1 :] if r.request == rounds[at].request)


def test_a_drafter_out_of_use_is_out_of_every_open_request() -> None:
    class Picky(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            spoilt = {0: Draft.chain([V])}
            return [spoilt.get(job.request.id) or self._chain(job) for job in jobs]

    loop, _ = make({"picky": Picky(markov(P), sampled=False)}, [Arm("picky", 3)], max_faults=1)
    rounds = list(loop.run([[0], [1]], Sampling(max_new_tokens=12), batch=2))
    assert [r.request for r in rounds if r.drafted] == [1]
    assert run(loop, [[5]], 4) == [counted(5, 4)]


def test_two_drafters_may_fail_in_one_round() -> None:
    broken, deaf = good(), good()
    setattr(broken, "draft", fail)  # noqa: B010 - a method, which is not assigned to otherwise
    setattr(deaf, "observe", lambda request, new: fail([]) if len(new) == 1 else None)  # noqa: B010
    loop, _ = make({"broken": broken, "deaf": deaf}, [Arm("broken", 3)])
    rounds = list(loop.run([[0] * 9], Sampling(max_new_tokens=4)))
    assert [t for r in rounds for t in r.tokens] == counted(0, 4)
    assert [r.fault.partition(":")[0] for r in rounds] == ["broken", "", "", ""]
    assert loop.faults == {"broken": 1, "deaf": 1}


# -- what is measured and told ---------------------------------------------------------------------------


class Ear:
    """A recorder that keeps what it was given, and has one thing left to say when a text has ended."""

    reads: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.seen: list[Outcome] = []

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        self.seen += [seen.outcome for seen in batch]
        return ()

    def close(self, request: Request) -> Sequence[Feedback]:
        return (Feedback(request.id, Decision(0), (Outcome(0, 1, 2),)),)


def test_time_is_charged_by_tokens_and_means_nothing_where_a_prompt_was_read() -> None:
    class Slow(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            time.sleep(0.01)
            return super().draft(jobs)

    ear, spy = Ear(), Spy([Arm("slow", 5)])
    loop = Loop(SimTarget(markov(P), V), {"slow": Slow(markov(P), sampled=False)}, spy, ear)
    loop.add([0], Sampling(max_new_tokens=20))
    loop.add([3], Sampling(max_new_tokens=9))  # 6 tokens in its first round, 2 + 1 in its second
    loop.step()
    assert [math.isnan(o.seconds) for o in ear.seen] == [True, True]
    long, short = loop.step()
    assert (long.drafted, short.drafted) == (5, 2)
    for phase in ("draft", "verify"):
        a, b = getattr(long.seconds, phase), getattr(short.seconds, phase)
        assert a / 6 == pytest.approx(b / 3)
    assert long.seconds.draft + short.seconds.draft * 6 / 9 > 0.005
    told = [o.seconds for o in ear.seen[2:]]
    assert told == pytest.approx([r.seconds.draft + r.seconds.verify for r in (long, short)])
    loop.add([0], Sampling(max_new_tokens=20))  # one that joins makes the pass of all others longer
    loop.step()
    assert [math.isnan(o.seconds) for o in ear.seen[4:]] == [True, True]


@pytest.mark.parametrize("padded", [False, True])
def test_a_policy_learns_how_wide_a_pass_was_whose_rows_are_padded(padded: bool) -> None:
    ear = Ear()
    loop = Loop(SimTarget(markov(P), V), {"good": good()}, Spy([Arm("good", 5)]), ear)
    loop.info.is_padded = padded
    loop.add([0], Sampling(max_new_tokens=20))
    loop.add([3], Sampling(max_new_tokens=9))  # 6 tokens in its first round, 2 + 1 in its second
    loop.step()
    loop.step()
    assert [o.cost and (o.cost.width, o.cost.pass_tokens) for o in ear.seen[2:]] == [(6 * padded, 9)] * 2
    loop.step()
    assert [o.cost and o.cost.width for o in ear.seen[4:]] == [0], "one row needs no padding"


def test_a_policy_sees_all_requests_of_a_round_before_it_decides() -> None:
    class Planning(Spy):
        def __init__(self) -> None:
            super().__init__([Arm("good", 1)])
            self.told: list[tuple[str, list[int]]] = []

        def plan(self, contexts: Sequence[Context]) -> None:
            self.told.append(("plan", [context.request for context in contexts]))

        def choose(self, context: Context, rng: random.Random) -> Decision:
            self.told.append(("choose", [context.request]))
            return super().choose(context, rng)

    policy = Planning()
    loop = Loop(SimTarget(markov(P), V), {"good": good()}, policy, Ear())
    loop.add([0], Sampling(max_new_tokens=1))
    loop.add([1], Sampling(max_new_tokens=9), arm=Arm("good", 2))  # decided by its caller
    loop.add([2], Sampling(max_new_tokens=9))
    loop.step()
    assert policy.told == [("plan", [0, 2]), ("choose", [0]), ("choose", [2])]
    policy.told.clear()
    loop.step()
    assert policy.told == [("choose", [2])], "nothing to plan for one"


def test_what_all_requests_share_is_charged_in_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves on by one whenever it is read: choosing 1, accepting 2, grading 1, learning 1."""
    ticks = itertools.count()
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    loop.add([0], Sampling(max_new_tokens=20))
    loop.add([3], Sampling(max_new_tokens=20))
    monkeypatch.setattr("draftwise.core.loop.perf_counter", lambda: float(next(ticks)))
    for round in loop.step():
        spent = round.seconds
        assert (spent.choose, spent.accept, spent.grade, spent.learn) == (0.5, 1.0, 0.5, 0.5)


def test_what_a_recorder_says_late_is_learnt_before_the_request_is_closed() -> None:
    class Strict(Spy):
        def learn(self, feedback: Feedback) -> None:
            assert feedback.request not in self.closed
            self.heard.append(feedback)

    spy = Strict([Arm("good", 3)])
    loop = Loop(SimTarget(markov(P), V), {"good": good()}, spy, Ear())
    list(loop.run([[0], [1]], Sampling(max_new_tokens=3)))
    assert [f.request for f in spy.heard] == spy.closed == [0, 1]


def test_a_new_turn_starts_afresh() -> None:
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    request = loop.add([0], Sampling(max_new_tokens=5, seed=3), keep=True)
    first = [request.uniform(i) for i in range(5)]
    decode_all(loop)
    loop.extend(request, [6], Sampling(max_new_tokens=5, seed=3))
    assert (request.rounds, request.last_accepted, request.position) == (0, -1, 0)
    second = [request.uniform(i) for i in range(5)]
    assert len({*first, *second}) == 10
    assert [request.uniform(4), request.uniform(3)] == [second[4]] * 2  # asking again draws nothing


def test_the_policys_generator_and_counts() -> None:
    seen: list[Context] = []

    class Watch(Spy):
        def choose(self, context: Context, rng: random.Random) -> Decision:
            seen.append(context)
            return super().choose(context, rng)

    watch = Watch([Arm("good", 2)])
    loop = Loop(SimTarget(markov(P), V), {"good": good()}, watch, Bandit(reward("accepted"), 2))
    list(loop.run([[0], [1]], Sampling(max_new_tokens=6), batch=2))
    assert [(c.request, c.batch_size, c.position, c.last_accepted) for c in seen] == [
        (0, 2, 0, -1),
        (1, 2, 0, -1),
        (0, 2, 3, 2),
        (1, 2, 3, 2),
    ]
