"""What `AutoRecorder` reads of the drafters that do not play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft
from draftwise.core.outcomes import Feedback, Grade, Outcome, Window
from draftwise.core.request_round import RequestRound
from draftwise.core.roles import GradeJob, Graders, RoundRecord
from draftwise.policies.auto.candidates import LENGTHS
from draftwise.policies.auto.grading import (
    ENOUGH,
    FEWEST,
    Budget,
    GradingState,
    LookupGuesses,
    ModelGrading,
    windows_of,
)
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder, _decided
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.auto import team
from draftwise.state.numbers import dump

from . import script
from .script import Stage, always
from .world import EASY, Model, Prices, World, table


def test_a_model_that_does_not_play_is_graded_on_each_token_once_and_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graded: list[tuple[int, int, int, bool]] = []
    grade = Model.grade

    def spy(self: Model, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        graded.extend((j.request.id, j.start, len(j.request.tokens), j.request.done) for j in jobs)
        return grade(self, jobs)

    monkeypatch.setattr(Model, "grade", spy)
    world = World(monkeypatch, EASY, Prices(token=4e-3), {"dear": table(5, 3.0)})
    _, loop, rounds = world.run("auto?share=0.5", texts=4)
    played = sum(r.drafted > 0 for r in rounds)
    assert len(graded) >= 8, graded
    assert played < len(rounds) / 4
    assert all(end - start >= ENOUGH or done for _, start, end, done in graded[1:]), "the first is at once"
    for (one, _, end, _), (other, start, *_) in pairwise(graded):
        assert one != other or start >= end - 1  # its last token is read with the next ones
    assert loop.policy.calibrations[0].seen > 100  # type: ignore[attr-defined]


def test_a_text_that_ends_settles_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Window]] = []
    follow = AutoRecorder._follow

    def keep(self: AutoRecorder, seen: RoundRecord, notes: GradingState, graders: Graders) -> list[Window]:
        found.append(follow(self, seen, notes, graders))
        return found[-1]

    monkeypatch.setattr(AutoRecorder, "_follow", keep)
    _, loop, rounds = World(monkeypatch, EASY, Prices(), {}, ("a", "b")).run("auto", texts=3, tokens=40)
    ends = [windows for windows, round in zip(found, rounds, strict=True) if round.done]
    assert len(ends) == 3 and any(all(x == 1.0 for x in w.accepts) for windows in ends for w in windows)
    assert not loop.recorder.texts  # type: ignore[attr-defined]


class View:
    """All that the recorder may see of the policy: nothing can be written to it."""

    __slots__ = ("_policy",)

    def __init__(self, policy: AutoPolicy) -> None:
        self._policy = policy

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self._policy.arms

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._policy.drafters

    @property
    def cascades(self) -> Mapping[int, int]:
        return dict(self._policy.cascades)

    @property
    def timed(self) -> bool:
        return self._policy.timed

    def contexts(self, request: int) -> Sequence[int]:
        return tuple(self._policy.contexts(request))

    def tests(self, i: int) -> float:
        return self._policy.tests(i)

    def may_pay(self, i: int, batch: int) -> bool:
        return self._policy.may_pay(i, batch)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_result_names_the_last_token_before_its_draft(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Of models that draft or are graded and of lookups that draft or do not, whenever it is decided."""
    before: dict[int, Counter[int]] = {}
    found: dict[tuple[int, int], Counter[int]] = {}
    context, learn = RequestRound.context, AutoPolicy.learn

    def here(self: RequestRound, hints: Mapping[str, float], batch_size: int) -> Context:
        made = context(self, hints, batch_size)
        assert made.token == self.request.tokens[-1]
        before.setdefault(made.request, Counter())[made.token] += 1
        return made

    def keep(self: AutoPolicy, feedback: Feedback) -> None:
        for window in feedback.windows:
            found.setdefault((feedback.request, window.drafter), Counter())[window.token] += 1
        learn(self, feedback)

    monkeypatch.setattr(RequestRound, "context", here)
    monkeypatch.setattr(AutoPolicy, "learn", keep)
    world = World(monkeypatch, EASY, Prices(), {"good": EASY, "dear": table(5, 3.0)}, ("a", "b"))
    world.run("auto?share=0.5", texts=4, batch=batch)
    assert {drafter for _, drafter in found} == {0, 1, 2, 3}
    for (request, _), tokens in found.items():
        assert tokens <= before[request] and -1 not in tokens


