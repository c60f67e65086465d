"""What the last token of the text, and the next shorter match, say about a draft."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.policies.auto.acceptance import TOKEN_CLASSES, TOKEN_LEAN, AcceptanceEstimate, LastToken
from draftwise.policies.auto.candidates import LENGTHS
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.catalogue.auto import team
from draftwise.state.numbers import dump, load

from .script import Prices, Stage


def taught(easy: int, hard: int) -> AcceptanceEstimate:
    """A drafter that is right after one token and wrong after another."""
    skill = AcceptanceEstimate(2, 4)
    for _ in range(100):
        skill.learn(0, 1, (1.0, 1.0, 0.0), easy)
        skill.learn(0, 1, (0.0,), hard)
    return skill


def test_chances_are_higher_after_a_token_after_which_drafts_were_right() -> None:
    skill = taught(5, 70_000)
    usual = skill.survival(0, 1)
    assert 0.4 < usual[0] < 0.6
    easy, hard = skill.after(5, 0, 1), skill.after(70_000, 0, 1)
    assert easy[0] > 0.9 and hard[0] < 0.1 and easy[0] <= 1.0
    assert easy[1] / easy[0] == pytest.approx(usual[1] / usual[0]), "later tokens follow their own text"
    assert skill.after(6, 0, 1) == skill.after(-1, 0, 1) == usual
    assert skill.after(5 + TOKEN_CLASSES, 0, 1) == easy, "ids are hashed"


def test_tokens_of_a_text_that_is_always_guessed_say_nothing_more() -> None:
    skill = AcceptanceEstimate(2, 4)
    for k in range(300):
        skill.learn(0, 1, (1.0, 1.0, 1.0, 1.0), k % 3)
    assert skill.after(0, 0, 1)[0] <= 1.0 and skill.last(0) == pytest.approx(1.0, abs=0.1)
    unknown = AcceptanceEstimate(2, 4)
    for _ in range(50):
        unknown.learn(0, 1, (1.0,))
        unknown.learn(0, 1, (), 3)
    assert not any(unknown.last.expected)


def test_tokens_of_other_texts_count_for_a_few_tests() -> None:
    skill = taught(5, 6)
    before = skill.last(5), skill.last(6)
    skill.restart()
    skill.last.restart()
    assert max(skill.last.expected) == pytest.approx(TOKEN_LEAN)
    assert 1.0 < skill.last(5) < before[0] and before[1] < skill.last(6) < 1.0


def test_what_is_known_of_tokens_is_saved() -> None:
    first, second = (AutoPolicy(*team(["model", "ngram"], LENGTHS)) for _ in range(2))
    first.skills[0].learn(0, 0, (1.0,), 9)
    load(second, dump(first))
    assert second.skills[0].last == first.skills[0].last != LastToken()


def test_a_match_that_was_never_tested_is_worth_the_next_shorter_one() -> None:
    skill = AcceptanceEstimate(8, 4)
    for _ in range(200):
        skill.learn(0, 2, (1.0, 1.0, 1.0, 1.0))
        skill.learn(0, 1, (0.0,))
    skill.close(0)
    first = [max(skill.curve(9, context), default=0.0) for context in range(8)]
    assert first[0] == pytest.approx(0.5) and first[1] < 0.1
    assert all(chance > 0.9 for chance in first[2:])
    for _ in range(60):
        skill.learn(0, 5, (0.0,))
    skill.close(0)
    assert max(skill.curve(9, 5), default=0.0) < 0.1 < 0.9 < skill.curve(9, 4)[0], "it soon counts for itself"


def test_what_is_kept_between_two_lessons_is_what_would_be_computed_again() -> None:
    skill, rng = AcceptanceEstimate(8, 4), Random(0)
    for lesson in range(300):
        right = rng.randrange(4)
        skill.learn(lesson // 40, rng.randrange(8), (1.0,) * right + (0.0,), rng.randrange(50))
        context = rng.randrange(8)  # now and then a long match, so that all means are known
        kept = skill.curve(9, context)
        skill.leaned = []
        assert kept == pytest.approx(skill.curve(9, context), abs=1e-12)
        for request, mine in skill.own.items():  # what the last token is held against is the same chance
            for seen, its in mine.items():
                assert skill._first(seen, its) == pytest.approx(skill.curve(request, seen)[0], abs=1e-12)
        skill.curve(9, 7)


class Few(Stage):
    """Texts of twenty tokens."""

    def _texts(self) -> list[list[int]]:
        rng = Random("few")
        return [[rng.randrange(20) for _ in range(self.tokens + 20)] for _ in range(self.texts)]


def test_an_expensive_model_drafts_after_the_tokens_after_which_it_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft costs half a pass and is right in a third of the places: it pays there alone."""
    stage = Few(monkeypatch, {}, Prices(start=0.2e-3, token=4.8e-3))
    texts = stage._texts()
    stage.models = {"model": lambda text, at, rng: 0.9 if at and texts[text][at - 1] < 7 else 0.05}
    spent, rounds = stage.seconds("auto"), stage.run("auto")[2]
    later = rounds[len(rounds) // 2 :]
    drafts = [round for round in later if round.arm.length]
    # A third of the tokens: 0.18 to 0.20 of the rounds, by which texts these are.
    assert sum(round.accepted > 0 for round in drafts) > 0.75 * len(drafts) > 0.13 * len(later)
    assert spent < 0.96 * min(stage.seconds("none"), stage.seconds("static-1?drafter=model"))


def test_how_sure_a_chance_is() -> None:
    """One deviation below it, as a share of it: nearly nothing is sure of a model that was never right."""
    found = []
    for accept, tests in ((1.0, 1), (1.0, 8), (0.0, 1), (0.0, 24)):
        skill = AcceptanceEstimate(1, 4)
        for _ in range(tests):
            skill.learn(0, 0, (accept,))
        found.append(skill.confidence)
    assert 0.6 < found[0] < 0.7 and found[1] > 0.85 and found[2] < 0.3 and 0.0 < found[3] < 0.05
