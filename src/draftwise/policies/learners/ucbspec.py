"""UCBSpec: BanditSpec's confidence radius for accepted lengths."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

from .ucb import UCB1


@dataclass(slots=True)
class UCBSpec(UCB1):
    """Each arm once, then the highest mean + radius.

    BanditSpec (arXiv 2505.15141), section 4: for chunk lengths Y in [1, L + 1] the radius is
    L/2 * sqrt((1 + n) / n^2 * (1 + 2 ln(K t^2 sqrt(1 + n) / delta))). The reward here is (Y - 1) / L, so
    L cancels. Delta is 1/2, as in the proof of its Theorem 4.3; the paper names no other value. The
    radius explores almost uniformly at the length of one request: `strength` scales it down. The code
    released with the paper runs another rule (one bonus for all arms, which is greedy); this is the paper's.
    """

    delta: float = 0.5

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        inside = log(self.arms / self.delta) + 2.0 * log_t + 0.5 * log(1.0 + n)
        return 0.5 * self.strength * sqrt((1.0 + n) * (1.0 + 2.0 * inside)) / n
