"""Learners on simulated texts: their choices, cost, and regret."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...policies.learners.learner import FullInformation, Learner
from ...policies.learners.linucb import LinUCB
from ...policies.recorders.bandit import accepted as accepted_share
from ...state.learned import LEARNED, fresh
from .text import Acceptance, SimArm, Text, Worth, by_reward


@dataclass(frozen=True, slots=True)
class Run:
    """The course of a learner on one or more texts.

    `played` and `accepted` have one number per round, `fixed` the rounds that each arm alone would have
    needed for the same texts. The last round of a text may be cut; `accepted` counts before that.
    """

    arms: tuple[SimArm, ...]
    played: NDArray[np.uint8]
    accepted: NDArray[np.uint8]
    fixed: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.played)

    @property
    def pulls(self) -> list[int]:
        """Number of rounds of each arm."""
        return [int(n) for n in np.bincount(self.played, minlength=len(self.arms))]

    @property
    def switches(self) -> int:
        """Number of rounds whose arm differs from that of the previous round."""
        return int(np.count_nonzero(self.played[1:] != self.played[:-1]))

    @property
    def seconds(self) -> float:
        """Drafting and target passes together."""
        return sum(n * arm.seconds for n, arm in zip(self.pulls, self.arms, strict=True))

    @property
    def regret(self) -> int:
        """Stopping-time regret: rounds minus those of the best fixed arm in hindsight.

        The measure of BanditSpec (arXiv 2505.15141), section 3, and MetaSD (arXiv 2604.05417). For the regret
        in expectation take the mean of `rounds` and of `fixed` over runs before the minimum.
        """
        return self.rounds - min(self.fixed)

    @property
    def seconds_regret(self) -> float:
        """Seconds minus those of the fastest fixed arm in hindsight."""
        return self.seconds - min(n * arm.seconds for n, arm in zip(self.fixed, self.arms, strict=True))


def simulate(
    learner: Learner | FullInformation,
    acceptance: Acceptance,
    arms: Sequence[SimArm],
    tokens: Sequence[int],
    *,
    rng: Random,
    keep: bool = True,
    delay: int = 0,
    worth: Worth | None = None,
) -> Run:
    """Play a learner on one text for each length in `tokens`; without `keep` each text has a new learner.

    `delay` and `worth` are those of `play`.
    """
    runs = []
    for query, length in enumerate(tokens):
        text = Text.draw(acceptance, arms, length, rng=rng, query=query)
        runs.append(play(learner if keep else fresh(learner), text, rng=rng, delay=delay, worth=worth))
    played, accepted = (np.concatenate([getattr(r, name) for r in runs]) for name in ("played", "accepted"))
    fixed = tuple(sum(column) for column in zip(*(run.fixed for run in runs), strict=True))
    return Run(tuple(arms), played, accepted, fixed)


def play(
    learner: Learner | FullInformation,
    text: Text,
    *,
    rng: Random,
    delay: int = 0,
    worth: Worth | None = None,
) -> Run:
    """Play a learner on one text, from its first token to its last.

    The feedback of a round arrives after `delay` further choices (a batch of b requests waits up to b - 1),
    the rest when the text ends. A bandit's reward is `worth[arm][accepted]`, by default accepted tokens over
    the longest draft. Full information ignores `worth`: see `_play_full_information`.
    """
    if learner.arms != len(text.arms):
        raise UserError(f"a learner of {learner.arms} arms on a text of {len(text.arms)}: give it as many")
    if learner.arms > 256:
        raise UserError(f"{learner.arms} arms: a run keeps one byte a round, give 256 at most")
    if hasattr(learner, "learn_all"):
        played, accepted = _play_full_information(cast(FullInformation, learner), text, rng, delay)
    else:
        worth = worth or by_reward(text.arms, accepted_share)
        played, accepted = _play_bandit(learner, text, rng, delay, worth)
    fixed = tuple(text.rounds(arm) for arm in range(learner.arms))
    return Run(text.arms, np.frombuffer(played, np.uint8), np.frombuffer(accepted, np.uint8), fixed)


def _play_bandit(
    learner: Learner, text: Text, rng: Random, delay: int, worth: Worth
) -> tuple[bytearray, bytearray]:
    choose, update, reach, end = learner.choose, learner.update, text.accepted, text.tokens
    everyone, at = range(learner.arms), 0
    played, accepted = bytearray(), bytearray()
    late: deque[tuple[int, float, float]] = deque()
    while at < end:
        arm, chance = choose(everyone, rng)
        n = reach[arm][at]
        at += n + 1
        played.append(arm)
        accepted.append(n)
        late.append((arm, worth[arm][n], chance))
        if len(late) > delay:
            update(*late.popleft())
    for feedback in late:
        update(*feedback)
    return played, accepted


def _play_full_information(
    learner: FullInformation, text: Text, rng: Random, delay: int
) -> tuple[bytearray, bytearray]:
    """An arm's loss in a round is the time of those of its own rounds that end in the tokens just written.

    Over the text this sums to the arm's own seconds, up to the round cut at the end. It is scaled into [0, 1]
    by its maximum: the longest chunk as rounds of one token by the slowest arm.
    """
    choose, learn_all, reach, end = learner.choose, learner.learn_all, text.accepted, text.tokens
    seconds = np.array([arm.seconds for arm in text.arms])
    scale = seconds / seconds.max() / (1 + max(arm.length for arm in text.arms))
    # counts modulo 256: a difference over at most 251 tokens is correct
    ended = np.zeros((end + 1, learner.arms), dtype=np.uint8)
    np.cumsum(text.ends.T, axis=0, dtype=np.uint8, out=ended[1:])
    everyone, at = range(learner.arms), 0
    played, accepted = bytearray(), bytearray()
    late: deque[list[float]] = deque()
    while at < end:
        arm, _ = choose(everyone, rng)
        n = reach[arm][at]
        start, at = at, min(at + n + 1, end)
        played.append(arm)
        accepted.append(n)
        late.append(((ended[at] - ended[start]) * scale).tolist())
        if len(late) > delay:
            learn_all(late.popleft())
    for losses in late:
        learn_all(losses)
    return played, accepted


@dataclass(slots=True)
class ByLastReward:
    """LinUCB on a constant and the latest reward, as a learner like any other.

    The context of a real round has more features; in a simulated text the latest reward is what distinguishes
    easy text from hard. Feedback must come in the order of the choices.
    """

    arms: int
    strength: float = field(default=0.5, kw_only=True)
    last: float = field(default=0.0, kw_only=True, metadata=LEARNED)
    linucb: LinUCB = field(init=False, metadata=LEARNED)
    seen: deque[tuple[float, float]] = field(init=False, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.linucb = LinUCB(self.arms, 2, strength=self.strength)
        self.seen = deque()

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        self.seen.append((1.0, self.last))
        return self.linucb.choose(allowed, rng, self.seen[-1])

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.last = reward
        self.linucb.update(arm, reward, propensity, self.seen.popleft())

    def abort(self, arm: int) -> None:
        self.seen.popleft()
        self.linucb.abort(arm)

    def estimates(self) -> list[float]:
        return self.linucb.estimates()
