"""Composite drafts: one drafter continues the draft of another, or all draft at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from ..core.arms import NEVER, HandOver
from ..core.contract import first
from ..core.drafter_pool import DrafterPool
from ..core.drafts import Draft, Job
from ..core.request import Request
from ..core.roles import Continuer, Drafter, Matcher
from ..errors import UserError, one_line
from ..registry import Within
from ..specs import cascade_parts

T = TypeVar("T")


class CompositeDrafter(Drafter):
    """A drafter that asks others of its team, which see the text and are closed by themselves."""

    pool: DrafterPool | None = None

    def join(self, team: DrafterPool) -> None:
        """Receive the team's drafters."""
        self.pool = team

    def _team(self) -> DrafterPool:
        if self.pool is None:
            raise ValueError("no other drafters: give this drafter to a loop, together with others")
        return self.pool


class CascadeDrafter(CompositeDrafter):
    """Lets one drafter of the team begin a draft and another continue it: `cascade:FIRST>SECOND`.

    FIRST drafts at most `first` tokens, or with 0 as many as it has; SECOND continues as if these had been
    written. So `cascade:zoo:general>ngram?first=2` is two tokens of a model and then a lookup that they lead
    to, and `cascade:ngram>zoo:general?first=0` a model where the lookup runs out. With `instead`, SECOND
    drafts only where FIRST has nothing: lookup, else model. Both parts are drafters of the same team, under
    the names given there (with `?`, `>` and `%` as in a URL). They draft their most likely tokens, as
    deterministic drafts: the text is exact whatever the parts are. FIRST ends the draft if it ends before its
    share by a stop rule, or drafts a tree. With `match`, SECOND takes over as soon as it has a match
    of so many tokens after one that FIRST has drafted; without such a match the draft is FIRST's alone,
    sampled if the request samples.

    Source: model first, lookup after it: Cascade speculative drafting (arXiv 2312.11462).

    Raises:
        UserError: the parts are not written as FIRST>SECOND, or options exclude each other.
    """

    def __init__(
        self,
        path: str = "",
        *,
        first: Annotated[int, "tokens of the first drafter at most; 0: all that it has", Within(0)] = 1,
        instead: Annotated[bool, "the second drafts only where the first has nothing"] = False,
        match: Annotated[
            int, "tokens of a match with which the second takes over; 0: it never does", Within(0)
        ] = 0,
    ) -> None:
        self.parts = cascade_parts(path)
        if len(self.parts) != 2 or not all(self.parts):
            raise UserError(f"cascade:{path}: name two drafters of the team, as cascade:zoo:general>ngram")
        if instead and match:
            raise UserError(f"cascade:{path}: give instead or match, not both")
        self.first, self.instead, self.match = 0 if instead or match else first, instead, match

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
        super().join(team)

    def hint(self, request: Request) -> float:
        return self._team().drafters[self.parts[0]].hint(request)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job; a part that is out of use for a request adds nothing."""
        name, drafts = self.parts[0], [Draft()] * len(jobs)
        first_of = [i for i, job in enumerate(jobs) if is_usable(name, job.request)]
        if first_of:
            made_by_first = self._team().ask(name, [self._first_job(jobs[i]) for i in first_of])
            for i, draft in zip(first_of, made_by_first, strict=True):
                drafts[i] = self._ended(jobs[i], draft)
        second_of = [i for i, job in enumerate(jobs) if self._is_continued(job, drafts[i])]
        if second_of:
            rest = [self._second_job(jobs[i], drafts[i]) for i in second_of]
            written = [drafts[i].tokens for i in second_of]
            added: Sequence[Draft] = self._call_second(
                [job.request for job in rest],
                lambda drafter: drafter.draft_after(rest, written),
                otherwise=[Draft()] * len(rest),
            )
            for i, more in zip(second_of, added, strict=True):
                drafts[i] = joined(drafts[i], more)
        return drafts

    def _first_job(self, job: Job) -> Job:
        if self.match:
            return replace(job, rows=False, until=lambda tokens: self._addition(job, tokens)[0] > 0)
        return replace(job, length=min(self.first or job.length, job.length), deterministic=True, rows=False)

    def _ended(self, job: Job, draft: Draft) -> Draft:
        """Return the first part as it is verified.

        Where SECOND takes over depends on the tokens before that place alone, so a draft that was sampled
        stays sampled. Elsewhere whether a draft is continued may depend on its tokens, which one that counts
        as sampled must not.
        """
        n = len(draft.tokens)
        if not self.match:
            return replace(draft, dist=None, prefix_length=n)
        for k in range(1, n + 1) if draft.is_chain else ():
            added, match = self._addition(job, draft.tokens[:k], inside=k < n)
            if added:
                return replace(first(draft, k), prefix_length=k, match=match)
        return replace(draft, prefix_length=n)

    def _addition(self, job: Job, written: Sequence[int], *, inside: bool = True) -> tuple[int, int]:
        """Return how many tokens SECOND adds after these at most, or 0, and its match there."""
        if not is_usable(self.parts[1], job.request):
            return 0, 0
        # Its fault is not that of FIRST, which asks while it drafts.
        match = self._call_second(
            [job.request], lambda drafter: int(drafter.match_after(job.request, written)), otherwise=0
        )
        thresholds = job.hand_overs or (HandOver(self.match, job.length),)
        passed = [one for one in thresholds if match >= one.match]
        takes_over = bool(passed) and (passed[-1].inside or not inside)
        return (passed[-1].tokens if takes_over else 0), match

    def _call_second(self, requests: Sequence[Request], call: Callable[[Any], T], *, otherwise: T) -> T:
        """Call the second drafter; its failure is its own fault in all of these requests."""
        try:
            return call(self._team().drafters[self.parts[1]])
        except Exception as error:
            for request in requests:
                self._team().fault(self.parts[1], request, one_line(error))
            return otherwise

    def _is_continued(self, job: Job, draft: Draft) -> bool:
        n = len(draft.tokens)
        if n >= job.length or not is_usable(self.parts[1], job.request) or not draft.is_chain:
            return False
        if self.instead:
            return not n
        return draft.match > 0 if self.match else not self.first or n >= self.first

    def _second_job(self, job: Job, draft: Draft) -> Job:
        """Return the job of what is left of the length, with the stop rules of those places if any."""
        n = len(draft.tokens)
        stops = (NEVER,) if self.match else job.stops[min(n, len(job.stops) - 1) :]
        most = self._addition(job, draft.tokens, inside=False)[0] if self.match else job.length
        return replace(job, length=min(job.length - n, most), stops=stops, deterministic=True, rows=False)


class TogetherDrafter(CompositeDrafter):
    """Drafts what all the others of its team draft, merged so that equal prefixes are verified once.

    The baseline that MetaSD calls DraftAll. The draft is deterministic, whichever drafter made it; drafters
    that would sample are asked for their most likely tokens instead. A job of width w has room for w chains
    of its length. A drafter that fails is disabled, as it would be alone; the others continue.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """The drafters that it asks."""
        return tuple(name for name, drafter in self._team().drafters.items() if drafter is not self)

    def hint(self, request: Request) -> float:
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one tree per job; if there is no room for all, earlier drafters of the team come first."""
        team, drafted = self._team(), [list[Draft]() for _ in jobs]
        for name in self.parts:
            which = [i for i, job in enumerate(jobs) if name not in job.request.disabled]
            chains = [replace(jobs[i], width=1, deterministic=True, rows=False) for i in which]
            for i, draft in zip(which, team.ask(name, chains) if chains else (), strict=True):
                drafted[i].append(draft)
        return [merged(drafts, job.length * job.width) for drafts, job in zip(drafted, jobs, strict=True)]


def merged(drafts: Iterable[Draft], most: int) -> Draft:
    """Return one picked draft of at most `most` nodes with every path of `drafts`, in their order."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for draft in drafts:
        own: dict[int, int] = {-1: -1}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            own[i] = nodes.setdefault((own[parent], token), len(nodes))
    nodes_left = list(nodes)[:most]  # a node comes after its parent, so the first nodes form a tree
    return Draft(tuple(token for _, token in nodes_left), tuple(parent for parent, _ in nodes_left))


def is_usable(name: str, request: Request) -> bool:
    """Return if a part may draft for this request now."""
    return name not in request.disabled and name not in request.not_ready


def joined(begin: Draft, more: Draft) -> Draft:
    """Return one chain of both; signals and probabilities where both have them for every token.

    What follows sampled tokens is certain once these are known: so it is sampled with probability 1.
    """
    if not more.tokens or not begin.tokens:
        return begin if begin.tokens else more
    n = len(begin.tokens) + len(more.tokens)
    dist = None
    signals, probs = begin.signals + more.signals, begin.probs + more.probs
    if begin.dist is not None:
        dist = [*begin.dist, *(_one_hot(begin.dist[0], token) for token in more.tokens)]
        probs = begin.probs + (1.0,) * len(more.tokens)
    return Draft.chain(
        begin.tokens + more.tokens,
        probs=probs if len(probs) == n else (),
        dist=dist,
        signals=signals if len(signals) == n else (),
        prefix_length=len(begin.tokens),
        match=begin.match,
    )


def _one_hot(like: Any, token: int) -> Any:
    row = like * 0
    row[token] = 1
    return row
