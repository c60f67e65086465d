"""Short runs of a drafter in a loop; whatever it drafts, the text is the target's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ...core.arms import Arm
from ...core.drafts import Draft, Job
from ...core.loop import Loop
from ...core.request import Request
from ...core.roles import Drafter, Recorder, Target
from ...core.round import Round
from ...core.sampling import Sampling
from ...policies.recorders.bandit import Bandit, reward
from ...policies.recorders.full_information import Grading
from .suite import (
    GREEDY,
    LEAVE,
    RULES,
    Suite,
    Texts,
    Watch,
    add_tokens,
    at_random,
    drafting,
    fail,
)

NAME = "drafter"  # the name of the drafter in the loops of the checks
LENGTHS = (1, 3, 5)
PLAIN = Sampling(max_new_tokens=24, temperature=1.0)
SHAPED = Sampling(max_new_tokens=24, temperature=0.8, top_k=3, presence_penalty=0.3, frequency_penalty=0.2)
WORDS = 3  # tokens of a text whose distribution is compared


@dataclass(slots=True)
class DraftRecord:
    """One draft: what was asked for, the text at the time, and the answer."""

    job: Job
    text: tuple[int, ...]
    draft: Draft

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """The request's id and its text."""
        return self.job.request.id, self.text

    @property
    def drawn(self) -> bool:
        """True if the draft says that its tokens were drawn."""
        return self.draft.dist is not None


class DrafterWatch(Watch):
    """Watches a drafter, and keeps what was asked and answered.

    With `reverse` it hands over the jobs of a batch in reverse order, and the drafts back in the right one.
    Without `compare` requests are not compared before and after each call, which takes time.
    """

    methods = ("hint", "draft", "observe", "close", "ready", "grade", "join")

    def __init__(
        self,
        inner: Any,
        faults: Mapping[str, int] | None = None,
        *,
        reverse: bool = False,
        compare: bool = True,
    ) -> None:
        super().__init__(inner, faults)
        self.reverse, self.compare = reverse, compare
        self.records: list[DraftRecord] = []
        self.counts: list[tuple[int, int]] = []  # drafts asked for, and got
        self.hints: list[Any] = []

    def stand_in(self, **attributes: Any) -> Any:
        """Return a drafter with the methods that the watched one has."""
        names = [name for name in ("branches", "hidden_states") if hasattr(self.inner, name)]
        return super().stand_in(**{name: getattr(self.inner, name) for name in names}, **attributes)

    def watched_call(self, name: str, *args: Any) -> Any:
        """Call the drafter."""
        requests = list(_requests(args[0])) if self.compare else []
        before = [_state(request, name) for request in requests]
        texts = [tuple(job.request.tokens) for job in args[0]] if name == "draft" else []
        is_turned = self.reverse and name in ("draft", "grade")
        answer = self.call(name, list(reversed(args[0])) if is_turned else args[0], *args[1:])
        if [_state(request, name) for request in requests] != before:
            self.changed.append(name)
        self.inject(name)
        if is_turned:
            answer = list(reversed(answer))
        if name == "hint":
            self.hints.append(answer)
        if name == "draft":
            drafts = answer if isinstance(answer, Sequence) else ()
            self.counts.append((len(args[0]), len(drafts)))
            if len(drafts) == len(args[0]):
                triples = zip(args[0], texts, drafts, strict=True)
                self.records += [DraftRecord(*triple) for triple in triples if isinstance(triple[2], Draft)]
        return answer


def _requests(first: Any) -> Iterable[Request]:
    """The requests that a call is about."""
    if isinstance(first, Request):
        return [first]
    return [job.request for job in first] if isinstance(first, (list, tuple)) else []


