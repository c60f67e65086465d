"""One request's round in the making: the nodes that its tokens come from, and errors of finished rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Arm, Decision
from draftwise.core.drafts import Draft, Signals, Verdict
from draftwise.core.outcomes import Outcome, RoundCost
from draftwise.core.request import Request
from draftwise.core.request_round import RequestRound, draft, unfailed
from draftwise.core.round import Round, Seconds
from draftwise.core.sampling import Sampling
from tests.core.test_accept import Opinions


@pytest.mark.parametrize(
    ("drafted", "path", "tokens", "nodes"),
    [
        ((5, 6), (0, 1), (5, 6, 7), (-1, 0, 1)),  # all accepted, and the target's own token
        ((5, 6), (0,), (5, 9), (-1, 0)),
        ((5, 6), (0, 1), (5,), (-1,)),  # the text ended within the draft
        ((), (), (5, 6, 7), (-1, 0, 1)),  # an engine wrote more than it verified
        ((5,), (0,), (5, 6, 7, 8), (-1, 0, 1, 2)),
        ((5, 6), (0, 1), (5, 6, 7, 8), (-1, 0, 1, 2)),
    ],
)
def test_each_token_has_the_node_that_it_comes_from(
    drafted: tuple[int, ...], path: tuple[int, ...], tokens: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    request = Request(0, [1, 2], 2, Sampling(max_new_tokens=50), Random(0), Random(0))
    scores: Any = object()
    turn = RequestRound(request, 2, Decision(0), Arm("a", 2), Draft.chain(drafted), 0.1, scores)
    turn.verdict, turn.tokens = Verdict(path, 9), tokens
    turn.score(RoundCost(0.1, 0.2, 3), timed=True, overlap=False)
    assert turn.record is not None and turn.record.nodes == nodes
    assert turn.record.outcome.accepted == len(path)


def test_rounds_without_an_error_are_given_back_and_an_error_is_raised() -> None:
    kept = {"request": 0, "decision": Decision(0), "arm": Arm("a", 2), "drafted": 0, "accepted": 0}
    sound = Round(**kept, tokens=(1,), sources=0, seconds=Seconds(), done=False)  # type: ignore[arg-type]
    failed = Round(**kept, tokens=(), sources=0, seconds=Seconds(), done=True, error=KeyError("k"))  # type: ignore[arg-type]
    assert unfailed([sound, sound]) == [sound, sound]
    with pytest.raises(KeyError, match="k"):
        unfailed([sound, failed])


def test_a_rewarded_outcome_has_every_other_field() -> None:
    whole = Outcome(
        3, 2, 5, 0.5, True, 0.0, (0.1, 0.2), (Signals(0.5, 0.3, 1.0, 0.5),), RoundCost(0.1, 0.2, 3), 2, 4, 6
    )
    rewarded = whole.rewarded(0.7)
    assert rewarded.reward == 0.7
    for field in fields(Outcome):
        assert field.name == "reward" or getattr(rewarded, field.name) == getattr(whole, field.name)
        assert getattr(whole, field.name) != field.default or field.name == "reward"


def turn_of(drafted: Draft, length: int = 5, **settings: Any) -> RequestRound:
    """A round of a text of two tokens whose draft is given."""
    request = Request(0, [1, 2], 2, Sampling(**{"max_new_tokens": 50} | settings), Random(0), Random(0))
    return RequestRound(request, 2, Decision(0), Arm("a", length), drafted)


@pytest.mark.parametrize("by_caller", [False, True])
@pytest.mark.parametrize("by_request", [False, True])
def test_a_draft_is_deterministic_if_its_request_or_its_caller_says_so(
    by_request: bool, by_caller: bool
) -> None:
    turn = turn_of(Draft())
    turn.request.deterministic = by_request
    job = turn.make_job(rows=False, deterministic=by_caller)
    assert job is not None and job.deterministic == (by_request or by_caller)


def test_drafts_may_be_sampled_and_need_no_rows_unless_someone_says_so() -> None:
    asked: list[Any] = []

    class Pool:
        def draft(
            self, jobs: dict[str, list[tuple[int, Any]]], batch: int
        ) -> tuple[list[Draft], list[float]]:
            asked.append([(job.rows, job.deterministic) for _, job in jobs["a"]])
            return [Draft.chain([5])] * batch, [0.1] * batch

    pool: Any = Pool()
    turns = [turn_of(Draft()), turn_of(Draft())]
    draft(turns, pool)
    draft(turns, pool, rows=True, deterministic=True)
    assert asked == [[(False, False)] * 2, [(True, True)] * 2]
    assert all(turn.draft.tokens == (5,) and turn.draft_seconds == 0.1 for turn in turns)


@pytest.mark.parametrize(
    ("settings", "limits", "length"),
    [
        ({}, {}, 5),
        ({"max_new_tokens": 4}, {}, 3),  # the last token is the target's own
        ({"max_new_tokens": 1}, {}, None),
        ({}, {"max_verifiable": 2}, 2),
        ({}, {"max_draft": 1}, 1),
        ({}, {"max_draft": 0}, None),
        ({}, {"disabled": {"a"}}, None),
        ({}, {"not_ready": frozenset({"a"})}, None),
        ({}, {"disabled": {"b"}, "not_ready": frozenset({"c"})}, 5),
    ],
)
def test_a_draft_is_as_long_as_its_arm_the_text_and_the_target_allow(
    settings: dict[str, Any], limits: dict[str, Any], length: int | None
) -> None:
    turn = turn_of(Draft(), **settings)
    for name, limit in limits.items():
        setattr(turn.request, name, limit)
    job = turn.make_job(rows=False, deterministic=False)
    assert (None if job is None else job.length) == length


@pytest.mark.parametrize("how", ["eos", "ends"])
@pytest.mark.parametrize("end", [1, 2, 3, 4, 5])
def test_processors_are_asked_for_nothing_after_the_end_of_the_text(end: int, how: str) -> None:
    """Scores of a token run the processors on all before it, and these have no opinion after the end."""
    tokens, asked = [7] * 5, list[tuple[list[int], int]]()  # the last one is the target's own
    tokens[end - 1] = 3

    def ends(text: Sequence[int], start: int) -> int | None:
        asked.append(([*text], start))
        return next((i + 1 for i, token in enumerate(text[start:]) if token == 3), None)

    stop: dict[str, Any] = {"eos": {3}} if how == "eos" else {"ends": ends}
    turn = turn_of(Draft.chain(tokens[:4]), processors=(lambda ids, logits: logits,), **stop)
    turn.accept(Opinions({node - 1: tokens[node] for node in range(end)}))
    assert (turn.error, turn.warning, turn.tokens) == (None, "", tuple(tokens[:end]))
    assert turn.request.tokens == [1, 2, *tokens[:end]] and turn.request.done
    assert turn.request.finish_reason == ("eos" if how == "eos" else "stop")
    told = [([1, 2, *tokens[:n]], 1 + n) for n in range(1, end + 1)]
    assert asked == (told if how == "ends" else []), "of each new token once"


def test_a_criterion_is_not_asked_again_where_a_processor_raised() -> None:
    """It may read `text[start]`, which is not there."""

    def ends(text: Sequence[int], start: int) -> int | None:
        return 1 if text[start] == 3 else None

    turn = turn_of(Draft.chain([7, 7, 9]), processors=(lambda ids, logits: logits,), ends=ends)
    turn.accept(Opinions({-1: 7, 0: 7}))  # raises after the second token, as a processor would
    assert turn.error is None and turn.tokens == (7, 7) and not turn.request.done


def test_a_text_ends_with_the_first_end_token_of_several_in_a_draft() -> None:
    turn = turn_of(Draft.chain([7, 3, 8, 3]), eos={3})
    turn.accept(Opinions({-1: 7, 0: 3, 1: 8, 2: 3, 3: 7}))
    assert turn.tokens == (7, 3) and turn.request.tokens == [1, 2, 7, 3]


@pytest.mark.parametrize(("known", "tokens"), [(0, (9,)), (1, (5,)), (2, (5, 6)), (3, (5, 6, 7))])
def test_a_drafter_whose_probabilities_raise_keeps_what_was_accepted_before(
    known: int, tokens: tuple[int, ...]
) -> None:
    drafted = Draft.chain([5, 6, 7, 8], probs=[0.5] * 4, dist=["any"] * 4)
    turn = turn_of(drafted)
    turn.accept(Opinions({-1: 9}, [1.0] * known))  # no probability of the tokens after these
    assert (turn.error, turn.tokens) == (None, tokens) and turn.warning.startswith("a: ")
    assert turn.request.disabled == {"a"} and not turn.request.done


@pytest.mark.parametrize(
    ("length", "drafted", "limits", "is_counted"),
    [
        (5, 3, {}, True),  # the drafter ended it
        (5, 0, {}, True),
        (0, 0, {}, True),
        (5, 2, {"remaining": 3}, False),  # the end of the text did
        (5, 1, {"remaining": 3}, True),
        (2, 2, {"remaining": 3}, True),
        (5, 2, {"max_verifiable": 2, "max_verified": 9}, False),  # a limit of this pass did
        (5, 1, {"max_verifiable": 2, "max_verified": 9}, True),
        (5, 2, {"max_verifiable": 2}, True),  # a limit of all passes of the text
        (5, 3, {"max_draft": 3}, True),
        (5, 1, {"max_draft": 1}, True),
        (5, 0, {"max_draft": 0}, False),  # no arm can draft
        (0, 0, {"max_draft": 0}, True),
        (1, 0, {"max_draft": 0}, False),
        (5, 0, {"not_ready": frozenset({"a"})}, False),
        (5, 3, {"disabled": {"a"}}, False),
        (5, 3, {"is_partial": True}, False),
    ],
)
def test_a_round_counts_for_its_arm_unless_something_else_cut_its_draft(
    length: int, drafted: int, limits: dict[str, Any], is_counted: bool
) -> None:
    turn = turn_of(Draft.chain([7] * drafted), length)
    request = turn.request
    request.tokens += [7] * (50 - limits.get("remaining", 50))
    turn.start, is_partial = len(request.tokens), limits.get("is_partial", False)
    for name in limits.keys() - {"remaining", "is_partial"}:
        setattr(request, name, limits[name])
    turn.accept(Opinions({-1: 1}))
    turn.score(RoundCost(0.1, 0.2, 3), timed=True, overlap=False, is_partial=is_partial)
    assert turn.record is not None and turn.record.outcome.censored != is_counted


def test_a_round_without_a_pass_took_no_time_to_draft_and_verify() -> None:
    turn = turn_of(Draft.chain([7, 7]))
    assert turn.draft_and_verify == (0.0, 0.0)
    turn.score(RoundCost(0.1, 0.2, 6), timed=True, overlap=False)
    assert turn.draft_and_verify == pytest.approx((0.1, 0.1)), "three of the six tokens of the pass"
