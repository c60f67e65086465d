"""Composite drafts: one drafter begins a draft and another continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from ..core.arms import NEVER
from ..core.drafts import Draft, Job
from ..core.request import Request
from ..core.roles import Continuer
from ..core.team import Team
from ..errors import UserError


class RelayDrafter:
    """Lets one drafter of the team begin a draft and another continue it: `relay:FIRST>SECOND`.

    FIRST drafts at most `first` tokens, or with 0 as many as it has; SECOND continues as if these had been
    written. So `relay:zoo:general>ngram?first=2` is two tokens of a model and then a lookup that they lead
    to, and `relay:ngram>zoo:general?first=0` a model where the lookup runs out. With `instead`, SECOND drafts
    only where FIRST has nothing: lookup, else model. Both parts are drafters of the same team, under the
    names given there. They draft their most likely tokens, which the target verifies as picked ones: the
    text is exact whatever the parts are. FIRST ends the draft if it ends before its share by a stop rule, or
    drafts a tree. With `rest`, FIRST drafts until a stop rule ends it, and SECOND, which no rule stops, adds
    what is left of the length.

    Source: model first, lookup after it: Cascade speculative drafting (arXiv 2312.11462).

    Raises:
        UserError: the parts are not written as FIRST>SECOND, `first` is below 0, or options exclude each
            other.
    """

    def __init__(
        self,
        path: str = "",
        *,
        first: Annotated[int, "tokens of the first drafter at most; 0: all that it has"] = 1,
        instead: Annotated[bool, "the second drafts only where the first has nothing"] = False,
        rest: Annotated[bool, "a stop rule ends the first alone; the second adds what is left"] = False,
    ) -> None:
        self.parts = tuple(part.strip() for part in path.split(">"))
        if len(self.parts) != 2 or not all(self.parts):
            raise UserError(f"relay:{path}: name two drafters of the team, as relay:zoo:general>ngram")
        if first < 0:
            raise UserError(f"relay:{path}?first={first}: give 1 or more tokens, or 0 for all")
        if instead and rest:
            raise UserError(f"relay:{path}: give instead or rest, not both")
        self.first, self.instead, self.rest = 0 if instead or rest else first, instead, rest
        self.team: Team | None = None

    def join(self, team: Team) -> None:
        """Receive the team's drafters.

        Raises:
            UserError: a part is not in the team, or the second cannot continue a draft.
        """
        name = f"relay:{'>'.join(self.parts)}"
        for part in self.parts:
            if team.drafters.get(part, self) is self:
                others = ", ".join(other for other, drafter in team.drafters.items() if drafter is not self)
                raise UserError(f"{name}: there is no drafter {part!r} beside it; name two of {others}")
        if not isinstance(team.drafters[self.parts[1]], Continuer):
            raise UserError(f"{name}: {self.parts[1]} cannot continue another's draft; name ngram or suffix")
        self.team = team

    def hint(self, request: Request) -> float:
        """The first part's own."""
        return self._team().drafters[self.parts[0]].hint(request)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job; a part that is out of use for a request adds nothing."""
        drafts = self._ask(self.parts[0], jobs)
        wanted = [
            i for i, (job, draft) in enumerate(zip(jobs, drafts, strict=True)) if self._goes_on(job, draft)
        ]
        second = [self._rest(jobs[i], drafts[i]) for i in wanted]
        if second:
            continuer = self._team().drafters[self.parts[1]]
            assert isinstance(continuer, Continuer)  # `join` saw to it
            made = continuer.draft_after(second, [drafts[i].tokens for i in wanted])
            for i, more in zip(wanted, made, strict=True):
                drafts[i] = joined(drafts[i], more)
        return drafts

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing of its own: the team shows the parts the text."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

    def _team(self) -> Team:
        if self.team is None:
            raise ValueError("no other drafters: give this drafter to a loop, together with others")
        return self.team

    def _ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        """The first part's drafts."""
        drafts = [Draft()] * len(jobs)
        asked = [i for i, job in enumerate(jobs) if usable(name, job.request)]
        parts = [
            replace(
                jobs[i], length=min(self.first or jobs[i].length, jobs[i].length), picked=True, rows=False
            )
            for i in asked
        ]
        for i, draft in zip(asked, self._team().ask(name, parts) if parts else (), strict=True):
            # Whether a draft is continued may depend on its tokens, which one that counts as drawn must not.
            drafts[i] = replace(draft, dist=None)
        return drafts

    def _goes_on(self, job: Job, draft: Draft) -> bool:
        """Whether the second part has something to add."""
        n = len(draft.tokens)
        if n >= job.length or not usable(self.parts[1], job.request) or not draft.is_chain:
            return False
        if self.instead:
            return not n
        return self.rest or not self.first or n >= self.first

    def _rest(self, job: Job, draft: Draft) -> Job:
        """The second part's job: what is left of the length, with the stop rules of those places if any."""
        n = len(draft.tokens)
        stops = (NEVER,) if self.rest else job.stops[min(n, len(job.stops) - 1) :]
        return replace(job, length=job.length - n, stops=stops, picked=True, rows=False)


def usable(name: str, request: Request) -> bool:
    """Whether a part may draft for this request now."""
    return name not in request.out and name not in request.waits


def joined(begin: Draft, more: Draft) -> Draft:
    """One picked chain of both; signals and probabilities where both have them for every token."""
    if not more.tokens:
        return begin
    if not begin.tokens:
        return more
    signals, probs = begin.signals + more.signals, begin.probs + more.probs
    n = len(begin.tokens) + len(more.tokens)
    return Draft.chain(
        begin.tokens + more.tokens,
        probs=probs if len(probs) == n else (),
        signals=signals if len(signals) == n else (),
    )