def _state(request: Request, name: str) -> tuple[Any, ...]:
    """Return what a drafter must leave alone: in `draft`, everything but the request's generator."""
    fixed = (tuple(request.tokens), request.prompt_length, request.sampling, request.uniforms.getstate())
    rest = (request.done, frozenset(request.disabled), request.drawn, request.rounds)
    return (*fixed, *rest) if name == "draft" else (*fixed, *rest, request.rng.getstate())


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a run: at most `batch` texts at once, by arms that are drawn each round."""

    sampling: Sampling
    batch: int = 1
    arms: tuple[Arm, ...] = drafting(NAME, LENGTHS)
    graded: bool = False  # full information: the drafter is graded on every round


SETTINGS: Mapping[str, Setting] = {
    "greedy": Setting(GREEDY),
    "greedy batch": Setting(GREEDY, batch=3),
    "graded": Setting(GREEDY, batch=2, graded=True),
    "wide": Setting(GREEDY, batch=2, arms=drafting(NAME, (1, 4), width=2)),
    "rules": Setting(GREEDY, batch=3, arms=drafting(NAME, (8,), rules=RULES)),
    "sampled": Setting(PLAIN, batch=2),
    "sampled rules": Setting(PLAIN, arms=drafting(NAME, (8,), rules=RULES)),
    "shaped": Setting(SHAPED, batch=3, graded=True),
}


@dataclass
class Play:
    """The results of a run: the texts by request, the rounds, and what the drafter was asked and said."""

    watch: DrafterWatch
    loop: Loop
    rounds: list[Round] = field(default_factory=list)
    texts: Texts = field(default_factory=dict)

    def add(self, rounds: Iterable[Round]) -> None:
        """Keep some rounds."""
        rounds = list(rounds)
        self.rounds += rounds
        add_tokens(self.texts, rounds)


class Plays(Suite):
    """The options of a drafter's suite, and its runs.

    `make` makes a drafter, given the target if it has a parameter `target`. `target` makes the target,
    `prompts` are token ids. `learns` says that the drafter's drafts depend on more than the text before them,
    such as other texts: some checks then do not apply. `samples` is the number of texts that are drawn to see
    their distribution.
    """

    make: Callable[..., Any]
    learns: bool = False
    samples: int = 2000

    def fresh(self, target: Target) -> Drafter:
        """A new drafter for this target."""
        make = type(self).make
        try:
            takes_target = "target" in inspect.signature(make).parameters
        except (TypeError, ValueError):  # some built-in types have no signature
            takes_target = False
        drafter: Drafter = make(target=target) if takes_target else make()
        return drafter

    def start(
        self,
        arms: Sequence[Arm],
        *,
        graded: bool = False,
        reverse: bool = False,
        faults: Mapping[str, int] | None = None,
        recorder: Recorder | None = None,
        seed: int = 0,
        compare: bool = True,
    ) -> Play:
        """A loop with a fresh target and a fresh drafter, and nothing in it yet."""
        target = type(self).target()
        watch = DrafterWatch(self.fresh(target), faults, reverse=reverse, compare=compare)
        longest = max(arm.length for arm in arms)
        bandit = Bandit(reward("accepted"), longest, frozenset({"rows"}))
        policy = at_random(arms)
        policy.reads_hints = True
        recorder = recorder or (Grading(tuple(arms)) if graded else bandit)
        loop = Loop(target, {NAME: watch.stand_in()}, policy, recorder, seed=seed, slow_seconds=1e9)
        return Play(watch, loop)

    def run(self, setting: Setting, **options: Any) -> Play:
        """All prompts under one setting."""
        play = self.start(setting.arms, graded=setting.graded, **options)
        play.add(play.loop.run(self.prompts, setting.sampling, batch=setting.batch))
        return play

    def play(self, name: str) -> Play:
        """The run of this name, made once."""
        play: Play = self.once(name, lambda: self.run(SETTINGS[name]))
        return play

    @property
    def plays(self) -> dict[str, Play]:
        """Every run, by name."""
        return {name: self.play(name) for name in SETTINGS}

    @property
    def drafts(self) -> list[DraftRecord]:
        """Every draft of every run."""
        return [record for play in self.plays.values() for record in play.watch.records]

    def again(
        self, drafter: Drafter, records: Sequence[DraftRecord], *, picked: bool
    ) -> Iterator[tuple[DraftRecord, Draft]]:
        """Each draft with that of a fresh drafter for the same text."""
        for i, record in enumerate(records):
            request = replace(record.job.request, id=10_000 + i, tokens=list(record.text))
            drafter.observe(request, request.tokens)
            job = replace(record.job, request=request, deterministic=picked or record.job.deterministic)
            (draft,) = drafter.draft([job])
            drafter.close(request)
            if isinstance(draft, Draft):
                yield record, draft


class TextChecks(Plays):
    """Checks of what is written."""

    @property
    def many(self) -> Play:
        """Many short texts, one at a time."""
        play: Play = self.once("many", lambda: self._sampled(PLAIN, (Arm(NAME, WORDS),), batch=1))
        return play

    def test_greedy_text_is_the_targets_own(self) -> None:
        """Token for token: one text at a time, in batches, and with trees, stop rules and grading."""
        for name in ("greedy", "greedy batch", "graded", "wide", "rules"):
            self.check_greedy(self.play(name).texts, f"in the run {name!r}")

    def test_requests_that_join_and_leave_get_their_own_text(self) -> None:
        """Some start late, and some are closed before their end."""
        play, lots, started = self.start(drafting(NAME, LENGTHS), graded=True), Random(2), 0
        for turn in range(120):
            if len(play.loop.open) < 4 and turn < 60:
                play.loop.add(self.prompts[started % len(self.prompts)], GREEDY)
                started += 1
            play.add(play.loop.step())
            if play.loop.open and lots.random() < 0.05:
                play.loop.close(play.loop.open[lots.choice(sorted(play.loop.open))])
        self.check_greedy(play.texts, "where requests join and leave", whole=False)

    def test_text_up_to_the_end_of_the_window_is_the_targets_own(self) -> None:
        """The target reads `max_length` tokens, so that a text may have one more."""
        for at, prompt in enumerate(self.prompts):
            play = self.start((Arm(NAME, 5),))
            play.loop.target.max_length = len(prompt) + 9
            play.add(play.loop.run([prompt], GREEDY))
            if len(play.texts[0]) != 10:
                fail(f"{len(play.texts[0])} tokens in place of 10 up to the end of the window", LEAVE)
            self.check_greedy({at: play.texts[0]}, "at the end of the window", whole=False)

    def test_a_text_that_goes_on_after_its_end_is_the_targets_own(self) -> None:
        """As in a chat: a parked request gets more tokens, and another answer."""
        more, short = list(self.prompts[0][:2]), replace(GREEDY, max_new_tokens=12)
        texts: list[list[int]] = []
        for arms in ((Arm("none", 0),), drafting(NAME, LENGTHS)):
            loop = self.start(arms).loop
            request = loop.add(self.prompts[0], short, keep=True)
            for _ in range(2):
                while loop.open:
                    loop.step()
                if len(texts) < 2 and request.id in loop.parked:
                    loop.extend(request, more, short)
            texts.append(list(request.tokens))
        if texts[0] != texts[1]:
            fail("the second answer is not the target's own", f"observe() brings later turns too; {LEAVE}")

    def test_sampled_text_has_the_targets_distribution(self) -> None:
        """Texts of three tokens, counted: alone; warped, with arms that change, five requests at once."""
        warped = self._sampled(SHAPED, drafting(NAME, (1, 3)), batch=5)
        for sampling, play in ((PLAIN, self.many), (SHAPED, warped)):
            self.check_distribution(play.texts, sampling)

    def test_faults_cost_no_text(self) -> None:
        """A call of each method raises, at one time or another: the texts are right, and nothing is left."""
        setting = SETTINGS["greedy batch"]
        for name in ("hint", "observe", "draft"):
            for turn in (1, 2, 6):
                play = self.run(setting, faults={name: turn})
                self.check_greedy(play.texts, f"after call {turn} of {name} raised")
                if play.watch.errors and not self.play("greedy batch").watch.errors:
                    fail(f"{play.watch.errors[0]}, after call {turn} of {name} raised", "forget that request")

    def test_drafts_are_accepted_and_rejected(self) -> None:
        """Else the other checks say little."""
        rounds = [r for play in self.plays.values() for r in play.rounds if r.drafted]
        if not any(r.accepted for r in rounds):
            fail("no drafted token was accepted", "give the suite a `target` that it can draft for")
        if all(r.accepted == r.drafted for r in rounds):
            fail("no drafted token was rejected", "give the suite a `target` that disagrees now and then")

    def _sampled(self, sampling: Sampling, arms: Sequence[Arm], *, batch: int) -> Play:
        play = self.start(arms, compare=False)
        short = replace(sampling, max_new_tokens=WORDS)
        play.add(play.loop.run([self.prompts[0]] * self.samples, short, batch=batch))
        return play
