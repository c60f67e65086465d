"""Policies that break one rule each. Each names the checks that must fail, and no other may."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from draftwise.core.arms import Arm, Context, Decision, Stop
from draftwise.core.outcomes import Feedback
from draftwise.policies.catalogue import Method
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.state.learned import LEARNED, adds, learned
from tests.testing import broken_drafters as drafters
from tests.testing.broken_drafters import FAULTS, SAMPLED, TEXT

BROKEN: list[Any] = []
CLOSED = "closed_requests_leave_nothing_behind"
CONTEXTS = "contexts_and_texts_are_left_as_they_are"
PROPENSITIES = "propensities_are_the_chances_of_the_choices"
LOADED = "a_loaded_policy_decides_like_the_one_that_was_saved"


@dataclass
class Sound:
    """UCB1 by hand, a policy in order: the others differ from it by one fault."""

    arms: tuple[Arm, ...]
    reads_hints: bool = True
    learner: UCB1 = field(default_factory=lambda: UCB1(0), metadata=LEARNED)
    waiting: dict[int, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learner = UCB1(len(self.arms))

    def choose(self, context: Context, rng: random.Random) -> Decision:
        left = [i for i, arm in enumerate(self.arms) if arm.drafter not in context.unavailable]
        arm, propensity = self.learner.choose(left or range(len(self.arms)), rng)
        self.waiting[context.request] = Decision(arm, propensity)
        return self.waiting[context.request]

    def learn(self, feedback: Feedback) -> None:
        if not feedback.outcomes:
            self.learner.abort(feedback.decision.arm)
        for outcome in feedback.outcomes:
            self.learner.update(outcome.arm, outcome.reward, 1.0)

    def close(self, request: int) -> None:
        self.waiting.pop(request, None)


fails = partial(drafters.fails, into=BROKEN)
broken = partial(drafters.broken, base=Sound, into=BROKEN)


def of(kind: Any, drafters: Sequence[str]) -> Method:
    """A policy of this kind, with the recorder of a bandit."""
    return Method(kind(tuple(Arm(name, 3) for name in drafters)), Bandit(reward("accepted"), 3))


def decided(change: Callable[[Context, Decision], Decision]) -> Callable[..., Any]:
    """A change of each decision."""
    return lambda sound, context, rng: change(context, sound(context, rng))


def needs_hints(sound: Any, context: Context, rng: random.Random) -> Any:
    """Decide where there are hints."""
    return context.hints["near"] if not context.hints and context.batch_size > 1 else sound(context, rng)


def writes_hints(sound: Any, context: Context, rng: random.Random) -> Any:
    """Decide after a change of the hints."""
    hints: Any = context.hints
    hints.setdefault("all", 0.0)
    return sound(context, rng)


broken("NoClose", "it_has_every_method_of_the_role", CLOSED)
BROKEN[-1].close = None
broken(
    "BeyondTheArms",
    "decisions_are_arms",
    "any_context_gets_a_decision",
    choose=lambda sound, context, rng: Decision(3) if context.position > 20 else sound(context, rng),
)
broken(
    "StopsByNoRule",
    "stop_rules_exist",
    choose=decided(
        lambda context, made: (
            Decision(made.arm, stops=(Stop("svipp", 0.5),)) if context.position > 20 else made
        )
    ),
)
broken(
    "ChoosesWhoIsOut",
    "unavailable_drafters_are_not_chosen",
    choose=lambda sound, context, rng: sound(Context(context.request, hints=context.hints), rng),
)
broken("NeedsHints", "any_context_gets_a_decision", choose=needs_hints)
broken("HalfAndHalf", PROPENSITIES, choose=decided(lambda context, made: Decision(made.arm, 0.5)))
broken("Impossible", PROPENSITIES, choose=decided(lambda context, made: Decision(made.arm, 0.0)))
broken("NeverForgets", CLOSED, close=lambda sound, request: None)
broken("ChangesHints", CONTEXTS, choose=writes_hints)


@fails("arms_are_of_the_drafters_at_hand")
class AnArmTwice(Sound):
    def __post_init__(self) -> None:
        self.arms = (*self.arms, self.arms[0])
        super().__post_init__()


@fails("arms_are_of_the_drafters_at_hand")
class ArmsOfStrangers(Sound):
    def __post_init__(self) -> None:
        self.arms = (*self.arms, Arm("", 0))
        super().__post_init__()


@fails("no_call_raises")
@dataclass
class ClosesOnce(Sound):
    """Raises when a text that it decided nothing for is closed, or in the game's last texts."""

    closed: int = 0

    def close(self, request: int) -> None:
        super().close(request)
        self.closed += 1
        if self.closed == 20:
            raise KeyError(request)


