"""UCB1 and its variants: the mean reward plus a bonus for what has been tried less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf, log, sqrt
from random import Random

from ...state.learned import LEARNED, adds, fades, learned
from .learner import InFlight


@dataclass(slots=True)
class UCB1(InFlight):
    """Each arm once, then the highest mean + strength * sqrt(2 ln t / n).

    Auer, Cesa-Bianchi and Fischer 2002, Figure 1 (strength 1; t is the number of plays so far). MetaSD
    (arXiv 2604.05417) publishes the same index with a strength beta of 0.01, TapOut (arXiv 2511.02017)
    with 1. Pulls in flight count in t and n. An arm whose first reward is still out is rated by the mean
    over all arms, so it does not get a whole batch. TapOut's t counts the round that is chosen, too: `ahead`
    1.
    """

    arms: int
    _: KW_ONLY
    strength: float = 1.0
    ahead: int = 0
    pulls: list[float] = field(default_factory=list, metadata=learned(adds))
    sums: list[float] = field(default_factory=list, metadata=learned(adds))
    flight: list[int] = field(default_factory=list, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.pulls = self.pulls or [0.0] * self.arms
        self.sums = self.sums or [0.0] * self.arms
        self.flight = self.flight or [0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        arm = self._best(allowed)
        self.flight[arm] += 1
        return arm, 1.0

    def _best(self, allowed: Sequence[int]) -> int:
        pulls, sums, flight, bonus = self.pulls, self.sums, self.flight, self.bonus
        t = self.rounds()
        if not t:
            return allowed[0]
        log_t = log(t)
        best, top = allowed[0], -inf
        for arm in allowed:
            seen = pulls[arm]
            n = seen + flight[arm]
            if not n:
                return arm
            mean = sums[arm] / seen if seen else sum(sums) / (sum(pulls) or 1.0)
            index = mean + bonus(arm, n, log_t)
            if index > top:
                best, top = arm, index
        return best

    def rounds(self) -> float:
        """Return t, the rounds so far."""
        return sum(self.pulls) + sum(self.flight) + self.ahead

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        """Return what `arm` gets on top of its mean after n of t pulls, those in flight included."""
        return self.strength * sqrt(2.0 * log_t / n)

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.abort(arm)
        self.pulls[arm] += 1.0
        self.sums[arm] += reward

    def estimates(self) -> list[float]:
        return [total / n if n else 0.0 for total, n in zip(self.sums, self.pulls, strict=True)]


@dataclass(slots=True)
class UCBTuned(UCB1):
    """UCB1 with the bonus strength * sqrt(ln t / n * min(1/4, V)), V = variance + sqrt(2 ln t / n).

    Auer, Cesa-Bianchi and Fischer 2002, section 4; 1/4 is the largest variance of a reward in [0, 1].
    """

    squares: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        # not super(): a dataclass with slots is a second class, which super() without arguments misses
        UCB1.__post_init__(self)
        self.squares = self.squares or [0.0] * self.arms

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        seen = self.pulls[arm]
        if not seen:
            return self.strength * sqrt(0.25 * log_t / n)
        mean = self.sums[arm] / seen
        variance = self.squares[arm] / seen - mean * mean + sqrt(2.0 * log_t / n)
        return self.strength * sqrt(log_t / n * min(0.25, variance))

    def update(self, arm: int, reward: float, propensity: float) -> None:
        UCB1.update(self, arm, reward, propensity)
        self.squares[arm] += reward * reward


@dataclass(slots=True)
class UCBSpec(UCB1):
    """Each arm once, then the highest mean + radius.

    BanditSpec (arXiv 2505.15141), section 4: for chunk lengths Y in [1, L + 1] the radius is
    L/2 * sqrt((1 + n) / n^2 * (1 + 2 ln(K t^2 sqrt(1 + n) / delta))). The reward here is (Y - 1) / L, so
    L cancels. Delta is 1/2, as in the proof of its Theorem 4.3; the paper names no other value. The
    radius explores almost uniformly at the length of one request: `strength` scales it down. The code
    released with the paper runs another rule (one bonus for all arms, which is greedy); this is the paper's.
    """

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        inside = log(self.arms / 0.5) + 2.0 * log_t + 0.5 * log(1.0 + n)
        return 0.5 * self.strength * sqrt((1.0 + n) * (1.0 + 2.0 * inside)) / n


@dataclass(slots=True)
class DiscountedUCB(UCB1):
    """UCB1 in which every reward and count shrinks by `discount` with each new reward.

    The index of Garivier and Moulines 2008: rewards, counts and t are discounted (their xi = 1/2 is strength
    1). MetaSD (arXiv 2604.05417), Algorithm 6, discounts the rewards alone, which pulls the mean of an old
    arm to 0: `printed`. No discount is published; 0.98 remembers about 50 rounds. Pulls in flight are not
    discounted.
    """

    discount: float = 0.98
    printed: bool = False
    pulls: list[float] = field(default_factory=list, metadata=learned(fades))
    sums: list[float] = field(default_factory=list, metadata=learned(fades))

    def update(self, arm: int, reward: float, propensity: float) -> None:
        if not self.printed:
            self.pulls = [n * self.discount for n in self.pulls]
        self.sums = [total * self.discount for total in self.sums]
        UCB1.update(self, arm, reward, propensity)


@dataclass(slots=True)
class SlidingWindowUCB(UCB1):
    """UCB1 on the last `window` rewards: mean, n and t = min(t, window) all count these alone.

    The index of Garivier and Moulines 2008. MetaSD (arXiv 2604.05417), Algorithm 8, has ln t of all rounds:
    `printed`. No window is published; 100 is the middle of the 50 to 200 that fit one request. An arm that
    has left the window is untried again.
    """

    window: int = 100
    printed: bool = False
    plays: float = field(default=0.0, metadata=learned(adds))
    recent_arms: list[int] = field(default_factory=list, metadata=LEARNED)
    recent_rewards: list[float] = field(default_factory=list, metadata=LEARNED)
    oldest: int = field(default=0, metadata=LEARNED)

    def rounds(self) -> float:
        return self.plays + sum(self.flight) if self.printed else UCB1.rounds(self)

    def update(self, arm: int, reward: float, propensity: float) -> None:
        UCB1.update(self, arm, reward, propensity)
        self.plays += 1.0
        if len(self.recent_arms) < self.window:
            self.recent_arms.append(arm)
            self.recent_rewards.append(reward)
            return
        at = self.oldest
        self._forget(self.recent_arms[at], self.recent_rewards[at])
        self.recent_arms[at], self.recent_rewards[at] = arm, reward
        self.oldest = (at + 1) % self.window

    def _forget(self, arm: int, reward: float) -> None:
        self.pulls[arm] -= 1.0
        # an empty sum is exactly 0, or rounding errors would pile up over a long run
        self.sums[arm] = self.sums[arm] - reward if self.pulls[arm] else 0.0