@pytest.mark.parametrize("batch", [1, 4])
def test_the_recorder_speaks_through_feedback_alone(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """With a view that cannot be written to, everything is decided and learned as with the policy itself."""
    found = []
    for view in (lambda policy: policy, View):
        policy = AutoPolicy(*team(["good", "bad"], LENGTHS))
        made = Method(policy, AutoRecorder(cast(Any, view(policy)), budget=Budget(0.05)))
        stage = Stage(monkeypatch, {"good": always(0.8), "bad": always(0.2)}, texts=8)
        rounds = stage.run(made, batch=batch)[2]
        found.append(([(r.arm, r.drafted, r.accepted) for r in rounds], dump(policy)))
    assert found[0] == found[1]
    assert len({arm.drafter for arm, *_ in found[0][0]}) > 1 and policy.calibrations[1].seen > 0


def test_a_new_model_is_graded_after_the_first_round_and_then_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    made = method("auto", ["good"])
    rounds = Stage(monkeypatch, {"good": always(0.9)}, texts=1).run(made)[2]
    assert rounds[0].arm.length == 0 and rounds[0].seconds.grade > 0.0
    assert all(r.arm.drafter == "good" for r in rounds[1:6])
    graded = [r for r in rounds[:-1] if r.seconds.grade]
    assert len(graded) == 1  # from then on it is known by its own drafts; the end of the text may show more


def test_the_first_grading_of_a_single_text_is_no_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads 1,000 tokens, in 20 ms. In a batch it counts."""
    for batch in (1, 4):
        made = method("auto", ["bad"])
        assert isinstance(made.recorder, AutoRecorder) and made.recorder.models
        Stage(monkeypatch, {"bad": always(0.0)}, texts=batch, tokens=8, prompt=1000).run(made, batch=batch)
        seconds, counted = made.recorder.models.first, made.recorder.models.seconds
        assert 0.02 < seconds < 0.03, "of the shortest text alone"
        assert counted >= seconds if batch > 1 else counted < seconds


def test_a_new_model_of_a_batch_is_graded_on_what_takes_least_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt takes longer to read than a round: one is read, and its text shows the next tokens as well."""
    graded: list[list[int]] = []
    grade = script.Model.grade

    def spy(self: script.Model, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        graded.append([j.request.id for j in jobs])
        return grade(self, jobs)

    monkeypatch.setattr(script.Model, "grade", spy)
    made = method("auto", ["bad"])
    stage = Stage(monkeypatch, {"bad": always(0.0)}, texts=8, tokens=80, prompt=1000)
    rounds = stage.run(made, batch=8)[2]
    assert all(jobs == graded[0] for jobs in graded) and len(graded[0]) == 1 and len(graded) >= 2
    assert isinstance(made.policy, AutoPolicy) and made.policy.tests(0) > FEWEST
    drafted = {r.request for r in rounds if r.arm.length}
    assert drafted <= set(graded[0]), "no other text is read for the first drafts"


def test_an_expensive_grading_makes_nothing_more_known_of_a_new_model() -> None:
    """A brief one of a model that may pay goes beyond the budget, for four tokens of both texts together."""
    cases = ((1e-3, 2, True, True), (8e-3, 2, True, False), (1e-3, 1, True, False), (1e-3, 2, False, False))
    for seconds, tokens, pays, more in cases:
        models, budget = ModelGrading(new={0}, seconds=1.0), Budget(total=1.0, rounds=100)
        models.cost.add(1, seconds)
        models.cost.add(2, seconds)
        policy: Any = SimpleNamespace(
            drafters=("bad",), tests=lambda i: 3.0, may_pay=lambda i, n, pays=pays: pays
        )
        seen: Any = SimpleNamespace(request=SimpleNamespace(disabled=set(), done=False))
        notes = GradingState(0, end=tokens, missed={0: tokens})
        assert (models._due([(seen, notes)] * 2, [0], policy, budget) == 0) is more


def test_rounds_that_are_left_out_count_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget()
    budget.add(0.5, 1)
    budget.add(0.25, 4)
    assert (budget.total, budget.rounds, budget.round) == (1.5, 5, 0.3)
    made = method("auto", ["bad"])
    assert isinstance(made.recorder, AutoRecorder)
    stage = Stage(monkeypatch, {"bad": always(0.0)}, texts=8, tokens=400)
    stage.run(made, batch=8)
    assert made.recorder.models and made.recorder.models.turns < 200, "it looks at some rounds only"
    assert 390 < made.recorder.budget.rounds <= 400, "each text has 400 rounds"
    assert made.recorder.budget.total == pytest.approx(stage.clock.now, rel=0.03)
    notes = GradingState(3, end=3)
    notes.skip([1, 2], 5)
    assert notes.left_out == 2
    notes.skip([], 5)
    assert notes.left_out == 0


def test_lookups_and_models_have_a_share_of_the_time_each() -> None:
    """Guesses of lookups come in every round: from one budget for both they would take what models need."""
    graders: Any = SimpleNamespace(graded_seconds=50.0)  # of models

    def guess(*_: object) -> tuple[int, ...]:
        graders.graded_seconds += 1.0
        return (7,)

    graders.guess = guess
    seen: Any = SimpleNamespace(request=SimpleNamespace(disabled=set(), tokens=[1, 2]))
    lookups, budget = LookupGuesses(), Budget(0.1, total=5.0)
    guesses = [lookups.guess(0, 1, seen, 2, graders, Arm("a", 4), budget) for _ in range(3)]
    assert [g is not None for g in guesses] == [True, False, False] and lookups.seconds == 1.0
    assert budget.allows(ModelGrading().seconds) and not budget.allows(lookups.seconds)
    budget.total = 10.0
    assert lookups.guess(0, 1, seen, 2, graders, Arm("a", 4), budget) is not None


def test_a_model_that_plays_now_and_then_is_graded_on_the_plain_rounds_between() -> None:
    """A context in which its chance looks low would stay so: there it never drafts."""
    notes = GradingState(start=10, at=10, end=10)
    for player in (0, -1, 1, 0, -1, 0):
        notes.at, notes.end = notes.end, notes.end + 2
        notes.add([0], player, 2, (0, 0))
    assert (notes.graded[0], notes.missed[0]) == (12, 4)  # rounds of the other drafter are dropped
    assert notes.unread(0) == notes.end
    notes.read[0] = notes.end - 1
    assert notes.unread(0) == notes.end - 12  # it reads these again
    found = windows_of(0, 12, [Grade(1.0)] * 10, notes, 4, range(100, 122))
    assert len(found) == 3  # of the rounds in which it did not draft
    assert [window.token for window in found] == [111, 113, 117]  # the last tokens before them


def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RoundRecord, int, Sequence[Window]]]:
    """Every round that the recorder follows, where it began, and its windows."""
    found: list[tuple[RoundRecord, int, Sequence[Window]]] = []
    follow = AutoRecorder._follow

    def keep(self: AutoRecorder, seen: RoundRecord, notes: GradingState, graders: Graders) -> list[Window]:
        windows = follow(self, seen, notes, graders)
        found.append((seen, notes.at, tuple(windows)))
        return windows

    monkeypatch.setattr(AutoRecorder, "_follow", keep)
    return found


