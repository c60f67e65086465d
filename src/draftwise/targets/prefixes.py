"""Beginnings that open texts have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.drafts import Draft
from ..core.request import Request
from ..models.runner import ModelRunner
from .regimes import Regimes


def longest(
    runner: ModelRunner,
    regimes: Regimes | None,
    row: int,
    tokens: Sequence[int],
    batch: Sequence[tuple[Request, Draft]],
) -> tuple[int, int]:
    """The row that holds the longest prefix of a text, and its length; `row` and 0 if none does."""
    best, most = row, 0
    for request, _ in batch:
        other = runner.request_ids.index(request.id)
        alike = min(runner.cached_lengths[other], len(tokens) - 1)
        if regimes:
            alike = min(alike, regimes.alike(request.id, runner.request_ids[row]))
        prompts = runner.prompts.get(request.id, 0), runner.prompts.get(runner.request_ids[row], 0)
        if runner.free and prompts[0] != prompts[1]:
            alike = min(alike, *prompts)
        if other != row and alike > most and request.tokens[: most + 1] == tokens[: most + 1]:
            same = next((i for i in range(alike) if request.tokens[i] != tokens[i]), alike)
            if same > most:
                best, most = other, same
    return best, most
