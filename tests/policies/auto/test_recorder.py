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
from draftwise.core.outcomes import Feedback, Grade, Outcome, RoundCost, Window
from draftwise.core.request_round import RequestRound
from draftwise.core.roles import GradeJob, Graders, RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.auto.policy import KINDS, AutoPolicy, Text
from draftwise.policies.auto.prices import ENOUGH, Call
from draftwise.policies.auto.recorder import AutoRecorder, GradingState, PendingDraft, _windows
from draftwise.policies.catalogue import method
from draftwise.policies.catalogue.auto import team

from . import script
from .script import Prices, Stage, always


def test_a_model_that_does_not_play_is_graded_on_each_token_once_and_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graded: list[tuple[int, int, int, bool]] = []
    grade = script.Model.grade

    def spy(self: script.Model, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        graded.extend((j.request.id, j.start, len(j.request.tokens), j.request.done) for j in jobs)
        return grade(self, jobs)

    monkeypatch.setattr(script.Model, "grade", spy)
    stage = Stage(monkeypatch, {"dear": always(0.3)}, Prices(token=4e-3), texts=4)
    _, loop, rounds = stage.run("auto?share=0.5")
    played = sum(r.drafted > 0 for r in rounds)
    assert len(graded) >= 8, graded
    assert played < len(rounds) / 4
    assert all(end - start >= ENOUGH or done for _, start, end, done in graded[1:]), "the first is at once"
    for (one, _, end, _), (other, start, *_) in pairwise(graded):
        assert one != other or start >= end - 1  # its last token is read with the next ones
    assert loop.policy.calibrations[0].seen > 100  # type: ignore[attr-defined]


def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RoundRecord, int, Sequence[Window]]]:
    """Every round that the recorder follows, where it began, and its windows."""
    windows_of_rounds: list[tuple[RoundRecord, int, Sequence[Window]]] = []
    follow = AutoRecorder._follow

    def keep(self: AutoRecorder, seen: RoundRecord, notes: GradingState, graders: Graders) -> list[Window]:
        windows = follow(self, seen, notes, graders)
        windows_of_rounds.append((seen, notes.at, tuple(windows)))
        return windows

    monkeypatch.setattr(AutoRecorder, "_follow", keep)
    return windows_of_rounds


def test_a_text_that_ends_settles_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    windows_of_rounds = followed(monkeypatch)
    stage = Stage(monkeypatch, {}, lookups=("a", "b"), kinds=1, texts=3, tokens=40)
    _, loop, rounds = stage.run("auto")
    ends = [mine for (*_, mine), round in zip(windows_of_rounds, rounds, strict=True) if round.done]
    assert len(ends) == 3 and any(all(x == 1.0 for x in w.accepts) for windows in ends for w in windows)
    assert not loop.recorder.texts  # type: ignore[attr-defined]


