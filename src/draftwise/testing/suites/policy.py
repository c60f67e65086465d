"""The conformance suite of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf, isnan
from random import Random
from typing import Any

from ...core.arms import Arm, Context, Decision, Stop
from ...core.outcomes import Feedback
from ...core.roles import Policy
from ...core.stops import RULES
from ...policies.arms import TOGETHER
from ...policies.catalogue import Method
from .checks import fail, holds, suite_of
from .decided import TextsDecided
from .games import FIRST, NAMES
from .kept import KeptChecks
from .tape import overhead, parting, replay


class PolicySuite(TextsDecided, KeptChecks):
    """What a policy must do, as checks that pytest collects; `policy_suite` makes one."""

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
            if (
                left
                and decision.arm in range(len(arms))
                and arms[decision.arm].drafter in context.unavailable
            ):
                fail(f"{arms[decision.arm].name}, whose drafter is unavailable", "choose among the others")

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
        n, found = 600, dict[int, list[float]]()
        for seed in range(n):
            decision = deepcopy(policy).choose(Context(request=1), Random(seed))
            p = decision.propensity
            if not (isnan(p) or 0.0 < p <= 1.0 + 1e-9):
                fail(f"propensity {p}", "give the probability in (0, 1] that this arm had")
            found.setdefault(decision.arm, []).append(p)
        for arm, chances in found.items():
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
        """Two new policies that are told the same decide alike. Prints how long a round takes."""
        events = self.game.tape.events
        one, other = (replay(self.fresh().policy, events, seed=5) for _ in range(2))
        if (k := parting(one, other)) is not None:
            fail(f"{other[k]} where it was {one[k]}", "draw from the generator that choose() is given alone")
        print(f"{overhead(self.fresh().policy, events) * 1e6:.0f} microseconds a round to choose and learn")

    def test_closed_requests_leave_nothing_behind(self) -> None:
        """Neither the policy nor its recorder keeps the id of a request that has ended."""
        ids = frozenset(range(FIRST, FIRST + 1000))
        parts = {"policy": self.game.tape.inner, "recorder": self.game.loop.recorder}
        for name, part in parts.items():
            if holds(part, ids):
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
