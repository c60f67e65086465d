"""Cascades in a replay: their parts draft what was recorded, and lookups continue other drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import registry
from ...core.arms import NEVER
from ...core.drafts import Draft, Job, after
from ...core.request import Request
from ...drafters.cascade import CascadeDrafter
from ...errors import UserError
from .stage import Stage

Play = Callable[[str, Job], Draft]
"""The recorded draft of a drafter at a job's position, which takes its time."""
Pay = Callable[[str, int, Request], None]
"""Take the time of a drafter's draft of so many tokens."""


class Part:
    """A recorded drafter in the place of the real one.

    A lookup's continuation of other tokens is looked up again, in the text so far. A model's is its recorded
    draft where those tokens are the text's; elsewhere the text rejects them before it, so that its length
    alone counts.
    """

    def __init__(self, name: str, cascades: Cascades, *, grades: bool) -> None:
        self.name, self.cascades = name, cascades
        self.lookup: Any = None if grades else registry.build("drafters", registry.parse(name))

    def hint(self, request: Request) -> float:
        """The recorded hint."""
        return self.cascades.stage.lines[self.name].hint[request.position]

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """The recorded drafts."""
        return [self.cascades.play(self.name, job) for job in jobs]

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One draft per job, after these tokens.

        Raises:
            UserError: stop rules decide how long a model's draft after wrong tokens is.
        """
        if self.lookup is not None:
            drafts: list[Draft] = self.lookup.draft_after(jobs, written)
            for job, draft in zip(jobs, drafts, strict=True):
                self.cascades.pay(self.name, len(draft.tokens), job.request)
            return drafts
        return [self._after(job, tokens) for job, tokens in zip(jobs, written, strict=True)]

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """The lookup's match, in the text so far."""
        found: int = self.lookup.match_after(request, written)
        return found

    def _after(self, job: Job, tokens: Sequence[int]) -> Draft:
        stage, at = self.cascades.stage, job.request.position
        end = at + len(tokens)
        if stage.text[at:end] == list(tokens) and end < stage.recording.committed:
            return self.cascades.play(self.name, after(job, tokens))
        if job.stops != (NEVER,):
            raise UserError(
                f"a trace does not hold what {self.name} drafts after wrong tokens: give no stop rule"
            )
        self.cascades.pay(self.name, job.length, job.request)
        return Draft.chain((0,) * job.length)


class Cascades:
    """The cascades of a replay, on the text of one stage after the other.

    Raises:
        UserError: a cascade's parts are not recorded, or the second cannot continue a draft.
    """

    def __init__(self, names: Sequence[str], recorded: Mapping[str, bool], play: Play, pay: Pay) -> None:
        self.stage: Stage
        self.play, self.pay = play, pay
        self.drafters: dict[str, Any] = {}
        self.made: dict[str, CascadeDrafter] = {}
        self.told = 0
        for name in names:
            spec = registry.parse(name)
            self.made[name] = cascade = registry.build("drafters", spec, spec.path)
            for part in cascade.parts:
                if part in recorded and part not in self.drafters:
                    self.drafters[part] = Part(part, self, grades=recorded[part])
            cascade.join(self)  # like a team, it has drafters by name, and asks them

    def begin(self, stage: Stage) -> None:
        """Start the next text."""
        self.stage, self.told = stage, 0

    def hints(self, request: Request) -> dict[str, float]:
        """The hint of each cascade."""
        return {name: cascade.hint(request) for name, cascade in self.made.items()}

    def draft(self, name: str, job: Job) -> Draft:
        """A cascade's draft."""
        (draft,) = self.made[name].draft([job])
        return draft

    def ask(self, name: str, jobs: Sequence[Job]) -> list[Draft]:
        """The recorded drafts of a first part."""
        found: list[Draft] = self.drafters[name].draft(jobs)
        return found

    def fault(self, name: str, request: Request, said: str) -> None:
        """A part failed: the seconds of a replay would be wrong.

        Raises:
            UserError: always; names the part.
        """
        raise UserError(f"replay: {name}: {said}")

    def observe(self, request: Request) -> None:
        """Show the lookups what was written."""
        for part in self.drafters.values():
            if part.lookup is not None:
                part.lookup.observe(request, request.tokens[self.told :])
        self.told = len(request.tokens)

    def close(self, request: Request) -> None:
        """Drop the text."""
        for part in self.drafters.values():
            if part.lookup is not None:
                part.lookup.close(request)