@fails("a_decision_may_come_to_nothing", "no_call_raises", LOADED)
class NeedsAnOutcome(Sound):
    def learn(self, feedback: Feedback) -> None:
        outcome = feedback.outcomes[0]
        self.learner.update(outcome.arm, outcome.reward, 1.0)


@fails("no_call_raises")
class CannotPlan(Sound):
    def plan(self, contexts: Sequence[Context]) -> None:
        raise ValueError(len(contexts))


LOTS = random.Random(5)


@fails("the_same_seed_gives_the_same_decisions", LOADED)
class DrawsElsewhere(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        super().choose(context, rng)
        left = [i for i, arm in enumerate(self.arms) if arm.drafter not in context.unavailable]
        return Decision(LOTS.choice(left or range(len(self.arms))), float("nan"))


@fails("what_it_learns_is_saved_and_loaded")
@dataclass
class LearnsWords(Sound):
    words: list[float] = field(default_factory=list, metadata=LEARNED)

    def close(self, request: int) -> None:
        super().close(request)
        self.words = [float("1e300")]


@fails(LOADED)
@dataclass
class SavesOnlySome(Sound):
    rounds: int = 0

    def choose(self, context: Context, rng: random.Random) -> Decision:
        made = super().choose(context, rng)
        self.rounds += 1
        late = self.rounds > 100 and "ngram" not in context.unavailable
        return Decision(2) if late else made


@dataclass
class Counts(Sound):
    """Counts its rounds."""

    rounds: int = field(default=0, metadata=learned(adds))

    def choose(self, context: Context, rng: random.Random) -> Decision:
        self.rounds += 1
        return super().choose(context, rng)


def average(blank: Any, parts: Sequence[Any], name: str) -> Any:
    return sum(getattr(part, name) for part in parts) // len(parts)


def first(blank: Any, parts: Sequence[Any], name: str) -> Any:
    return getattr(parts[0], name)


@fails("merging_with_one_that_learnt_nothing_changes_nothing")
@dataclass
class Averages(Counts):
    rounds: int = field(default=0, metadata=learned(average))


@fails("the_order_of_merging_does_not_matter")
@dataclass
class TakesTheFirst(Counts):
    rounds: int = field(default=0, metadata=learned(first))


class Writer(Sound):
    """Changes a text that it is shown, now and then."""

    def open(self, request: int, tokens: Sequence[int]) -> None:
        text: Any = tokens
        if self.writes(len(text)):
            text[-1] = (text[-1] + 1) % 4

    def writes(self, length: int) -> bool:
        return True


@fails(CONTEXTS, TEXT, FAULTS)
class WritesIntoShortTexts(Writer):
    def writes(self, length: int) -> bool:
        return length == 1


@fails(CONTEXTS, TEXT, FAULTS, SAMPLED)
class WritesIntoTexts(Writer):
    """Everywhere."""


@fails(FAULTS)
@dataclass
class NeedsEveryAnswer(Sound):
    """Raises when a decision was never answered."""

    open_ones: dict[int, int] = field(default_factory=dict)

    def choose(self, context: Context, rng: random.Random) -> Decision:
        if self.open_ones.get(context.request, 0) > 0:
            raise RuntimeError("the last decision has no answer yet")
        self.open_ones[context.request] = 1
        return super().choose(context, rng)

    def learn(self, feedback: Feedback) -> None:
        self.open_ones.pop(feedback.request, None)
        super().learn(feedback)

    def close(self, request: int) -> None:
        self.open_ones.pop(request, None)
        super().close(request)
