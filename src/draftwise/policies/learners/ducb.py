"""Discounted UCB: UCB1 that forgets slowly."""

from __future__ import annotations

from dataclasses import dataclass

from .ucb import UCB1


@dataclass(slots=True)
class DiscountedUCB(UCB1):
    """UCB1 in which every reward and count shrinks by `discount` with each new reward.

    MetaSD (arXiv 2604.05417), Algorithm 6, divides the discounted rewards by the count that is *not*
    discounted, which pulls the mean of an old arm to 0; this is the index of Garivier and Moulines 2008,
    with both discounted and t the discounted number of plays (their xi = 1/2 is strength 1). No discount
    is published; 0.98 remembers about 50 rounds. Pulls in flight are not discounted.
    """

    discount: float = 0.98

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.pulls = [n * self.discount for n in self.pulls]
        self.sums = [total * self.discount for total in self.sums]
        UCB1.update(self, arm, reward, propensity)
