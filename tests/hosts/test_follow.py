"""The loop inside out: it learns from an engine's texts what the loop learns from its own."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.request import Request
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.errors import UserError
from draftwise.hosts.follow import Follower
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import Method, method
from draftwise.policies.learners.fixed import Uniform
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

from ..core.turns import Stateless
from .engine import Engine, rows
from .engine import Job as Served

V = 8
COUNT = np.roll(np.eye(V), 1, axis=1) * 0.93 + 0.01  # greedy text counts upwards, modulo V
RNG = np.random.default_rng(5)
MIXED = RNG.dirichlet(np.full(V, 0.3), size=V)


def text_law(history: Sequence[int]) -> Any:
    """A distribution of the last two tokens, so that texts repeat themselves in part."""
    return np.log(np.roll(MIXED[history[-1]], history[-2] if len(history) > 1 else 0) + 1e-9)


class Broken(Stateless):
    """Fails whenever it is asked."""

    def one(self, job: Job) -> Draft:
        raise RuntimeError("no luck")


class Reader(NgramDrafter):
    """A drafter that keeps what it was told, to be compared with the engine's texts."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[int, list[int]] = {}

    def observe(self, request: Request, new: Sequence[int]) -> None:
        super().observe(request, new)
        self.told.setdefault(request.id, []).extend(new)

    def close(self, request: Request) -> None:
        super().close(request)
        self.told.pop(request.id, None)


def follower(name: str, team: dict[str, Any], **options: Any) -> Follower:
    return Follower(team, method(name, list(team)), vocab_size=V, **options)


def asked(follow: Follower, engine: Engine) -> Callable[[list[Served], list[list[int]]], list[list[int]]]:
    return lambda jobs, sampled: follow.step(rows(engine, jobs, sampled), engine.alive)


def heard(made: Method) -> list[Feedback]:
    """Whatever the policy is told from now on."""
    notes: list[Feedback] = []
    learn = made.policy.learn

    class Spy:
        arms, reads_hints = made.policy.arms, made.policy.reads_hints
        choose, close = made.policy.choose, made.policy.close

        def learn(self, feedback: Feedback) -> None:
            notes.append(feedback)
            learn(feedback)

    object.__setattr__(made, "policy", Spy())
    return notes


def team() -> dict[str, Any]:
    return {"ngram": NgramDrafter(), "suffix": SuffixDrafter(), "bad": SimDrafter(markov(COUNT[:, ::-1]))}


@pytest.mark.parametrize(
    ("name", "eos"),
    [
        ("static-3", 3),
        ("metasd-exp3?reward=accepted", -1),
        ("ucb1", 3),
        ("exp3spec", 3),
        ("hedgespec?play=sample", -1),
        ("hedgespec?play=sample", 3),
    ],
)
def test_a_policy_hears_from_an_engine_what_it_hears_from_the_loop(name: str, eos: int) -> None:
    prompt, budget = [1, 2, 3, 1, 2], 60
    first = int(np.argmax(text_law(prompt)))
    ours, theirs = method(name, list(team())), method(name, list(team()))
    by_loop, by_engine = heard(ours), heard(theirs)
    loop = Loop(SimTarget(text_law, V), team(), ours.policy, ours.recorder, seed=4)
    sampling = Sampling(max_new_tokens=budget - 1, eos=frozenset({eos}) if eos >= 0 else frozenset())
    rounds: list[Round] = list(loop.run([[*prompt, first]], sampling))
    follow = Follower(team(), theirs, vocab_size=V, seed=4)
    engine = Engine(text_law, eos=eos)
    job = engine.add("a", prompt, budget)
    while engine.waiting or engine.running:
        engine.step(asked(follow, engine))
    assert job.tokens == [first, *(t for r in rounds for t in r.tokens)]
    assert follow.totals()["arms"] == pulls(rounds)
    assert [known(f) for f in by_engine] == [known(f) for f in by_loop]


def pulls(rounds: Sequence[Round]) -> dict[str, int]:
    names = [r.arm.name for r in rounds]
    return {name: names.count(name) for name in names}


