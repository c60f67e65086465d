"""A simulator of texts and drafters with given acceptance probabilities: numbers only, a million rounds in
seconds.
"""

from __future__ import annotations

from .play import ByLastReward, Run, play, simulate
from .text import Acceptance, Runs, SimArm, Stationary, Switching, Text, by_rate, by_reward

__all__ = [
    "Acceptance",
    "ByLastReward",
    "Run",
    "Runs",
    "SimArm",
    "Stationary",
    "Switching",
    "Text",
    "by_rate",
    "by_reward",
    "play",
    "simulate",
]
