"""The policy: decides each round how to draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, runtime_checkable

from ..arms import Arm, Context, Decision
from ..outcomes import Feedback


@runtime_checkable
class Policy(Protocol):
    """Decides every round and learns from what came of it.

    It sees numbers only: no torch, no clock, and no random generator but the one it is handed. It must be a
    dataclass if a state file is to keep what it learns: fields with `metadata=learned(rule)` are saved and
    merged. `arms` are what it chooses among and never change; with `reads_hints` drafters are asked for their
    hints before each choice (a policy without this attribute gets none). If it has `can_learn_late`, and that
    is true, it is told of a round after the next decision where the target is `Asynchronous`: its learning
    then takes no time of a round.

    The loop or a host calls it, from one thread at a time, under the loop's lock. Several requests are
    decided before the first of them is learned from, so that whatever belongs to a decision is kept by
    request id. What `choose` raises costs speed and no text: the round is decoded plainly, and reported in
    `Round.fault`.
    """

    arms: tuple[Arm, ...]
    reads_hints: bool

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return the arm for the next round of one request: an index into `arms`.

        Called once a round and request, before anyone drafts. An arm of a drafter in `context.unavailable`
        drafts nothing.

        Examples:
            >>> decision = policy.choose(Context(request=0), Random(0))
            >>> policy.arms[decision.arm].name
            'sim:4'
        """

    def learn(self, feedback: Feedback) -> None:
        """What came of one decision, as the policy's recorder put it.

        Called after each round, and before `close` for what came late. A feedback without outcomes, losses
        and windows says that the decision came to nothing. What it raises is reported in `Round.fault`.
        """

    def close(self, request: int) -> None:
        """Forget what belongs to one request, by its id.

        Called once when its text ends, also if no decision was made for it. A parked request may continue
        under the same id: it is then a new text. What it raises is a warning.
        """


@runtime_checkable
class Reader(Protocol):
    """A policy that reads the text before it decides."""

    def open(self, request: int, tokens: Sequence[int]) -> None:
        """The whole text when an answer begins: the prompt, or in a later turn all there is by then.

        Called before the first decision of each answer. The tokens are the request's own list: read them, do
        not change or keep them. What it raises is a warning.
        """


@runtime_checkable
class Planner(Protocol):
    """A policy that looks at all requests of a round before it decides for each of them."""

    def plan(self, contexts: Sequence[Context]) -> None:
        """The requests that are decided next, in this order, in one round.

        Called before their `choose`, where there are two or more. What it raises is reported in
        `Round.fault`; they are decided all the same.
        """


@runtime_checkable
class Rester(Protocol):
    """A policy that may leave out a round of a batch, so that it takes no time where no draft pays."""

    def rests(self, batch_size: int) -> bool:
        """Return whether no request of this round drafts; then none is decided, and nothing is learned.

        Called before all else in a round of two or more requests.
        """


@dataclass(frozen=True, slots=True)
class Values:
    """What a policy holds of its arms at one moment, for displays: no decision depends on it.

    Attributes:
        unit: What `values` are, in words.
        values: One per arm, higher is better; None for an arm of which nothing is known.
        seconds: What a draft of each arm adds to a plain round; None where that is unknown. Empty from a
            policy that measures no seconds.
        price: Tokens that a second is worth, by the kind of place in words; empty without a price.
        plain: Seconds of a target pass without drafts, at the present load; None if unknown.
        matches: By drafter and length of the match in words: draft tokens that were tested, and accepted.
    """

    unit: str
    values: tuple[float | None, ...]
    seconds: tuple[float | None, ...] = ()
    price: Mapping[str, float] = field(default_factory=dict)
    plain: float | None = None
    matches: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


@runtime_checkable
class Valuer(Protocol):
    """A policy that can say what each arm is worth to it now; the server's page shows it."""

    def values(self, batch: int = 1) -> Values:
        """Return what is known of the arms, where `batch` requests are decoded together.

        Called under the loop's lock, between two rounds, at any time and as often as someone looks: it must
        change nothing. What it raises is a warning, and nothing is shown.
        """