def known(feedback: Feedback) -> tuple[Any, ...]:
    outcomes = [(o.arm, o.accepted, o.drafted, o.reward) for o in feedback.outcomes]
    return feedback.decision, outcomes, feedback.losses


def test_two_hundred_requests_that_come_move_wait_and_are_dropped_leave_nothing_behind() -> None:
    reader, rng = Reader(), random.Random(3)
    follow = follower(
        "random", {"reader": reader, "suffix": SuffixDrafter(), "broken": Broken()}, max_faults=9
    )
    engine = Engine(text_law, seats=5, eos=6, seed=1)
    plain = Engine(text_law, seats=1, eos=6)
    wanted: dict[str, list[int]] = {}
    for k in range(200):
        prompt = [rng.randrange(V) for _ in range(rng.randrange(1, 9))]
        wanted[f"{k}"] = written(plain, f"{k}", prompt, 30)
        engine.add(f"{k}", prompt, 30)
    while engine.waiting or engine.running or engine.away:
        engine.step(asked(follow, engine))
        served = {job.key: job for job in engine.running}
        for id, told in reader.told.items():
            key = follow._keys[id]
            assert key not in served or told == served[key].text
        for job in list(engine.running):
            if rng.random() < 0.05:
                engine.abort(job)
            elif rng.random() < 0.05:
                engine.put_off(job)
    follow.step([])
    assert not follow.open and not reader.told and not reader.texts and not follow._keys
    assert not follow._requests and not follow._rounds and not follow.pool._observed
    for job in engine.done:
        assert job.tokens == wanted[job.key][: len(job.tokens)]
    assert follow.totals()["drafters"]["broken"]["num_faults"] == 9
    assert follow.totals()["drafters"]["reader"]["num_accepted_tokens"] > 0


def written(engine: Engine, key: str, prompt: Sequence[int], budget: int) -> list[int]:
    job = engine.add(key, prompt, budget)
    while job not in engine.done:
        engine.step(lambda jobs, sampled: [[] for _ in jobs])
    return job.tokens


def test_a_draft_that_the_engine_cuts_is_counted_as_cut_and_says_nothing() -> None:
    made = Method(BanditPolicy((Arm("good", 5),), Uniform), Bandit(reward("accepted"), 5))
    notes = heard(made)
    follow = Follower({"good": SimDrafter(markov(COUNT), sampled=False)}, made, vocab_size=V)
    engine = Engine(markov(COUNT), room=2)
    engine.add("a", [0], 10)
    while engine.waiting or engine.running:
        engine.step(asked(follow, engine))
    assert notes and all(not feedback.outcomes for feedback in notes)
    (counts,) = follow.totals()["drafters"].values()
    assert counts["num_draft_tokens"] == counts["num_accepted_tokens"] > 0


def test_seconds_are_those_between_two_askings_and_prompts_and_pauses_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = method("static-2?drafter=ngram", ["ngram"])
    seen: list[float] = []
    add = Bandit.add

    def note(self: Bandit, batch: Any, graders: Any) -> Any:
        seen.extend(s.outcome.seconds for s in batch)
        return add(self, batch, graders)

    monkeypatch.setattr(Bandit, "add", note)
    follow = Follower({"ngram": NgramDrafter()}, made, vocab_size=V)
    engine = Engine(text_law, seats=2)
    engine.add("a", [1, 2], 20)
    for _ in range(4):
        engine.step(asked(follow, engine))
    assert len(seen) == 3 and all(s > 0 for s in seen)
    engine.add("b", [3], 20)
    engine.step(asked(follow, engine))
    assert np.isnan(seen[3])  # the pass read b's prompt as well
    (a, *_) = (job for job in engine.running if job.key == "a")
    engine.put_off(a)
    engine.away.clear()
    engine.step(asked(follow, engine))
    engine.running.append(a)
    engine.step(asked(follow, engine))
    assert np.isnan(seen[-1])  # a was not in the step before


