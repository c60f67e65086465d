"""The conformance suite of a policy: its decisions, the text, and what it saves and merges."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import count
from math import inf, isclose, isnan
from random import Random
from typing import Any

from ...core.arms import Arm, Context, Decision, Stop
from ...core.loop import Loop
from ...core.outcomes import Feedback
from ...core.roles import Drafter, Policy
from ...core.sampling import Sampling
from ...core.stops import RULES
from ...drafters.cascade import TogetherDrafter
from ...drafters.lookup.ngram import NgramDrafter
from ...errors import UserError
from ...policies.arms import TOGETHER
from ...policies.catalogue import Method
from ...state.learned import combine, dump, load
from ..drafter import SimDrafter
from .runs import DrafterWatch
from .suite import (
    GREEDY,
    LEAVE,
    PROMPTS,
    Prompts,
    Suite,
    Texts,
    Watch,
    add_tokens,
    fail,
    reachable,
    second_order,
    skip,
    small_target,
    suite_of,
)

NAMES = ("near", "far", "ngram")
FIRST = 987_654_001  # request ids that are no other number
SAMPLED = Sampling(max_new_tokens=3, temperature=0.9, top_k=3, presence_penalty=0.2)
MARK = "make it a dataclass, and mark what it learns with field(metadata=learned(adds))"


class PolicyWatch(Watch):
    """Watches a policy: its calls in order, and its decisions."""

    methods = ("choose", "learn", "close", "open", "plan", "rests")

    def __init__(self, inner: Any, faults: Mapping[str, int] | None = None) -> None:
        super().__init__(inner, faults)
        self.events: list[tuple[str, tuple[Any, ...]]] = []
        self.decisions: list[tuple[Context, Decision]] = []

    def watched_call(self, name: str, *args: Any) -> Any:
        """Call the policy."""
        copies = tuple(list(x) if isinstance(x, Sequence) else x for x in args)
        hints = dict(args[0].hints) if name == "choose" else None
        self.events.append((name, copies[:1] if name == "choose" else copies))
        answer = self.call(name, *args)
        if (name == "open" and copies[1] != list(args[1])) or (hints is not None and hints != args[0].hints):
            self.changed.append(name)
        if name == "choose":
            self.decisions.append((copy(args[0]), answer))
        self.inject(name)
        return answer


def replay(policy: Any, events: Sequence[tuple[str, tuple[Any, ...]]], *, seed: int) -> list[Any]:
    """Play the calls of a tape to a policy; its decisions, None where it raised."""
    rng, decisions = Random(seed), []
    for name, args in events:
        try:
            answer = getattr(policy, name)(*args, rng) if name == "choose" else getattr(policy, name)(*args)
        except Exception:  # what raises is found by another check
            answer = None
        if name == "choose":
            decisions.append(answer)
    return decisions


def parting(one: Sequence[Decision], other: Sequence[Decision]) -> int | None:
    """The first place at which decisions differ, in what a drafter can tell; None for nowhere."""
    pairs = enumerate(zip(map(_visible, one), map(_visible, other), strict=True))
    return next((place for place, (a, b) in pairs if a != b), None)


def _visible(decision: Decision) -> tuple[Any, ...]:
    stops = tuple((rule.rule, rule.threshold, rule.shortest) for rule in decision.stops)
    return decision.arm, str(decision.propensity), stops


@dataclass
class Game:
    """A run: what the policy was asked and told, and the texts in the order of their requests."""

    tape: PolicyWatch
    loop: Loop
    texts: Texts

    def run(self, prompts: Prompts, sampling: Sampling, *, batch: int, leave: int = 0) -> None:
        """Decode all prompts; with `leave`, one request is closed early every so many steps."""
        waiting, steps = list(prompts), 0
        while waiting or self.loop.open:
            while waiting and len(self.loop.open) < batch:
                self.loop.add(waiting.pop(0), sampling)
            add_tokens(self.texts, self.loop.step(), first=FIRST)
            steps += 1
            if leave and steps % leave == 0 and self.loop.open:
                self.loop.close(next(iter(self.loop.open.values())))


class Games(Suite):
    """The options of a policy's suite, and its runs.

    `make` makes a `Method` over the names of drafters, as the function behind an entry point does. `samples`
    is the number of texts that are drawn to see their distribution. `measures` says that the policy also goes
    by what it measures of the machine now, such as its load, which no state file keeps.
    """

    make: Callable[[Sequence[str]], Method]
    measures: bool = False
    samples: int = 1500

    def fresh(self) -> Any:
        """A new policy and its recorder."""
        return type(self).make(list(NAMES))

    def start(self, *, faults: Mapping[str, int] | None = None, faulty: bool = False) -> Game:
        """A loop with a fresh policy; with `faulty` one of the drafters fails after a while."""
        chosen = self.fresh()
        tape = PolicyWatch(chosen.policy, faults)
        drafters = team(chosen, faulty=faulty)
        policy = tape.stand_in(arms=chosen.policy.arms, reads_hints=chosen.policy.reads_hints)
        loop = Loop(small_target(), drafters, policy, chosen.recorder, slow_seconds=1e9)
        loop._ids = count(FIRST)
        return Game(tape, loop, {})

    @property
    def game(self) -> Game:
        """Many texts: greedy and sampled, in batches, some closed early, with a drafter that fails."""
        game: Game = self.once("game", self._play)
        return game

    def _play(self) -> Game:
        game = self.start(faulty=True)
        prompts = PROMPTS * 2
        game.run(prompts, Sampling(max_new_tokens=40), batch=1)
        game.run(prompts, Sampling(max_new_tokens=30, temperature=1.0), batch=3, leave=9)
        game.run(prompts, Sampling(max_new_tokens=30, temperature=0.7, eos=frozenset({3})), batch=4)
        return game


def team(chosen: Method, *, faulty: bool = False) -> dict[str, Drafter]:
    """The drafters of a run, and the one that asks all others where an arm names it."""
    faults = {"hint": 40, "draft": 20} if faulty else {}
    near, far = SimDrafter(second_order(seed=8)), SimDrafter(second_order(seed=9), sampled=False)
    drafters: dict[str, Any] = {
        "near": near,
        "far": DrafterWatch(far, faults).stand_in(),
        "ngram": NgramDrafter(),
    }
    if any(arm.drafter == TOGETHER for arm in chosen.policy.arms):
        drafters[TOGETHER] = TogetherDrafter()
    return drafters


class TextsDecided(Games):
    """Checks of what is written."""

    def test_greedy_text_is_the_targets_own(self) -> None:
        """Token for token, alone and in a batch."""
        for batch in (1, 3):
            game = self.start()
            game.run(PROMPTS, GREEDY, batch=batch)
            self.check_greedy(game.texts, f"in batches of {batch}")

    def test_sampled_text_has_the_targets_distribution(self) -> None:
        """Texts of three tokens, counted against the exact probability of each."""
        game = self.start()
        game.run([PROMPTS[0]] * self.samples, SAMPLED, batch=3)
        self.check_distribution(game.texts, SAMPLED)

    def test_faults_cost_no_text(self) -> None:
        """A call of each method raises, at one time or another; the next texts are decided as ever."""
        for name, turn in (("choose", 1), ("choose", 7), ("learn", 1), ("learn", 5)):
            game = self.start(faults={name: turn})
            game.run(PROMPTS, GREEDY, batch=3)
            when = f"after call {turn} of {name} raised"
            self.check_greedy(game.texts, when)
            if game.tape.errors and not self.game.tape.errors:
                fail(f"{game.tape.errors[0]}, {when}", "a decision may never be learned from")

    def test_contexts_and_texts_are_left_as_they_are(self) -> None:
        """Neither `choose` nor `open` changes what it is shown."""
        for name in self.game.tape.changed[:1]:
            fail(f"{name} changed what it was shown", LEAVE)


class KeptChecks(Games):
    """Checks of the state file's numbers."""

    def learnt(self, *, seed: int = 0, half: bool = False) -> Any:
        """A policy that was told what the one of the game was told."""
        policy, events = self.fresh().policy, list(self.game.tape.events)
        if half:
            ids = sorted({args[0].request for name, args in events if name == "choose"})
            events = events[: len(events) // 2] + [("close", (request,)) for request in ids]
        replay(policy, events, seed=seed)
        return policy

    def test_what_it_learns_is_saved_and_loaded(self) -> None:
        """As strict JSON, and back to the last digit."""
        policy = self._keeps()
        try:
            saved = json.loads(json.dumps(dump(policy), allow_nan=False))
            other = self.fresh().policy
            load(other, saved)
        except (TypeError, ValueError) as error:
            fail(f"what it learned cannot be saved and loaded ({error})", MARK)
        if dump(other) != dump(policy):
            fail("what was loaded is not what was saved", MARK)

    def test_a_loaded_policy_decides_like_the_one_that_was_saved(self) -> None:
        """From the next text on."""
        if self.measures:
            skip("what it measures of this machine is not saved")
        policy, other = self.learnt(), self.fresh().policy
        try:
            load(other, json.loads(json.dumps(dump(policy))))
        except (TypeError, ValueError):
            skip("it cannot be saved")  # as another check says
        events = self.game.tape.events
        one, two = replay(policy, events, seed=2), replay(other, events, seed=2)
        if (wrong := parting(one, two)) is not None:
            fail(f"decision {wrong} is {two[wrong]}, not {one[wrong]}", f"save all that it learns: {MARK}")

    def test_merging_with_one_that_learnt_nothing_changes_nothing(self) -> None:
        """As `draftwise merge` does it."""
        policy = self._keeps()
        merged = self._merged([policy, self.fresh().policy])
        self._alike(merged, policy, "merged with one that learned nothing")

    def test_the_order_of_merging_does_not_matter(self) -> None:
        """Two that have learned, either way round."""
        one, other = self._keeps(), self.learnt(seed=1, half=True)
        self._alike(self._merged([one, other]), self._merged([other, one]), "merged in another order")

    def _keeps(self) -> Any:
        """A policy that has learned something to keep."""
        policy = self.learnt()
        try:
            numbers = list(_leaves(dump(policy)))
        except TypeError:
            return policy
        if all(value is None for _, value in numbers):
            skip("it keeps nothing from text to text")
        return policy

    def _merged(self, parts: list[Any]) -> Any:
        into = self.fresh().policy
        try:
            dump(into)  # completes what the first choice would build
            for part in parts:
                dump(part)
            combine(into, parts)
        except UserError as error:
            skip(f"it cannot be merged: {error}")
        except TypeError:
            skip("it cannot be saved")
        return into

    def _alike(self, one: Any, other: Any, when: str) -> None:
        __tracebackhide__ = True
        first, second = dict(_leaves(dump(one))), dict(_leaves(dump(other)))
        for name in first.keys() | second.keys():
            a: Any = first.get(name)
            b: Any = second.get(name)
            numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
            if not (isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) if numbers else a == b):
                fail(f"{name} is {a} when {when}, and was {b}", "let what is learned add up")


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers of a tree by their path."""
    if isinstance(node, (dict, list)):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, node


class PolicySuite(TextsDecided, KeptChecks):
    """The duties of a policy, as checks that pytest collects; `policy_suite` makes one."""

    def test_it_has_every_method_of_the_role(self) -> None:
        """`choose`, `learn`, `close`, and the attributes `arms` and `reads_hints`."""
        policy = self.fresh().policy
        missing = [n for n in ("arms", "reads_hints", "choose", "learn", "close") if not hasattr(policy, n)]
        if missing or not isinstance(policy, Policy):
            fail(f"{type(policy).__name__} lacks {', '.join(missing)}", "see draftwise.Policy")

    def test_arms_are_of_the_drafters_at_hand(self) -> None:
        """A tuple of different arms, each of a drafter by name; `none` drafts nothing."""
        arms: Any = self.fresh().policy.arms
        if not isinstance(arms, tuple) or not arms or not all(isinstance(arm, Arm) for arm in arms):
            fail(f"arms = {arms!r}", "give a tuple of at least one draftwise.Arm")
        if len(set(arms)) < len(arms):
            fail(f"equal arms among {', '.join(arm.name for arm in arms)}", "give each once")
        for arm in arms:
            if arm.drafter not in (*NAMES, "none", TOGETHER) or arm.length < 0 or arm.width < 1:
                fail(f"an arm {arm}", f"name a drafter out of those given, such as {NAMES[0]}")

    def test_no_call_raises(self) -> None:
        """In texts of every kind, with requests that leave and a drafter that fails."""
        for error in self.game.tape.errors[:1]:
            fail(error, "a policy takes whatever comes of its decisions, in any order of requests")

    def test_decisions_are_arms(self) -> None:
        """A `Decision` whose arm is an index into `arms`."""
        for _, decision in self.game.tape.decisions:
            self._sound(decision)

    def test_stop_rules_exist(self) -> None:
        """A decision has at least one stop rule, by a name that is known; learned rules bring their model."""
        for _, decision in self.game.tape.decisions:
            for rule in decision.stops or (None,):
                if not isinstance(rule, Stop) or rule.rule not in RULES:
                    fail(f"stop rule {rule!r}", f"choose from {', '.join(RULES)}")
                if RULES[rule.rule].scored and rule.scorer is None:
                    fail(f"the rule {rule.rule} without a scorer", "give it the classifier that it asks")

    def test_unavailable_drafters_are_not_chosen(self) -> None:
        """Unless none is left, when a draft comes out empty anyway."""
        arms = self.game.tape.inner.arms
        for context, decision in self.game.tape.decisions:
            left = [arm for arm in arms if arm.drafter not in context.unavailable]
            arm = arms[decision.arm] if decision.arm in range(len(arms)) else None
            if left and arm and arm.drafter in context.unavailable:
                fail(f"{arm.name}, whose drafter is unavailable", "choose among the others")

    def test_any_context_gets_a_decision(self) -> None:
        """Large batches, long texts, no hints, odd hints, no drafter available."""
        policy, lots = self.fresh().policy, Random(4)
        for at in range(60):
            hints = {name: lots.choice((0.0, 1.0, -3.0, 1e9)) for name in NAMES if lots.random() < 0.7}
            out = frozenset(name for name in (*NAMES, TOGETHER) if lots.random() < 0.4)
            place = lots.choice((0, 1, 10**6))
            size, accepted = lots.choice((1, 2, 512)), lots.choice((-1, 0, 64))
            room = (1, 7, inf)[at % 3]
            context = Context(at, size, place, accepted, hints, out, place + 9, remaining=room)
            try:
                decision = policy.choose(context, lots)
            except Exception as error:
                fail(f"choose raised {error!r} for {context}", "decide in every context")
            self._sound(decision)

    def test_propensities_are_the_chances_of_the_choices(self) -> None:
        """1 where nothing is random, NaN where the chance has no closed form, else how often it is chosen."""
        policy = self.fresh().policy
        replay(policy, self.game.tape.events, seed=0)
        n, propensities = 600, dict[int, list[float]]()
        for seed in range(n):
            decision = deepcopy(policy).choose(Context(request=1), Random(seed))
            p = decision.propensity
            if not (isnan(p) or 0.0 < p <= 1.0 + 1e-9):
                fail(f"propensity {p}", "give the probability in (0, 1] that this arm had")
            propensities.setdefault(decision.arm, []).append(p)
        for arm, chances in propensities.items():
            p = chances[0]
            if p < 1.0 and abs(len(chances) - n * p) > 5.0 * (n * p * (1.0 - p)) ** 0.5 + 1.0:
                fail(f"arm {arm} in {len(chances)} of {n} choices with propensity {p:.3f}", "give its chance")

    def test_a_decision_may_come_to_nothing(self) -> None:
        """Feedback without outcomes, losses or windows, for requests known and unknown."""
        policy = self.fresh().policy
        for request in (1, 2, 1):
            decision = policy.choose(Context(request=request), Random(0))
            try:
                policy.learn(Feedback(request, decision))
            except Exception as error:
                fail(f"learn raised {error!r} for an empty Feedback", "learn nothing from it")

    def test_the_same_seed_gives_the_same_decisions(self) -> None:
        """Two new policies that are told the same decide alike."""
        events = self.game.tape.events
        one, other = (replay(self.fresh().policy, events, seed=5) for _ in range(2))
        if (k := parting(one, other)) is not None:
            fail(f"{other[k]} where it was {one[k]}", "draw from the generator that choose() is given alone")

    def test_closed_requests_leave_nothing_behind(self) -> None:
        """Neither the policy nor its recorder keeps the id of a request that has ended."""
        ids = frozenset(range(FIRST, FIRST + 1000))
        parts = {"policy": self.game.tape.inner, "recorder": self.game.loop.recorder}
        for name, part in parts.items():
            found = (other for _, inner in reachable(part) for other in inner)
            if any(type(other) is int and other in ids for other in found):
                fail(f"the {name} still holds requests that were closed", "forget them in close()")

    def _sound(self, decision: Any) -> None:
        __tracebackhide__ = True
        n = len(self.game.tape.inner.arms)
        whole = isinstance(decision, Decision) and isinstance(decision.arm, int)
        if not whole or not 0 <= decision.arm < n:
            fail(f"{decision!r}", f"return Decision(arm) with an index from 0 to {n - 1}")


def policy_suite(
    make: Callable[[Sequence[str]], Method], *, measures: bool = False, samples: int | None = None
) -> type[PolicySuite]:
    """A test class for a policy: decisions in range, the text stays exact, what is learned is saved, no
    leaks.

    `make` makes a `Method` over the names of drafters, as the function behind an entry point does. `measures`
    says that the policy also goes by what it measures of the machine now, which no state file keeps.
    `samples` texts are drawn to see their distribution, 1500 by default.

        TestLongestMatch = policy_suite(longest_match)
    """
    return suite_of(PolicySuite, {"make": make, "measures": measures, "samples": samples})
