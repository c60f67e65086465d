"""The nouns every module shares. Standard library only: no torch, no numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from random import Random
from typing import Any

from .sampling import Sampling as Sampling


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop rule and its number: draft on, or let the target look?

    The token that triggered the rule stays in the draft, which is what keeps early stopping lossless.
    `rule` is a name of `draftwise.core.stops`; `threshold` is in that rule's own units. `scorer` is the
    classifier that a learned rule asks (`draftwise.policies.classifiers.stopping`), told apart by identity.
    No rule fires before the draft has `shortest` tokens.
    """

    rule: str = "never"
    threshold: float = 0.0
    scorer: Any = None
    shortest: int = 1


NEVER = Stop()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a round: who drafts, at most how many tokens, and when to stop early.

    `stop` is one rule for the whole draft, or one per draft position. `length` 0 is plain decoding.
    """

    drafter: str
    length: int
    width: int = 1
    stop: Stop | tuple[Stop, ...] = NEVER

    @property
    def stops(self) -> tuple[Stop, ...]:
        """The stop rules, one per draft position, the last for all later ones."""
        return self.stop if isinstance(self.stop, tuple) else (self.stop,)

    @property
    def name(self) -> str:
        """A short label, unique among arms that differ: `ngram:5`, `zoo:code:4~svip(0.6)`."""
        if self.length == 0:
            return "none"
        rules = ",".join(f"{s.rule}({s.threshold:g})" for s in self.stops if s.rule != "never")
        wide = f"x{self.width}" if self.width > 1 else ""
        return f"{self.drafter}:{self.length}{wide}" + (f"~{rules}" if rules else "")


@dataclass(frozen=True, slots=True)
class Context:
    """All a policy may look at before a round: numbers only.

    `position` counts the tokens written, `length` those of the prompt as well; `last_accepted` is -1 before
    the first round, `hints` holds one cheap score per drafter (0 = nothing to offer), `unavailable` names
    those that are out of use here.
    """

    request: int = 0
    batch_size: int = 1
    position: int = 0
    last_accepted: int = -1
    hints: Mapping[str, float] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()
    length: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen arm, the probability it was chosen with, and the stop rules as they stood then.

    `stops` has one rule per draft position, the last for all later ones. Late feedback needs this propensity.
    """

    arm: int
    propensity: float = 1.0
    stops: tuple[Stop, ...] = (NEVER,)


@dataclass(frozen=True, slots=True)
class Signals:
    """What stop rules and diagnostics see of one draft position: the raw softmax at temperature 1.

    `entropy` is in nats; `chosen` is the probability of the token that was drafted. Only where a rule reads
    them: `place` counts the output's tokens before the drafted one, `top` holds the largest probabilities, at
    most ten, in falling order, and `hidden` the state that the row was computed from, a vector.
    """

    top1: float
    top2: float
    entropy: float
    chosen: float
    place: int = 0
    top: tuple[float, ...] = ()
    hidden: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens as a tree; parent -1 is the last committed token, and a chain is a thin tree.

    `dist` is an opaque handle to the distributions that the tokens were *sampled* from, one per node,
    and `probs` each token's probability there; a node then has at most one child. `dist` None means that
    the tokens were *picked* (looked up, greedy, top-k): any choice among them is lossless. `rows`, where the
    job asked for them, are the drafter's raw logits that each token came from, one row each.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    dist: Any = None
    signals: tuple[Signals, ...] = ()
    rows: Any = None

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        probs: Sequence[float] = (),
        dist: Any = None,
        signals: Sequence[Signals] = (),
        rows: Any = None,
    ) -> Draft:
        """A draft in which every token follows the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(probs), dist, tuple(signals), rows)

    @property
    def is_chain(self) -> bool:
        """True when every node follows the one before it."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))


NOTHING = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes from the root down, and the target's own token after them.

    The token is `NOTHING` where the last of these nodes ends the text.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a round: of drafting for this request, and of the whole target pass, which read
    `pass_tokens` tokens of `requests` requests together."""

    draft: float
    target: float
    pass_tokens: int
    requests: int = 1

    def share(self, tokens: int) -> float:
        """The seconds of the pass for `tokens` of its tokens: it is charged by what each request put in."""
        return self.target * tokens / self.pass_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm did in one round, and in how many `seconds` of drafting and its share of the target pass.

    NaN where the round also read the prompt, so that its time says nothing about the arm; `spent`, which has
    them apart, is then missing. `overlaps` has 1 - TV between the raw laws (temperature 1) of target and
    drafter for each position of the draft (`accept.block`: of a tree, one path), nothing unless the
    recorder reads it. `censored` rounds say nothing about their arm.
    """

    arm: int
    accepted: int
    drafted: int
    seconds: float = nan
    censored: bool = False
    reward: float = 0.0
    overlaps: tuple[float, ...] = ()
    signals: tuple[Signals, ...] = ()
    spent: Spent | None = None

    def rewarded(self, reward: float) -> Outcome:
        """The same with its reward; many times faster than `dataclasses.replace`, once a round."""
        return Outcome(
            self.arm,
            self.accepted,
            self.drafted,
            self.seconds,
            self.censored,
            reward,
            self.overlaps,
            self.signals,
            self.spent,
        )

    @property
    def overlap(self) -> float:
        """The mean of `overlaps`; NaN where there are none."""
        return sum(self.overlaps) / len(self.overlaps) if self.overlaps else nan


