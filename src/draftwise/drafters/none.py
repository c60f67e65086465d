"""The drafter without drafts: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.drafts import Draft, Job
from ..core.request import Request


class NoneDrafter:
    """No drafts: plain decoding with the target alone, one token per round.

    Source: baseline.
    """

    def hint(self, request: Request) -> float:
        """Always 0: no draft."""
        return 0.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One empty draft per job."""
        return [Draft()] * len(jobs)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing to learn from."""

    def close(self, request: Request) -> None:
        """Nothing to free."""
