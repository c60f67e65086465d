"""All other drafters at once: their drafts, merged into one tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.drafter_pool import DrafterPool
from ..core.drafts import Draft, Job
from ..core.request import Request


class TogetherDrafter:
    """Drafts what all the others of its team draft, merged so that equal prefixes are verified once.

    The baseline that MetaSD calls DraftAll. The tokens count as picked, whichever drafter made them; drafters
    that would sample are asked for their most likely tokens instead. A job of width w has room for w chains
    of its length. A drafter that fails is disabled, as it would be alone; the others continue.
    """

    def __init__(self) -> None:
        self.pool: DrafterPool | None = None
        self.parts: tuple[str, ...] = ()  # the drafters that it asks

    def join(self, team: DrafterPool) -> None:
        """Receive the team's drafters."""
        self.pool = team
        self.parts = tuple(name for name, drafter in team.drafters.items() if drafter is not self)

    def hint(self, request: Request) -> float:
        """Always ready."""
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One tree per job; if there is no room for all, earlier drafters of the team come first."""
        team, parts = self.pool, [list[Draft]() for _ in jobs]
        if team is None:
            raise ValueError("no other drafters: give this drafter to a loop, together with others")
        for name, drafter in team.drafters.items():
            which = [i for i, job in enumerate(jobs) if name not in job.request.disabled]
            if drafter is self or not which:
                continue
            drafts = team.ask(
                name, [replace(jobs[i], width=1, deterministic=True, rows=False) for i in which]
            )
            for i, draft in zip(which, drafts, strict=True):
                parts[i].append(draft)
        return [merged(drafts, job.length * job.width) for drafts, job in zip(parts, jobs, strict=True)]

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing of its own: the team shows the other drafters the text."""

    def close(self, request: Request) -> None:
        """Nothing to free."""


def merged(drafts: Iterable[Draft], most: int) -> Draft:
    """One picked draft of at most `most` nodes with every path of `drafts`, in their order."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for draft in drafts:
        own: dict[int, int] = {-1: -1}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            own[i] = nodes.setdefault((own[parent], token), len(nodes))
    nodes_left = list(nodes)[:most]  # a node comes after its parent, so the first nodes form a tree
    return Draft(tuple(token for _, token in nodes_left), tuple(parent for parent, _ in nodes_left))
