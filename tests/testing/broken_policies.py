"""Policies that break one rule each. Each names the checks that must fail, and no other may."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwise.core.arms import Arm, Context, Decision, Stop
from draftwise.core.outcomes import Feedback
from draftwise.policies.catalogue import Method
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.state.learned import LEARNED, adds, learned
from tests.testing.broken_drafters import fails

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


def of(kind: Any, drafters: Sequence[str]) -> Method:
    """A policy of this kind, with the recorder of a bandit."""
    return Method(kind(tuple(Arm(name, 3) for name in drafters)), Bandit(reward("accepted"), 3))


@fails("it_has_every_method_of_the_role", "closed_requests_leave_nothing_behind")
@dataclass
class NoClose(Sound):
    close: Any = None


@fails("arms_are_of_the_drafters_at_hand")
@dataclass
class AnArmTwice(Sound):
    def __post_init__(self) -> None:
        self.arms = (*self.arms, self.arms[0])
        super().__post_init__()


@fails("arms_are_of_the_drafters_at_hand")
@dataclass
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


@fails("decisions_are_arms", "any_context_gets_a_decision")
@dataclass
class BeyondTheArms(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        return Decision(len(self.arms)) if context.position > 20 else super().choose(context, rng)


@fails("stop_rules_exist")
@dataclass
class StopsByNoRule(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        made = super().choose(context, rng)
        return Decision(made.arm, stops=(Stop("svipp", 0.5),)) if context.position > 20 else made


@fails("unavailable_drafters_are_not_chosen")
@dataclass
class ChoosesWhoIsOut(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        everyone = Context(context.request, hints=context.hints)
        return super().choose(everyone, rng)


@fails("any_context_gets_a_decision")
@dataclass
class NeedsHints(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        if not context.hints and context.batch_size > 1:
            raise KeyError("near")
        return super().choose(context, rng)


@fails("propensities_are_the_chances_of_the_choices")
@dataclass
class HalfAndHalf(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        made = super().choose(context, rng)
        return Decision(made.arm, 0.5)


@fails("propensities_are_the_chances_of_the_choices")
@dataclass
class Impossible(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        return Decision(super().choose(context, rng).arm, 0.0)


@fails("a_decision_may_come_to_nothing", "no_call_raises", LOADED)
@dataclass
class NeedsAnOutcome(Sound):
    def learn(self, feedback: Feedback) -> None:
        outcome = feedback.outcomes[0]
        self.learner.update(outcome.arm, outcome.reward, 1.0)


LOTS = random.Random(5)


@fails("the_same_seed_gives_the_same_decisions", "a_loaded_policy_decides_like_the_one_that_was_saved")
@dataclass
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


@fails("a_loaded_policy_decides_like_the_one_that_was_saved")
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


@fails("closed_requests_leave_nothing_behind")
@dataclass
class NeverForgets(Sound):
    def close(self, request: int) -> None:
        """Nothing."""


@fails("contexts_and_texts_are_left_as_they_are")
@dataclass
class ChangesHints(Sound):
    def choose(self, context: Context, rng: random.Random) -> Decision:
        hints: Any = context.hints
        hints.setdefault("all", 0.0)
        return super().choose(context, rng)


class Writer(Sound):
    """Changes a text that it is shown, now and then."""

    def open(self, request: int, tokens: Sequence[int]) -> None:
        text: Any = tokens
        if self.writes(len(text)):
            text[-1] = (text[-1] + 1) % 4

    def writes(self, length: int) -> bool:
        return True


@fails(
    "contexts_and_texts_are_left_as_they_are",
    "greedy_text_is_the_targets_own",
    "faults_cost_no_text",
)
@dataclass
class WritesIntoShortTexts(Writer):
    def writes(self, length: int) -> bool:
        return length == 1


@fails(
    "contexts_and_texts_are_left_as_they_are",
    "greedy_text_is_the_targets_own",
    "faults_cost_no_text",
    "sampled_text_has_the_targets_distribution",
)
@dataclass
class WritesIntoTexts(Writer):
    """Everywhere."""


@fails("faults_cost_no_text")
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


KINDS = [kind for kind in list(globals().values()) if isinstance(kind, type)]
BROKEN: list[Any] = [kind for kind in KINDS if vars(kind).get("fails")]
