"""The simulator: its distributions, the rounds of fixed arms, feedback and its delay, regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwise.errors import UserError
from draftwise.measure.simulate import (
    Acceptance,
    ByLastReward,
    Runs,
    SimArm,
    Stationary,
    Switching,
    Text,
    by_rate,
    by_reward,
    count_rounds,
    play,
)
from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.learners.halving import ExploreThenCommit
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.learner import FullInformation, Learner
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.recorders import bandit as rewards
from draftwise.state.learned import fresh


@dataclass(frozen=True, slots=True)
class Written:
    """The same given hits for every text; beyond their end every drafter is wrong."""

    table: NDArray[np.bool_]

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        short = max(0, tokens - self.table.shape[1])
        return np.pad(self.table[:, :tokens], ((0, 0), (0, short)))


ALWAYS = Written(np.ones((1, 100), dtype=np.bool_))


def table(*rows: str) -> Written:
    """Hits from rows such as `1101`."""
    return Written(np.array([[c == "1" for c in row] for row in rows]))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@dataclass(frozen=True, slots=True)
class Run:
    """Rounds and accepted tokens of a learner, and the rounds that each arm alone would have needed."""

    played: NDArray[np.uint8]
    accepted: NDArray[np.uint8]
    fixed: tuple[int, ...]

    @property
    def rounds(self) -> int:
        return len(self.played)

    @property
    def regret(self) -> int:
        return self.rounds - min(self.fixed)


def simulate(
    learner: Learner | FullInformation,
    acceptance: Acceptance,
    arms: Sequence[SimArm],
    tokens: Sequence[int],
    *,
    rng: Random,
    keep: bool = True,
    delay: int = 0,
) -> Run:
    """A learner on one text for each length in `tokens`; without `keep` each text has a new one."""
    texts = [Text.draw(acceptance, arms, n, rng=rng, query=i) for i, n in enumerate(tokens)]
    runs = [play(learner if keep else fresh(learner), text, rng=rng, delay=delay) for text in texts]
    played, accepted = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    return Run(played, accepted, tuple(int(count_rounds(texts, arm)[-1]) for arm in range(len(arms))))


# -- texts ------------------------------------------------------------------------------------------------


def test_a_round_goes_to_the_first_miss_or_to_its_length_and_adds_one_token() -> None:
    text = Text.draw(table("1101111110", "0000000000"), [SimArm(0, 3), SimArm(1, 3)], 10, rng=Random(0))
    assert list(text.accepted[0]) == [2, 1, 0, 3, 3, 3, 3, 2, 1, 0]
    assert list(text.accepted[1]) == [0] * 10
    # 1 1 (0) | 1 1 1 (1) | 1 1 (0): the token of the target in brackets
    assert np.flatnonzero(text.ends[0]).tolist() == [2, 6, 9]
    assert [count_rounds([text], arm)[-1] for arm in (0, 1)] == [3, 10]
    assert count_rounds([text], 0)[7] == 3


@pytest.mark.parametrize("length", [0, 1, 5, 9])
def test_rounds_of_an_arm_alone_are_those_of_playing_it(length: int) -> None:
    acceptance = Runs([0.95, 0.9], [0.3, 0.6])
    text = Text.draw(acceptance, [SimArm(0, length), SimArm(1, 4)], 3000, rng=Random(length))
    for arm in (0, 1):
        played, _ = play(Fixed(2, arm), text, rng=Random(0))
        assert len(played) == count_rounds([text], arm)[-1]


def test_the_text_is_cut_after_the_learner_has_seen_the_whole_round() -> None:
    run = simulate(Fixed(1), ALWAYS, [SimArm(0, 5)], [8], rng=Random(0))
    assert run.accepted.tolist() == [5, 5]


def test_hits_at_the_chance_of_the_law() -> None:
    hits = Stationary([0.8, 0.3]).hits(0, 40_000, rng())
    assert hits.mean(axis=1) == pytest.approx([0.8, 0.3], abs=0.012)


def test_switching_inside_a_text_and_at_its_borders() -> None:
    inside = Switching([[1.0, 0.0], [0.0, 1.0]], every=3).hits(0, 8, rng())
    assert inside[0].tolist() == [True] * 3 + [False] * 3 + [True] * 2
    assert (inside[1] == ~inside[0]).all()
    border = Switching([[1.0, 0.0], [0.0, 1.0]])
    assert [bool(border.hits(query, 5, rng())[0].all()) for query in range(4)] == [True, False, True, False]
    run = simulate(Fixed(2), border, [SimArm(0), SimArm(1)], [6, 6], rng=Random(0))
    assert run.rounds == 1 + 6
    assert run.fixed == (7, 7)


def test_runs_have_the_mean_length_and_share_asked_for() -> None:
    hits = Runs([1.0], [0.0], easy_run=30, hard_run=10).hits(0, 200_000, rng())[0]
    borders = np.flatnonzero(hits[1:] != hits[:-1])
    lengths = np.diff(borders)
    means = sorted([lengths[::2].mean(), lengths[1::2].mean()])
    assert means == pytest.approx([10, 30], rel=0.05)
    assert hits.mean() == pytest.approx(0.75, abs=0.01)


def test_runs_are_common_to_all_drafters() -> None:
    hits = Runs([1.0, 1.0], [0.0, 0.0]).hits(0, 20_000, rng())
    assert (hits[0] == hits[1]).all()


def test_more_arms_than_a_byte_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="257 arms"):
        simulate(UCB1(257), ALWAYS, [SimArm(0)] * 257, [5], rng=Random(0))


# -- feedback ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Notes:
    """Plays arm 0 and writes down what happens."""

    arms: int
    notes: list[str] = field(default_factory=list)

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        self.notes.append("?")
        return 0, 1.0

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.notes.append(f"{reward:g}")

    def abort(self, arm: int) -> None:
        raise NotImplementedError

    def estimates(self) -> list[float]:
        raise NotImplementedError


@dataclass(slots=True)
class Losses(Notes):
    """The same with full information."""

    seen: list[list[float]] = field(default_factory=list)

    def learn_all(self, losses: Sequence[float | None]) -> None:
        self.seen.append([0.0 if x is None else x for x in losses])


@pytest.mark.parametrize(
    ("delay", "order"),
    [(0, "? 1 ? 0 ? 0.5"), (1, "? ? 1 ? 0 0.5"), (5, "? ? ? 1 0 0.5")],
)
def test_feedback_comes_so_many_choices_late_and_at_the_end_at_the_latest(delay: int, order: str) -> None:
    notes = Notes(1)
    text = Text.draw(table("1110100"), [SimArm(0, 2)], 6, rng=Random(0))
    play(notes, text, rng=Random(0), delay=delay)
    assert " ".join(notes.notes) == order


def test_full_information_is_the_rounds_of_every_arm_on_the_tokens_just_written() -> None:
    # arm 0 plays 1 1 (0) | 1 1 (1) | 0; alone, arm 1 ends a round at tokens 0, 1, 4 and 6
    acceptance = table("1101110", "0011011")
    learner = Losses(2)
    text = Text.draw(acceptance, [SimArm(0, 2), SimArm(1, 2)], 7, rng=Random(0))
    _, accepted = play(learner, text, rng=Random(0))
    assert accepted.tolist() == [2, 2, 0]
    assert np.array(learner.seen) * 3 == pytest.approx(np.array([[1, 2], [1, 1], [1, 0]]))


def test_rewards_by_a_rule_and_by_the_clock() -> None:
    arms = [SimArm(0, 2, draft=0.25), SimArm(0, 4, draft=0.25)]
    assert by_reward(arms, rewards.accepted) == [[0, 0.25, 0.5], [0, 0.25, 0.5, 0.75, 1]]
    # in tokens a second 2/3, 4/3, 2 and 1/2, 1, 3/2, 2, 5/2
    assert by_rate(arms)[0] == pytest.approx([4 / 15, 8 / 15, 0.8])
    assert by_rate(arms)[1] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


# -- learners on texts ------------------------------------------------------------------------------------


THREE = (SimArm(0), SimArm(1), SimArm(2))


@pytest.mark.parametrize(
    "learner",
    [UCB1(3), ExploreThenCommit(3), EXP3(3, gamma=0.1), EXP3Spec(3), ByLastReward(3)],
)
@pytest.mark.parametrize("delay", [0, 7])
def test_bandits_find_the_best_arm_in_spite_of_delay(learner: Learner, delay: int) -> None:
    acceptance = Stationary([0.2, 0.9, 0.4])
    run = simulate(fresh(learner), acceptance, THREE, [8000], rng=Random(1), delay=delay)
    assert run.fixed[1] == min(run.fixed)
    assert 0 <= run.regret < 0.25 * (run.fixed[2] - run.fixed[1])


@pytest.mark.parametrize("learner", [NormalHedge(3), Hedge(3)])
@pytest.mark.parametrize("delay", [0, 7])
def test_full_information_finds_it_sooner(learner: FullInformation, delay: int) -> None:
    acceptance = Stationary([0.2, 0.9, 0.4])
    run = simulate(fresh(learner), acceptance, THREE, [8000], rng=Random(1), delay=delay)
    bandit = simulate(UCB1(3), acceptance, THREE, [8000], rng=Random(1), delay=delay)
    assert run.regret < bandit.regret / 2


def test_full_information_weighs_rounds_by_their_time() -> None:
    # longer drafts save rounds, but each costs more than it saves
    arms = [SimArm(0, 8, draft=1.0), SimArm(0, 1, draft=1.0)]
    run = simulate(Hedge(2), Stationary([0.6]), arms, [2000], rng=Random(0))
    assert run.fixed[0] < run.fixed[1]
    assert (run.played == 1).mean() > 0.7


def test_a_learner_is_kept_or_new_for_each_text() -> None:
    acceptance, texts = Stationary([0.9, 0.1]), [40] * 50
    kept = simulate(UCB1(2, strength=0.1), acceptance, THREE[:2], texts, rng=Random(0))
    reset = simulate(UCB1(2, strength=0.1), acceptance, THREE[:2], texts, rng=Random(0), keep=False)
    assert (kept.played == 1).sum() < 15
    assert (reset.played == 1).sum() >= 50


def test_the_context_tells_easy_text_from_hard() -> None:
    acceptance: Acceptance = Runs([1.0, 0.5], [0.0, 0.5], easy_run=80, hard_run=80)
    with_it, without = (
        simulate(learner, acceptance, THREE[:2], [20_000], rng=Random(3))
        for learner in (ByLastReward(2), UCB1(2))
    )
    assert with_it.rounds < 0.9 * min(without.rounds, *with_it.fixed)