@dataclass(frozen=True, slots=True)
class Window:
    """What a text says of one draft that began where a round began: its drafter, the context it was in, and
    the chance that each of its tokens was accepted, up to the last that is known."""

    drafter: int
    context: int
    accepts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grade:
    """How well a drafter knew one committed token x, had it drafted there.

    `accept` is min(1, q(x) / p(x)), the chance that its draft was accepted given that the text went on with
    x; `overlap` is sum_v min(p(v), q(v)) = 1 - TV, the same before x was known (NaN where the target's row is
    gone). A drafter that picks d has q = 1 at d. Laws are those that are decoded from, not the raw ones.
    `deeper`, for a drafter that knows less of a token the more of its own draft stands before it, has the
    same two numbers for drafts in which 1, 2, ... tokens do, the last for all longer ones.
    """

    accept: float
    overlap: float = nan
    signals: Signals | None = None
    deeper: tuple[tuple[float, float], ...] = ()

    def at(self, place: int) -> tuple[float, float]:
        """`accept` and `overlap` where `place` tokens of the same draft stand before this one."""
        if place and self.deeper:
            return self.deeper[min(place, len(self.deeper)) - 1]
        return self.accept, self.overlap


@dataclass(frozen=True, slots=True)
class Feedback:
    """What came of a decision: the outcome of the arm that ran, or `losses` in [0, 1] of all arms on the
    committed text (full information; None for an arm that was asleep), or `windows` of drafts that were held
    against it. With none of them, the round said nothing and only leaves the count of decisions in flight."""

    request: int
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()
    losses: tuple[float | None, ...] = ()
    windows: tuple[Window, ...] = ()


@dataclass(slots=True, eq=False)
class Request:
    """One text in progress. The loop is its only writer."""

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
    out: set[str] = field(default_factory=set)
    waits: frozenset[str] = frozenset()
    drawn: tuple[int, float] = (-1, 0.0)
    reach: int = 1 << 30  # the longest draft that the target can verify in its next pass

    @property
    def position(self) -> int:
        """Tokens written since the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self.sampling.max_new_tokens - self.position

    def begin(self, tokens: Sequence[int], sampling: Sampling, seed: str) -> None:
        """Start an answer after `tokens`; its random numbers depend on the seed and on where it starts."""
        at = len(self.tokens)
        self.rng.seed(f"accept {seed} {at}")
        self.uniforms.seed(f"uniform {seed} {at}")
        self.tokens += tokens
        self.sampling, self.prompt_length, self.drawn = sampling, len(self.tokens), (-1, 0.0)
        self.done, self.finish_reason, self.rounds, self.last_accepted = False, "", 0, -1

    def uniform(self, position: int) -> float:
        """The uniform number that decides the token at `position` of the output.

        It depends on the seed and the position alone, so plain decoding and any picked draft share it
        and write the same text. Positions are asked in order; asking one again gives the same number.
        """
        while self.drawn[0] < position:
            self.drawn = (self.drawn[0] + 1, self.uniforms.random())
        return self.drawn[1]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time of one request's round went, in seconds."""

    choose: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    grade: float = 0.0
    learn: float = 0.0

    @property
    def total(self) -> float:
        """All phases together."""
        return self.choose + self.draft + self.verify + self.accept + self.grade + self.learn


@dataclass(frozen=True, slots=True)
class Round:
    """One record per request and round: text, metrics, traces and plots read only these.

    `drafted` and `accepted` count before the text is cut at its end, as the policy learnt them; `tokens`
    is what was committed, drafted tokens first, the target's own last (unless cut). `sources` is the number
    of committed tokens that the drafter guessed. `fault` says in one line what went wrong; the text is right
    all the same, unless there is an `error`, which ended the request: its text stays as it was before.
    """

    request: int
    decision: Decision
    arm: Arm
    drafted: int
    accepted: int
    tokens: tuple[int, ...]
    sources: int
    seconds: Seconds
    done: bool
    finish_reason: str = ""
    fault: str = ""
    logprobs: tuple[float, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One draft to make: at most `length` tokens for `request`, stopping by `stops`.

    `rows` asks a drafter that has laws to keep its raw logits in the draft, `picked` for its likeliest tokens
    even where the request samples.
    """

    request: Request
    length: int
    stops: tuple[Stop, ...] = (NEVER,)
    width: int = 1
    rows: bool = False
    picked: bool = False

    def stop_at(self, position: int) -> Stop:
        """The rule for draft position `position`, counted from 0."""
        return self.stops[min(position, len(self.stops) - 1)]
