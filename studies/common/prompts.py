"""Prompts of Spec-Bench, evenly from all its categories."""

from __future__ import annotations

from draftwise.data import spec_bench


def spread(count: int, *, start: int = 0) -> list[str]:
    """The texts of `count` prompts at even distances, from the one numbered `start`."""
    every = [prompt.text for prompt in spec_bench()]
    return every[start :: max(1, len(every) // count)][:count]
