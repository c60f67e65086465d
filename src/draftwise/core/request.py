"""One text in progress. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from .arms import Arm
from .sampling import Sampling

ENDLESS = 1 << 30


@dataclass(slots=True, eq=False)
class Request:
    """One text in progress. The loop is its only writer; drafters and targets read it.

    Attributes:
        id: Unique within a loop.
        tokens: Token ids of the whole text, the prompt included.
        prompt_length: Index in `tokens` at which the current answer starts.
        sampling: Settings of the target's distribution and of the end of the text.
        rng: Random numbers for the drafter (in `draft` only) and the acceptance test; seeded for each answer.
        uniforms: The generator of `uniform` alone.
        last_accepted: Draft tokens accepted in the previous round; -1 before the first.
        rounds: Rounds of the current answer.
        keep: Park the request when its text ends, so that it can be extended.
        done: The text has ended.
        finish_reason: "eos", "length", "stop" or "error"; "" while it is open.
        disabled: Drafters disabled for it after a fault.
        not_ready: Drafters that are not ready for it.
        max_verifiable: The longest draft that the target can verify in its next pass, in tokens.
        max_verified: The longest that it could verify in any pass of this text; 0 if nothing limits it.
        max_draft: The longest draft that its caller allows, in tokens.
        deterministic: Ask for deterministic drafts only, so that a sampled text depends on its seed alone.
        reused: Tokens of the text that the target took over from other texts, as far as it tells.
        arm: The arm of all its rounds; None lets the policy choose. The policy does not learn from them.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    rng: Random
    uniforms: Random
    last_accepted: int = -1
    rounds: int = 0
    keep: bool = False
    done: bool = False
    finish_reason: str = ""
    disabled: set[str] = field(default_factory=set)
    not_ready: frozenset[str] = frozenset()
    drawn: tuple[int, float] = (-1, 0.0)
    max_verifiable: int = ENDLESS
    max_verified: int = 0
    max_draft: int = ENDLESS
    deterministic: bool = False
    reused: int = 0
    arm: Arm | None = None

    def __repr__(self) -> str:
        state = self.finish_reason or "open"
        return f"Request({self.id}, {self.prompt_length} + {self.position} tokens, {state})"

    @property
    def position(self) -> int:
        """Number of tokens written since the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be written."""
        return self.sampling.max_new_tokens - self.position

    @property
    def max_draft_ever(self) -> int:
        """The longest draft that this text may have where it has most room, in tokens."""
        return min(
            self.max_draft, max(self.max_verifiable, self.max_verified), self.sampling.max_new_tokens - 1
        )

    def begin(self, tokens: Sequence[int], sampling: Sampling, seed: str) -> None:
        """Start an answer after `tokens`; its random numbers depend on the seed and the start position."""
        at = len(self.tokens)
        self.rng.seed(f"accept {seed} {at}")
        self.uniforms.seed(f"uniform {seed} {at}")
        self.tokens += tokens
        self.sampling, self.prompt_length, self.drawn = sampling, len(self.tokens), (-1, 0.0)
        self.done, self.finish_reason, self.rounds, self.last_accepted = False, "", 0, -1

    def uniform(self, position: int) -> float:
        """Return the uniform random number that decides the token at `position` of the output.

        It depends only on the seed and the position, so plain decoding and any picked draft use the same
        number and write the same text. Positions are requested in order; repeating a position returns the
        same number.
        """
        while self.drawn[0] < position:
            self.drawn = (self.drawn[0] + 1, self.uniforms.random())
        return self.drawn[1]

    def peek(self, position: int, n: int) -> list[float]:
        """Return what `uniform` will return for `n` positions from this one on."""
        drawn, state = self.drawn, self.uniforms.getstate()
        numbers = [self.uniform(position + k) for k in range(n)]
        self.drawn = drawn
        self.uniforms.setstate(state)
        return numbers
