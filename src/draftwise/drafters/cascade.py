"""Composite drafts: one drafter begins a draft and another continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from ..core.arms import NEVER, HandOver
from ..core.contract import first
from ..core.drafter_pool import DrafterPool
from ..core.drafts import Draft, Job
from ..core.request import Request
from ..core.roles import Continuer, Matcher
from ..errors import UserError, one_line
from ..specs import cascade_parts


class CascadeDrafter:
    """Lets one drafter of the team begin a draft and another continue it: `cascade:FIRST>SECOND`.

    FIRST drafts at most `first` tokens, or with 0 as many as it has; SECOND continues as if these had been
    written. So `cascade:zoo:general>ngram?first=2` is two tokens of a model and then a lookup that they lead
    to, and `cascade:ngram>zoo:general?first=0` a model where the lookup runs out. With `instead`, SECOND
    drafts only where FIRST has nothing: lookup, else model. Both parts are drafters of the same team, under
    the names given there (with `?`, `>` and `%` as in a URL). They draft their most likely tokens, which the
    target verifies as picked ones: the text is exact whatever the parts are. FIRST ends the draft if it ends
    before its share by a stop rule, or drafts a tree. With `match`, SECOND takes over as soon as it has a
    match of so many tokens after one that FIRST has drafted; without such a match the draft is FIRST's alone,
    drawn if the request samples.

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
        match: Annotated[int, "tokens of a match with which the second takes over; 0: it never does"] = 0,
    ) -> None:
        self.parts = cascade_parts(path)
        if len(self.parts) != 2 or not all(self.parts):
            raise UserError(f"cascade:{path}: name two drafters of the team, as cascade:zoo:general>ngram")
        if first < 0:
            raise UserError(f"cascade:{path}?first={first}: give 1 or more tokens, or 0 for all")
        if match < 0:
            raise UserError(f"cascade:{path}?match={match}: give 1 or more tokens, or 0 for never")
        if instead and match:
            raise UserError(f"cascade:{path}: give instead or match, not both")
        self.first, self.instead, self.match = 0 if instead or match else first, instead, match
        self.pool: DrafterPool | None = None

    def join(self, team: DrafterPool) -> None:
        """Receive the team's drafters.

        Raises:
            UserError: a part is not in the team, or the second cannot continue a draft.
        """
        name = f"cascade:{'>'.join(self.parts)}"
        for part in self.parts:
            if team.drafters.get(part, self) is self:
                others = ", ".join(other for other, drafter in team.drafters.items() if drafter is not self)
                raise UserError(f"{name}: there is no drafter {part!r} beside it; name two of {others}")
        if not isinstance(team.drafters[self.parts[1]], Continuer):
            raise UserError(f"{name}: {self.parts[1]} cannot continue another's draft; name ngram or suffix")
        if self.match and not isinstance(team.drafters[self.parts[1]], Matcher):
            raise UserError(f"{name}?match: {self.parts[1]} looks nothing up; name ngram or suffix")
        self.pool = team

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
            made = self._continued(second, [drafts[i].tokens for i in wanted])
            for i, more in zip(wanted, made, strict=True):
                drafts[i] = joined(drafts[i], more)
        return drafts

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing of its own: the team shows the parts the text."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

    def _team(self) -> DrafterPool:
        if self.pool is None:
            raise ValueError("no other drafters: give this drafter to a loop, together with others")
        return self.pool

    def _ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        """The first part's drafts."""
        drafts = [Draft()] * len(jobs)
        asked = [i for i, job in enumerate(jobs) if usable(name, job.request)]
        parts = [self._part(jobs[i]) for i in asked]
        for i, draft in zip(asked, self._team().ask(name, parts) if parts else (), strict=True):
            drafts[i] = self._ended(jobs[i], draft)
        return drafts

    def _part(self, job: Job) -> Job:
        """The first part's job."""
        if self.match:
            return replace(job, rows=False, until=lambda tokens: self._adds(job, tokens)[0] > 0)
        return replace(job, length=min(self.first or job.length, job.length), deterministic=True, rows=False)

    def _ended(self, job: Job, draft: Draft) -> Draft:
        """The first part as it is verified.

        Where SECOND takes over depends on the tokens before that place alone, so a draft that was drawn stays
        drawn. Elsewhere whether a draft is continued may depend on its tokens, which one that counts as drawn
        must not.
        """
        n = len(draft.tokens)
        if not self.match:
            return replace(draft, dist=None, prefix_length=n)
        for k in range(1, n + 1) if draft.is_chain else ():
            adds, match = self._adds(job, draft.tokens[:k], inside=k < n)
            if adds:
                return replace(first(draft, k), prefix_length=k, match=match)
        return replace(draft, prefix_length=n)

    def _adds(self, job: Job, written: Sequence[int], *, inside: bool = True) -> tuple[int, int]:
        """How many tokens SECOND adds after these at most, or 0, and its match there."""
        if not usable(self.parts[1], job.request):
            return 0, 0
        match = self._match(job.request, written)
        hand_overs = job.hand_overs or (HandOver(self.match, job.length),)
        found = [hand_over for hand_over in hand_overs if match >= hand_over.match]
        takes = bool(found) and (found[-1].inside or not inside)
        return (found[-1].tokens if takes else 0), match

    def _match(self, request: Request, written: Sequence[int]) -> int:
        """SECOND's match after these tokens; its fault is not that of FIRST, which asks while it drafts."""
        second: Any = self._team().drafters[self.parts[1]]
        try:
            return int(second.match_after(request, written))
        except Exception as error:
            self._team().fault(self.parts[1], request, one_line(error))
            return 0

    def _continued(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> Sequence[Draft]:
        """What SECOND adds to each draft; nothing if it fails."""
        second = self._team().drafters[self.parts[1]]
        assert isinstance(second, Continuer)  # `join` saw to it
        try:
            return second.draft_after(jobs, written)
        except Exception as error:
            for job in jobs:
                self._team().fault(self.parts[1], job.request, one_line(error))
            return [Draft()] * len(jobs)

    def _goes_on(self, job: Job, draft: Draft) -> bool:
        """Whether the second part has something to add."""
        n = len(draft.tokens)
        if n >= job.length or not usable(self.parts[1], job.request) or not draft.is_chain:
            return False
        if self.instead:
            return not n
        if self.match:
            return draft.match > 0
        return not self.first or n >= self.first

    def _rest(self, job: Job, draft: Draft) -> Job:
        """The second part's job: what is left of the length, with the stop rules of those places if any."""
        n = len(draft.tokens)
        stops = (NEVER,) if self.match else job.stops[min(n, len(job.stops) - 1) :]
        most = self._adds(job, draft.tokens, inside=False)[0] if self.match else job.length
        return replace(job, length=min(job.length - n, most), stops=stops, deterministic=True, rows=False)


def usable(name: str, request: Request) -> bool:
    """Whether a part may draft for this request now."""
    return name not in request.disabled and name not in request.not_ready


def joined(begin: Draft, more: Draft) -> Draft:
    """One chain of both; signals and probabilities where both have them for every token.

    What follows tokens that were drawn is certain once these are known: so it is drawn with probability 1.
    """
    if not more.tokens:
        return begin
    if not begin.tokens:
        return more
    n = len(begin.tokens) + len(more.tokens)
    dist = None
    signals, probs = begin.signals + more.signals, begin.probs + more.probs
    if begin.dist is not None:
        dist = [*begin.dist, *(_certain(begin.dist[0], token) for token in more.tokens)]
        probs = begin.probs + (1.0,) * len(more.tokens)
    return Draft.chain(
        begin.tokens + more.tokens,
        probs=probs if len(probs) == n else (),
        dist=dist,
        signals=signals if len(signals) == n else (),
        prefix_length=len(begin.tokens),
        match=begin.match,
    )


def _certain(row: Any, token: int) -> Any:
    """The distribution in which one token is certain, like another one."""
    sure = row * 0
    sure[token] = 1
    return sure
