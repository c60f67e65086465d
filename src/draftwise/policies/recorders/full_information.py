"""Full information: every arm is graded on the committed text, whichever drafter ran.

A drafter that knows its guess from the text before it (a model) grades itself in one pass over the new
tokens; any other (lookup) is asked for the draft that it would have made at the start of each of its own
rounds, which is compared with what came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ...core.arms import Arm
from ...core.drafts import Draft
from ...core.outcomes import Feedback, Grade
from ...core.request import Request
from ...core.roles import GradeJob, Graders, RoundRecord
from ...core.stops import needs
from ...errors import UserError
from .cursors import FORMS, Rounds, Track, Windows

CHOICES = {
    "form": FORMS,
    "windows": ("cursor", "all", "rounds"),
    "loss": ("length", "acceptance"),
    "censored": ("wait", "weight"),
}
STRETCH = 32  # tokens that are graded, or left out, together when cursors are thinned


@dataclass(slots=True)
class Text:
    """What is known of one text: each arm's track, its losses that wait for the others', the target's
    probability of each token from `start` on, where played rounds began, and who cannot be graded here."""

    start: int
    tracks: list[Track]
    losses: list[deque[float]]
    graded: dict[str, int] = field(default_factory=dict)
    probs: list[float] = field(default_factory=list)
    rounds: set[int] = field(default_factory=set)
    latest: dict[str, list[Grade]] = field(default_factory=dict)
    mute: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Grading:
    """Losses in [0, 1] of all arms on the committed text, as soon as all of them are known.

    `windows` says where an arm's rounds begin. With `cursor` each arm has its own rounds on the text (see
    `cursors`) and one loss per token: the chance that a round of the arm begins with it, so that an arm's
    losses add up to the rounds it needs for the text. `all` (at every token) and `rounds` (where played ones
    began) are HedgeSpec's (arXiv 2510.20064): the loss is 1 - expected chunk / (longest + 1), or with `loss`
    "acceptance" 1 - the chance that the next token is accepted. Such a window waits for `longest` tokens;
    with `censored` "weight" it is scored at its round's end by importance (`cursors.window`).

    `form` is the estimate: see `cursors`. Models are graded once `every` tokens wait: at 1 while the target's
    rows are there, above it from one number per token. With `thin` m one window in m is graded, or for
    cursors one stretch of 32 tokens in m; which ones depends on positions alone. A model's cursor continues
    from stretch to stretch as if there were nothing between: to begin a round with each would count one too
    many. A drafter that is known by its drafts is followed throughout, but scored in the same stretches.

    Raises:
        UserError: an option out of its range, or two that do not go together.
    """

    arms: tuple[Arm, ...]
    form: str = "rb"
    windows: str = "cursor"
    loss: str = "length"
    censored: str = "wait"
    every: int = 1
    thin: int = 1
    reads: frozenset[str] = frozenset({"rows"})
    texts: dict[int, Text] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"{name}={value}: choose from {', '.join(choices)}")
        for name in ("every", "thin"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name}={value}: give 1 or more")
        if self.every > 1 and self.form != "ratio":
            raise UserError(f"form={self.form}&every={self.every}: rows are gone by then, use form=ratio")
        if self.loss == "acceptance" and self.windows != "all":
            raise UserError(f"loss=acceptance&windows={self.windows}: a loss per token, use windows=all")
        if self.censored == "weight" and (self.windows != "rounds" or self.every > 1):
            raise UserError("censored=weight: a round is scored at its end, use windows=rounds and every=1")

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """Grade what was committed; one feedback per token, or window, that all arms have a loss for."""
        for seen in batch:
            self._note(seen, graders)
        for name in dict.fromkeys(arm.drafter for arm in self.arms):
            if graders.grades_itself(name):
                self._ask_model(name, batch, graders)
            for seen in batch:
                if name not in seen.request.disabled | self.texts[seen.request.id].mute:
                    self._walk(name, seen, len(seen.request.tokens) - len(seen.tokens), None, graders)
        return [feedback for seen in batch for feedback in self._ripe(seen)]

    def close(self, request: Request) -> Sequence[Feedback]:
        """Forget a text; what only its budget cut short is dropped."""
        self.texts.pop(request.id, None)
        return ()

    def _note(self, seen: RoundRecord, graders: Graders) -> None:
        start = len(seen.request.tokens) - len(seen.tokens)
        text = self.texts.get(seen.request.id)
        if text is None:
            tracks = [self._track(arm, graders) for arm in self.arms]
            text = self.texts[seen.request.id] = Text(start, tracks, [deque() for _ in tracks])
        text.rounds.add(start)
        pairs = zip(seen.nodes, seen.tokens, strict=True)
        text.probs += [seen.scores.chance(node, token) for node, token in pairs]

    def _track(self, arm: Arm, graders: Graders) -> Track:
        tree = max(arm.width, graders.width(arm.drafter)) > 1
        lookup = arm.length > 0 and (tree or not graders.grades_itself(arm.drafter))
        if self.windows == "cursor":
            return Rounds(arm, form=self.form, lookup=lookup)
        span = 1 if self.loss == "acceptance" else max(a.length for a in self.arms)
        rounds, weigh = self.windows == "rounds", self.censored == "weight"
        return Windows(arm, span, form=self.form, lookup=lookup, rounds=rounds, thin=self.thin, weigh=weigh)

    def _ask_model(self, name: str, batch: Sequence[RoundRecord], graders: Graders) -> None:
        """One pass over the tokens that wait, of all requests that have enough of them."""
        stops = tuple(stop for arm in self.arms if arm.drafter == name for stop in arm.stops)
        jobs: list[tuple[RoundRecord, GradeJob]] = []
        for seen in batch:
            request, text = seen.request, self.texts[seen.request.id]
            start = self._live(text, text.graded.get(name, text.start))
            waiting = len(request.tokens) - start
            if all(self._by_draft(text, i, graders) for i in self._arms_of(name)):
                continue
            if name in request.disabled or waiting <= 0 or (waiting < self.every and not request.done):
                continue
            fresh = start - (len(request.tokens) - len(seen.tokens))
            distributions = (
                seen.scores.distributions(seen.nodes[fresh:]) if fresh >= 0 and self.form != "ratio" else None
            )
            own = seen.draft if fresh == 0 and self.arms[seen.decision.arm].drafter == name else None
            probs = text.probs[start - text.start :]
            jobs.append((seen, GradeJob(request, start, probs, distributions, own, needs(stops))))
        grades = graders.grade(name, [job for _, job in jobs]) if jobs else []
        for (seen, job), mine in zip(jobs, grades or (), strict=False):
            text = self.texts[seen.request.id]
            text.graded[name], text.latest[name] = len(seen.request.tokens), mine
            self._walk(name, seen, job.start, mine, graders)

    def _walk(
        self, name: str, seen: RoundRecord, start: int, grades: Sequence[Grade] | None, graders: Graders
    ) -> None:
        """Take the arms of one drafter over `request.tokens[start:]`: with grades those that go by them, else
        those that go by their drafts."""
        request, text = seen.request, self.texts[seen.request.id]
        mine = [i for i in self._arms_of(name) if (grades is None) == self._by_draft(text, i, graders)]
        if not mine:
            return
        first = len(request.tokens) - len(seen.tokens)
        for at in range(start, len(request.tokens)):
            live = self._live(text, at) == at
            if not live and grades is not None:
                continue
            token = request.tokens[at]
            # a lookup is walked over the round's own tokens only, whose rows are there
            integrates = self.form != "ratio" and at >= first
            chance = partial(seen.scores.chance, seen.nodes[at - first]) if integrates else _gone
            grade = grades[at - start] if grades is not None else None
            for i in mine:
                track = text.tracks[i]
                if track.begins(played=at in text.rounds):
                    draft = self._drafted(i, seen, at, grades is None, graders)
                    if draft is None:
                        text.mute.add(name)
                        return
                    track.begin(draft)
                losses = track.step(token, grade, chance)
                if live:
                    text.losses[i].extend(losses)

    def _arms_of(self, name: str) -> list[int]:
        return [i for i, arm in enumerate(self.arms) if arm.drafter == name]

    def _by_draft(self, text: Text, i: int, graders: Graders) -> bool:
        """Whether an arm is known by the drafts it makes; no draft at all goes with its drafter's others."""
        return text.tracks[i].lookup or not graders.grades_itself(self.arms[i].drafter)

    def _drafted(self, i: int, seen: RoundRecord, at: int, lookup: bool, graders: Graders) -> Draft | None:
        """Return what a lookup drafts at `at`: its draft of this round if nothing limited that, or a new one.

        None for one that failed, or that drew its tokens.
        """
        arm, request = self.arms[i], seen.request
        if not lookup or not arm.length:
            return Draft()
        played = at == len(request.tokens) - len(seen.tokens) and seen.decision.arm == i
        if played and seen.outcome.asked == arm.length and arm.drafter not in request.not_ready:
            return seen.draft if seen.draft.dist is None else None
        return graders.redraft(arm.drafter, request, at, arm)

    def _live(self, text: Text, at: int) -> int:
        """Return the first position from `at` on that is graded."""
        if self.windows != "cursor" or self.thin == 1:
            return at
        stretch = (at - text.start) // STRETCH
        ahead = -stretch % self.thin
        return at if not ahead else text.start + (stretch + ahead) * STRETCH

    def _ripe(self, seen: RoundRecord) -> list[Feedback]:
        """Return a vector of losses for each token or window that every arm in use now has one for."""
        request, text = seen.request, self.texts[seen.request.id]
        asleep = request.disabled | text.mute
        awake = [i for i, arm in enumerate(self.arms) if arm.drafter not in asleep]
        self._finish(seen, text, awake)
        ripe = []
        while awake and all(text.losses[i] for i in awake):
            losses: list[float | None] = [None] * len(self.arms)
            for i in awake:
                losses[i] = text.losses[i].popleft()
            ripe.append(Feedback(request.id, seen.decision, losses=tuple(losses)))
        return ripe or [Feedback(request.id, seen.decision)]

    def _finish(self, seen: RoundRecord, text: Text, awake: Sequence[int]) -> None:
        """Score the windows that end with this round or text, unless the budget cut it short."""
        request = seen.request
        if self.windows == "cursor" or (request.done and request.finish_reason == "length"):
            return
        # the played drafter's own chance of each token of its round; 1 for what a lookup got right
        grades = text.latest.get(self.arms[seen.decision.arm].drafter)
        played = [g.at(k)[0] for k, g in enumerate(grades)] if grades else [1.0] * len(seen.tokens)
        for i in awake:
            if isinstance(track := text.tracks[i], Windows):
                if self.censored == "weight":
                    text.losses[i].extend(track.cut(played, seen.outcome.accepted))
                if request.done:
                    text.losses[i].extend(track.finish())


def _gone(token: int) -> float:
    return 0.0
