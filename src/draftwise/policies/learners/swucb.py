"""Sliding-window UCB: UCB1 over the last rounds only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...state.learned import LEARNED
from .ucb import UCB1


@dataclass(slots=True)
class SlidingWindowUCB(UCB1):
    """UCB1 on the last `window` rewards: mean, n and t = min(t, window) all count these alone.

    MetaSD (arXiv 2604.05417), Algorithm 8, after Garivier and Moulines 2008. No window is published; 100 is
    the middle of the 50 to 200 that fit one request. An arm that has left the window is untried again.
    """

    window: int = 100
    recent_arms: list[int] = field(default_factory=list, metadata=LEARNED)
    recent_rewards: list[float] = field(default_factory=list, metadata=LEARNED)
    oldest: int = field(default=0, metadata=LEARNED)

    def update(self, arm: int, reward: float, propensity: float) -> None:
        UCB1.update(self, arm, reward, propensity)
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
