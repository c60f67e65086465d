"""The policy: decides each round how to draft."""

from __future__ import annotations

from collections.abc import Sequence
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
    hints before each choice (a policy without this attribute gets none).

    The loop or a host calls it, from one thread at a time, under the loop's lock. Several requests are
    decided before the first of them is learned from, so that whatever belongs to a decision is kept by
    request id. What `choose` raises costs speed and no text: the round is decoded plainly, and reported in
    `Round.fault`.
    """

    arms: tuple[Arm, ...]
    reads_hints: bool

    def choose(self, context: Context, rng: Random) -> Decision:
        """The arm for the next round of one request: an index into `arms`.

        Called once a round and request, before anyone drafts. An arm of a drafter in `context.unavailable`
        drafts nothing.

        Examples:
            >>> decision = policy.choose(Context(request=0), Random(0))
            >>> policy.arms[decision.arm].name
            'sim:4'
        """
        ...

    def learn(self, feedback: Feedback) -> None:
        """What came of one decision, as the policy's recorder put it.

        Called after each round, and before `close` for what came late. A feedback without outcomes, losses
        and windows says that the decision came to nothing. What it raises is reported in `Round.fault`.

        Examples:
            >>> policy.learn(Feedback(0, Decision(0), (Outcome(0, accepted=3, drafted=4, reward=0.75),)))
            >>> policy.learn(Feedback(0, Decision(0)))
        """
        ...

    def close(self, request: int) -> None:
        """Forget what belongs to one request, by its id.

        Called once when its text ends, also if no decision was made for it. A parked request may continue
        under the same id: it is then a new text. What it raises is a warning.

        Examples:
            >>> policy.close(0)
        """
        ...


@runtime_checkable
class Reader(Protocol):
    """A policy that reads the text before it decides."""

    def open(self, request: int, tokens: Sequence[int]) -> None:
        """The whole text when an answer begins: the prompt, or in a later turn all there is by then.

        Called before the first decision of each answer. The tokens are the request's own list: read them, do
        not change or keep them. What it raises is a warning.

        Examples:
            >>> class Careful(type(policy)):
            ...     def open(self, request, tokens):
            ...         print(len(tokens), "tokens")
            >>> Careful(policy.arms, policy.new_learner).open(0, [0, 1, 2])
            3 tokens
        """
        ...