@pytest.mark.parametrize("batch", [1, 3])
def test_every_result_names_the_last_token_before_its_draft(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Of models that draft or are graded and of lookups that draft or do not, whenever it is decided."""
    before: dict[int, Counter[int]] = {}
    windows_of_rounds: dict[tuple[int, int], Counter[int]] = {}
    context, learn = RequestRound.context, AutoPolicy.learn

    def here(self: RequestRound, hints: Mapping[str, float], batch_size: int) -> Context:
        auto = context(self, hints, batch_size)
        assert auto.token == self.request.tokens[-1]
        before.setdefault(auto.request, Counter())[auto.token] += 1
        return auto

    def keep(self: AutoPolicy, feedback: Feedback) -> None:
        for window in feedback.windows:
            windows_of_rounds.setdefault((feedback.request, window.drafter), Counter())[window.token] += 1
        learn(self, feedback)

    monkeypatch.setattr(RequestRound, "context", here)
    monkeypatch.setattr(AutoPolicy, "learn", keep)
    models, own = {"good": always(0.7), "dear": always(0.3)}, {"dear": Prices(token=9e-3)}
    stage = Stage(monkeypatch, models, own=own, lookups=("a", "b"), kinds=3, texts=4)
    stage.run("auto?share=0.5", batch=batch)
    assert {drafter for _, drafter in windows_of_rounds} == {0, 1, 2, 3}
    for (request, _), tokens in windows_of_rounds.items():
        assert tokens <= before[request] and -1 not in tokens


def test_a_new_model_is_graded_after_the_first_round_and_then_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = method("auto", ["good"])
    rounds = Stage(monkeypatch, {"good": always(0.9)}, texts=1).run(auto)[2]
    assert rounds[0].arm.length == 0 and rounds[0].seconds.grade > 0.0
    assert all(r.arm.drafter == "good" for r in rounds[1:6])
    graded = [r for r in rounds[:-1] if r.seconds.grade]
    assert len(graded) == 1  # from then on it is known by its own drafts; the end of the text may show more


def test_the_first_grading_of_a_single_text_is_no_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads 1,000 tokens, in 20 ms. In a batch it counts."""
    for batch in (1, 4):
        auto = method("auto", ["bad"])
        assert isinstance(auto.recorder, AutoRecorder)
        Stage(monkeypatch, {"bad": always(0.0)}, texts=batch, tokens=8, prompt=1000).run(auto, batch=batch)
        seconds, counted = auto.recorder.first, auto.recorder.grading
        assert 0.02 < seconds < 0.03, "of the shortest text alone"
        assert counted >= seconds if batch > 1 else counted < seconds


def test_a_new_model_of_a_batch_is_graded_on_what_takes_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt takes longer to read than a round: one is read, and its text shows the next tokens as well."""
    graded: list[list[int]] = []
    grade = script.Model.grade

    def spy(self: script.Model, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        graded.append([j.request.id for j in jobs])
        return grade(self, jobs)

    monkeypatch.setattr(script.Model, "grade", spy)
    auto = method("auto", ["bad"])
    stage = Stage(monkeypatch, {"bad": always(0.0)}, texts=8, tokens=80, prompt=1000)
    rounds = stage.run(auto, batch=8)[2]
    assert all(jobs == graded[0] for jobs in graded) and len(graded[0]) == 1 and len(graded) >= 2
    assert isinstance(auto.policy, AutoPolicy) and auto.policy.acceptance[0].seen > 4.0
    drafted = {r.request for r in rounds if r.arm.length}
    assert drafted <= set(graded[0]), "no other text is read for the first drafts"


def test_rounds_that_are_left_out_are_not_looked_at_and_decide_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auto = method("auto", ["bad"])
    assert isinstance(auto.recorder, AutoRecorder)
    stage = Stage(monkeypatch, {"bad": always(0.0)}, texts=8, tokens=400)
    rounds = stage.run(auto, batch=8)[2]
    assert len(rounds) == 8 * 400 and auto.recorder.rounds < 200, "it looks at some rounds only"
    notes = GradingState(3, end=3, rounds=[(3, [0], -1)], waiting={0: 9})
    notes.pending = [PendingDraft(0, 2, (1, 2, 9), 3), PendingDraft(1, 2, (1, 2, 3, 4), 4)]
    notes.begin(5, [0, 0, 0, 1, 2, 3])
    assert not notes.windows
    assert [draft.right for draft in notes.pending] == [2, 2] and not notes.rounds and not notes.waiting
    assert (notes.start, notes.at, notes.end) == (5, 5, 6)
    assert notes.settle([3]) == [Window(0, 2, (1.0, 1.0, 0.0))]
    notes.begin(6, [0, 0, 0, 1, 2, 3, 4])
    assert not notes.windows and notes.start == 5, "nothing was left out"


def record(policy: AutoPolicy, arm: str, outcome: Outcome, tokens: Sequence[int]) -> RoundRecord:
    """A round of request 0, in which this drafter was to draft one token."""
    request = SimpleNamespace(id=0, disabled=set(), tokens=tokens, sampling=Sampling(), done=False)
    number = policy.arms.index(Arm(arm, 1))
    none: Any = None
    return RoundRecord(
        cast(Any, request), Decision(number), outcome, Draft.chain([7] * outcome.drafted), (1,), (-1,), none
    )


def test_lookups_and_models_have_a_share_of_the_time_each() -> None:
    """Guesses of lookups come in every round: from one budget for both they would take what models need."""
    graders: Any = SimpleNamespace(graded_seconds=50.0)  # of models

    def guess(*_: object) -> tuple[int, ...]:
        graders.graded_seconds += 1.0
        return (7, 7)

    graders.guess = guess
    policy = AutoPolicy(*team(["a", "b", "c"], LENGTHS))
    recorder = AutoRecorder(policy, share=0.1, total=5.0, grading=50.0, lookups=[0, 1, 2])
    policy.texts[0] = Text([3, 3, 3])
    seen = record(policy, "a", Outcome(1, 0, 1, asked=1), [1, 2])
    guesses = []
    for total in (5.0, 5.0, 10.0):
        recorder.total, state = total, GradingState(0, at=1, end=2)
        before = recorder.guessing
        windows = recorder._follow(seen, state, graders)
        guesses.append(recorder.guessing - before)
        assert windows[0] == Window(0, 3, (0.0,), 1), "what played needs no guess"
    assert guesses == [1.0, 0.0, 1.0], "one is asked, until the time has made up for it"


def test_a_model_that_plays_now_and_then_is_graded_on_the_plain_rounds_between() -> None:
    """A context in which its chance looks low would stay so: there it never drafts."""
    rounds = [(10 + 2 * k, [k], player) for k, player in enumerate((0, -1, 1, 0, -1, 0))]
    request: Any = SimpleNamespace(tokens=range(100, 122))
    windows = _windows(0, GradeJob(request, 12, [1.0] * 10), [Grade(1.0)] * 10, rounds, 4)
    assert [(window.context, window.token) for window in windows] == [(1, 111), (2, 113), (4, 117)]
    assert [len(window.accepts) for window in windows] == [4, 4, 4]


@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
def test_a_draft_that_the_end_of_its_text_cut_short_counts_as_far_as_it_went(
    monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    """It needs no grading either: a model that plays in every round is graded once, at first."""
    windows_of_rounds = followed(monkeypatch)
    stage = Stage(monkeypatch, {"model": always(chance)}, texts=12, tokens=23)
    _, _, rounds = stage.run("auto")
    cut = 0
    for seen, start, windows in windows_of_rounds:
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
    windows_of_rounds = followed(monkeypatch)
    stage = Stage(monkeypatch, {"tree": always(1.0)}, widths={"tree": 3}, texts=8, tokens=23)
    stage.run("auto")
    assert sum(seen.outcome.censored and bool(windows) for seen, _, windows in windows_of_rounds) >= 4
    assert all(set(window.accepts) <= {1.0} for _, _, windows in windows_of_rounds for window in windows)


@pytest.mark.parametrize("outcome", [Outcome(1, 0, 0, censored=True), Outcome(1, 0, 1, asked=1)])
def test_a_model_that_was_chosen_and_could_not_draft_waits_to_be_graded(outcome: Outcome) -> None:
    """It was not ready, or it failed."""
    policy = AutoPolicy(*team(["model"], LENGTHS))
    recorder, state = AutoRecorder(policy, models=[0]), GradingState(0, at=1, end=2)
    policy.texts[0] = Text([0])
    none: Any = None
    windows = recorder._follow(record(policy, "model", outcome, [1, 2]), state, none)
    drafted = outcome.drafted > 0
    assert windows == [Window(0, 0, (0.0,), 1)] * drafted
    assert state.waiting == ({} if drafted else {0: 1})
    assert state.rounds == [(1, [0], 0 if drafted else -1)]
    assert policy.texts[0].read == ({0: 1} if drafted else {})
    assert state.graded == ({0: 2} if drafted else {}), "what it drafted itself it need not read again"


@pytest.mark.parametrize("is_model", [False, True])
def test_a_tree_has_no_further_tokens_to_offer_than_it_is_deep(is_model: bool) -> None:
    """Four nodes, two deep: both that were accepted are all of it."""
    policy = AutoPolicy(*team(["tree"], LENGTHS))
    recorder = AutoRecorder(policy, models=[0] * is_model, lookups=[0] * (not is_model))
    policy.texts[0] = Text([3])
    seen = record(policy, "tree", Outcome(policy.index[0, 1, 4], 2, 4, asked=4), [1, 2])
    seen = replace(seen, draft=Draft((7, 8, 9, 10), (-1, -1, 1, 1)))
    none: Any = None
    assert recorder._follow(seen, GradingState(0, at=1, end=2), none) == [Window(0, 3, (1.0, 1.0), 1)]


def calls(policy: AutoPolicy, arm: str, outcome: Outcome) -> Sequence[Call]:
    policy.texts[0] = Text([0] * len(policy.drafters))
    pair = record(policy, arm, outcome, [1, 2]), GradingState(0, at=1, end=2)
    costs = AutoRecorder(policy, models=[0])._costs([pair])
    assert costs is not None
    return costs.calls


@pytest.mark.parametrize(("drafted", "seconds", "count"), [(0, 0.0, 0), (0, 1e-3, 1), (1, 1e-3, 1)])
def test_a_draft_for_which_there_is_no_room_is_no_call(drafted: int, seconds: float, count: int) -> None:
    """For the last token of a budget no drafter is asked, which is no call that took no time."""
    outcome = Outcome(1, 0, drafted, 0.01, asked=1, cost=RoundCost(seconds, 0.01, 1 + drafted))
    assert len(calls(AutoPolicy(*team(["model"], LENGTHS)), "model", outcome)) == count


def test_how_a_model_is_run_is_not_told_by_a_cascade() -> None:
    policy = AutoPolicy(*team(["lm:a", "ngram", "cascade:lm:a>ngram?match=1"], LENGTHS))
    policy.drafter_kinds[0] = KINDS.index("compiled")
    arm, cost = policy.index[2, 1, 4], RoundCost(1e-3, 0.01, 5)
    (call,) = calls(policy, policy.drafters[2], Outcome(arm, 1, 4, prefix_length=2, match=2, cost=cost))
    assert (call.drafter, call.drafts) == (0, [(2, 2)])
    assert KINDS[policy.drafter_kinds[0]] == "compiled"
