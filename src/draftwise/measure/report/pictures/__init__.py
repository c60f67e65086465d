"""Every picture of the report: one function each, in the order of the page."""

from __future__ import annotations

from . import drafting, learning, speed
from .learning import SIMULATED
from .picture import Missing, Picture

__all__ = ["PICTURES", "SIMULATED", "Missing", "Picture"]

PICTURES = (*speed.PICTURES, *learning.PICTURES, *drafting.PICTURES)
