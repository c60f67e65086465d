"""A simulator of texts and drafters with given acceptance probabilities: numbers only, a million rounds in
seconds.
"""

from __future__ import annotations

from .acceptance import Acceptance, Runs, Stationary, Switching, Written, punish
from .play import ByLastReward, Run, play, simulate
from .text import SimArm, Text, by_rate, by_reward

__all__ = [
    "Acceptance",
    "ByLastReward",
    "Run",
    "Runs",
    "SimArm",
    "Stationary",
    "Switching",
    "Text",
    "Written",
    "by_rate",
    "by_reward",
    "play",
    "punish",
    "simulate",
]