def test_a_text_that_shrinks_or_jumps_is_met_anew() -> None:
    reader = Reader()
    follow = follower("static-2", {"reader": reader})
    engine = Engine(text_law)
    job = engine.add("a", [1, 2, 3], 50)
    for _ in range(3):
        engine.step(asked(follow, engine))
    del job.tokens[-2:]  # as vLLM does after the loss of a cache
    job.draft = []
    engine.step(asked(follow, engine))
    assert list(reader.told.values()) == [job.text]
    engine._verify(job)  # a step in which nobody asks
    engine.step(asked(follow, engine))
    assert list(reader.told.values()) == [job.text]


def test_policies_that_verify_trees_are_refused() -> None:
    with pytest.raises(UserError, match="trees"):
        follower("draft-all", team())


def test_under_sampling_acceptance_is_counted_without_bias() -> None:
    made = method("hedgespec?per_query=false", ["good", "bad"])
    notes = heard(made)
    distribution = markov(MIXED)
    follow = Follower(
        {"good": SimDrafter(distribution), "bad": SimDrafter(markov(MIXED[:, ::-1]))}, made, vocab_size=V
    )
    engine = Engine(distribution, seed=2)
    engine.greedy = False
    for k in range(8):
        engine.add(f"{k}", [k % V], 200)
    while engine.waiting or engine.running:
        engine.step(asked(follow, engine))
    losses = np.array([f.losses for f in notes if f.losses], dtype=float).mean(0)
    assert losses[0] < losses[1] < 1.0
    # The fraction of tokens that begin a round of the arm, were it alone: 1 / (tokens per round).
    assert losses[0] == pytest.approx(alone(MIXED, MIXED.argmax(1)), abs=0.03)
    assert losses[1] == pytest.approx(alone(MIXED, MIXED[:, ::-1].argmax(1)), abs=0.03)


def alone(distribution: Any, pick: Any, length: int = 5, rounds: int = 20_000) -> float:
    rng, token, tokens = np.random.default_rng(0), 0, 0
    for _ in range(rounds):
        for _ in range(length + 1):
            token, guess = int(rng.choice(V, p=distribution[token])), pick[token]
            tokens += 1
            if token != guess:
                break
    return rounds / tokens


@pytest.mark.parametrize("when", ["choose", "learn", "close"])
def test_a_policy_that_raises_costs_the_engine_drafts_and_no_text(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, calls = method("ucb1", list(team())), list[int]()
    original = getattr(type(made.policy), when)

    def odd(*arguments: Any) -> Any:
        """Every third time it fails."""
        calls.append(1)
        return 1 // 0 if len(calls) % 3 == 0 else original(*arguments)

    monkeypatch.setattr(type(made.policy), when, odd)
    follow = Follower(team(), made, vocab_size=V)
    engine, plain = Engine(text_law, seats=3), Engine(text_law, seats=3)
    for k in range(9):
        engine.add(f"{k}", [k % V, 1, 2], 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what goes wrong at an end is a warning
        while engine.waiting or engine.running:
            engine.step(asked(follow, engine))
        follow.close()
    for job in engine.done:
        assert job.tokens == written(plain, job.key, job.prompt, 30)
    totals = follow.totals()
    assert totals["drafters"]["policy"]["num_faults"] == len(calls) // 3 > 0
    assert sum(d["num_accepted_tokens"] for d in totals["drafters"].values()) > 0 and not follow.open


def test_trees_beside_chains_are_left_alone_and_trees_alone_refused() -> None:
    """`auto` has both, and asks whether trees can be verified."""
    drafter = SimDrafter(markov(np.eye(4)))
    both = method("auto", ["zoo:general"])
    assert any(arm.width > 1 for arm in both.policy.arms)
    Follower({"zoo:general": drafter}, both, vocab_size=4)
    trees = Method(BanditPolicy((Arm("one", 2, width=2),), Uniform), Bandit(reward("accepted"), 2))
    with pytest.raises(UserError, match="drafts trees"):
        Follower({"one": drafter}, trees, vocab_size=4)