@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
def test_a_draft_that_the_end_of_its_text_cut_short_counts_as_far_as_it_went(
    monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    """It needs no grading either: a model that plays in every round is graded once, at first."""
    found = followed(monkeypatch)
    stage = Stage(monkeypatch, {"model": always(chance)}, texts=12, tokens=23)
    _, _, rounds = stage.run("auto")
    cut = 0
    for seen, start, windows in found:
        if not (drafted := seen.draft.tokens):
            continue
        text = stage._texts()[seen.request.tokens[0]]
        right = [token == text[start - stage.prompt + k] for k, token in enumerate(drafted)]
        first = right.index(False) if False in right else len(right)
        (window,) = windows
        assert window.accepts == (1.0,) * first + (0.0,) * (first < len(right))
        cut += seen.outcome.censored
    assert cut >= 6 * (chance > 0.0)
    if chance == 1.0:
        assert sum(round.seconds.grade > 0.0 for round in rounds) == 1


def test_a_tree_that_the_end_of_its_text_cut_short_is_not_taken_for_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = followed(monkeypatch)
    stage = Stage(monkeypatch, {"tree": always(1.0)}, widths={"tree": 3}, texts=8, tokens=23)
    stage.run("auto")
    assert sum(seen.outcome.censored and bool(windows) for seen, _, windows in found) >= 4
    assert all(set(window.accepts) <= {1.0} for _, _, windows in found for window in windows)


def test_what_a_text_that_ended_inside_a_draft_did_not_reach_was_not_rejected() -> None:
    """An end-of-text token among the accepted ones: the target's next token is missing."""
    none: Any = None
    outcome = Outcome(0, 3, 5, censored=True)
    seen = RoundRecord(none, Decision(0), outcome, Draft.chain([3, 4, 5, 6, 7]), (3, 4, 5), (-1, 0, 1), none)
    assert _decided(seen) == 3
    assert _decided(replace(seen, tokens=(3, 4, 5, 9))) == 5


def test_a_model_that_was_chosen_and_could_not_draft_waits_to_be_graded() -> None:
    recorder = AutoRecorder(AutoPolicy(*team(["model"], LENGTHS)))
    assert recorder._model(0, Outcome(1, 0, 0, censored=True)) == -1, "it was not ready, or it failed"
    assert recorder._model(0, Outcome(1, 0, 0)) == recorder._model(0, Outcome(1, 0, 2, censored=True)) == 0


def test_rounds_of_others_are_forgotten_when_a_model_drafts_again() -> None:
    notes = GradingState(start=10, at=10, end=10)
    for player in (1, 1, 0):
        notes.at, notes.end = notes.end, notes.end + 2
        notes.add([0], player, 2, (0, 0))
    assert (notes.graded[0], notes.missed[0]) == (16, 0)
