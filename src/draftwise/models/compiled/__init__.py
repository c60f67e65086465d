"""Compiled forward passes: one TorchInductor graph of a model for every batch, width and length.

The graph has dynamic shapes, so nothing is padded, and no weights: it reads those of the loaded model, packed
ones too. A process of its own makes it while eager passes serve; it is kept on disk, and used only if its
logits agree with the eager ones and it is faster on this machine.
"""

from __future__ import annotations

from .passes import MODES, Passes, checked, compile_part, compile_rows, states

__all__ = ["MODES", "Passes", "checked", "compile_part", "compile_rows", "states"]
