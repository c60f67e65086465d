"""Learners on simulated texts: their choices, cost and regret, and curves of these over seeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...policies.learners.learner import FullInformation, Learner
from ...policies.learners.linucb import LinUCB
from ...policies.recorders.bandit import accepted as accepted_share
from ...state.learned import LEARNED, fresh
from .text import Acceptance, SimArm, Text, Worth, by_reward

Vector = NDArray[np.float64]
POINTS = 40  # points of a curve


@dataclass(frozen=True, slots=True)
class Run:
    """The course of a learner on one or more texts.

    `played` and `accepted` have one number per round, `fixed` the rounds that each arm alone would have
    needed for the same texts. The last round of a text may be cut; `accepted` counts before that.
    """

    arms: tuple[SimArm, ...]
    played: NDArray[np.uint8]
    accepted: NDArray[np.uint8]
    fixed: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.played)

    @property
    def pulls(self) -> list[int]:
        """Number of rounds of each arm."""
        return [int(n) for n in np.bincount(self.played, minlength=len(self.arms))]

    @property
    def switches(self) -> int:
        """Number of rounds whose arm differs from that of the previous round."""
        return int(np.count_nonzero(self.played[1:] != self.played[:-1]))

    @property
    def seconds(self) -> float:
        """Drafting and target passes together."""
        return sum(n * arm.seconds for n, arm in zip(self.pulls, self.arms, strict=True))

    @property
    def regret(self) -> int:
        """Stopping-time regret: rounds minus those of the best fixed arm in hindsight.

        The measure of BanditSpec (arXiv 2505.15141), section 3, and MetaSD (arXiv 2604.05417). For the regret
        in expectation take the mean of `rounds` and of `fixed` over runs before the minimum.
        """
        return self.rounds - min(self.fixed)

    @property
    def seconds_regret(self) -> float:
        """Seconds minus those of the fastest fixed arm in hindsight."""
        return self.seconds - min(n * arm.seconds for n, arm in zip(self.fixed, self.arms, strict=True))


def simulate(
    learner: Learner | FullInformation,
    acceptance: Acceptance,
    arms: Sequence[SimArm],
    tokens: Sequence[int],
    *,
    rng: Random,
    keep: bool = True,
    delay: int = 0,
    worth: Worth | None = None,
) -> Run:
    """Play a learner on one text for each length in `tokens`; without `keep` each text has a new learner.

    `delay` and `worth` are those of `play`.
    """
    runs = []
    for query, length in enumerate(tokens):
        text = Text.draw(acceptance, arms, length, rng=rng, query=query)
        runs.append(play(learner if keep else fresh(learner), text, rng=rng, delay=delay, worth=worth))
    played, accepted = (np.concatenate([getattr(r, name) for r in runs]) for name in ("played", "accepted"))
    fixed = tuple(sum(column) for column in zip(*(run.fixed for run in runs), strict=True))
    return Run(tuple(arms), played, accepted, fixed)


def play(
    learner: Learner | FullInformation,
    text: Text,
    *,
    rng: Random,
    delay: int = 0,
    worth: Worth | None = None,
) -> Run:
    """Play a learner on one text, from its first token to its last.

    The feedback of a round arrives after `delay` further choices (a batch of b requests waits up to b - 1),
    the rest when the text ends. A bandit's reward is `worth[arm][accepted]`, by default accepted tokens over
    the longest draft. Full information ignores `worth`: see `_play_full_information`.
    """
    if learner.arms != len(text.arms):
        raise UserError(f"a learner of {learner.arms} arms on a text of {len(text.arms)}: give it as many")
    if learner.arms > 256:
        raise UserError(f"{learner.arms} arms: a run keeps one byte a round, give 256 at most")
    if hasattr(learner, "learn_all"):
        played, accepted = _play_full_information(cast(FullInformation, learner), text, rng, delay)
    else:
        worth = worth or by_reward(text.arms, accepted_share)
        played, accepted = _play_bandit(learner, text, rng, delay, worth)
    fixed = tuple(text.rounds(arm) for arm in range(learner.arms))
    return Run(text.arms, np.frombuffer(played, np.uint8), np.frombuffer(accepted, np.uint8), fixed)


def _play_bandit(
    learner: Learner, text: Text, rng: Random, delay: int, worth: Worth
) -> tuple[bytearray, bytearray]:
    choose, update, reach, end = learner.choose, learner.update, text.accepted, text.tokens
    everyone, at = range(learner.arms), 0
    played, accepted = bytearray(), bytearray()
    late: deque[tuple[int, float, float]] = deque()
    while at < end:
        arm, chance = choose(everyone, rng)
        n = reach[arm][at]
        at += n + 1
        played.append(arm)
        accepted.append(n)
        late.append((arm, worth[arm][n], chance))
        if len(late) > delay:
            update(*late.popleft())
    for feedback in late:
        update(*feedback)
    return played, accepted


def _play_full_information(
    learner: FullInformation, text: Text, rng: Random, delay: int
) -> tuple[bytearray, bytearray]:
    """An arm's loss in a round is the time of those of its own rounds that end in the tokens just written.

    Over the text this sums to the arm's own seconds, up to the round cut at the end. It is scaled into [0, 1]
    by its maximum: the longest chunk as rounds of one token by the slowest arm.
    """
    choose, learn_all, reach, end = learner.choose, learner.learn_all, text.accepted, text.tokens
    seconds = np.array([arm.seconds for arm in text.arms])
    scale = seconds / seconds.max() / (1 + max(arm.length for arm in text.arms))
    # counts modulo 256: a difference over at most 251 tokens is correct
    ended = np.zeros((end + 1, learner.arms), dtype=np.uint8)
    np.cumsum(text.ends.T, axis=0, dtype=np.uint8, out=ended[1:])
    everyone, at = range(learner.arms), 0
    played, accepted = bytearray(), bytearray()
    late: deque[list[float]] = deque()
    while at < end:
        arm, _ = choose(everyone, rng)
        n = reach[arm][at]
        start, at = at, min(at + n + 1, end)
        played.append(arm)
        accepted.append(n)
        late.append(((ended[at] - ended[start]) * scale).tolist())
        if len(late) > delay:
            learn_all(late.popleft())
    for losses in late:
        learn_all(losses)
    return played, accepted


@dataclass(slots=True)
class ByLastReward:
    """LinUCB on a constant and the latest reward, as a learner like any other.

    The context of a real round has more features; in a simulated text the latest reward is what distinguishes
    easy text from hard. Feedback must come in the order of the choices.
    """

    arms: int
    strength: float = field(default=0.5, kw_only=True)
    last: float = field(default=0.0, kw_only=True, metadata=LEARNED)
    linucb: LinUCB = field(init=False, metadata=LEARNED)
    contexts: deque[tuple[float, float]] = field(init=False, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.linucb = LinUCB(self.arms, 2, strength=self.strength)
        self.contexts = deque()

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        self.contexts.append((1.0, self.last))
        return self.linucb.choose(allowed, rng, self.contexts[-1])

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.last = reward
        self.linucb.update(arm, reward, propensity, self.contexts.popleft())

    def abort(self, arm: int) -> None:
        self.contexts.popleft()
        self.linucb.abort(arm)

    def estimates(self) -> list[float]:
        return self.linucb.estimates()


# -- several learners over seeds -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Player:
    """A learner by name; `keep` keeps what it learned from text to text."""

    name: str
    new: Callable[[int], Learner | FullInformation]
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The acceptance distribution, the arms, and the delay of feedback; `tokens` has each text's length."""

    acceptance: Acceptance
    arms: tuple[SimArm, ...]
    tokens: tuple[int, ...]
    delay: int = 0
    worth: Worth | None = None

    @property
    def marks(self) -> list[int]:
        """The token counts over all texts at which curves have points; the last is the end."""
        total = sum(self.tokens)
        points = min(POINTS, total)
        return [round(total * (i + 1) / points) for i in range(points)]


@dataclass(slots=True)
class Track:
    """Rounds and seconds of a player up to each mark: one list per seed, one number per mark."""

    rounds: list[list[int]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)

    def curves(self) -> dict[str, Vector]:
        """Rounds and seconds, shape (seeds, marks)."""
        return {"rounds": np.array(self.rounds, float), "seconds": np.array(self.seconds, float)}


@dataclass(slots=True)
class Course(Track):
    """The course of a player: also the rounds of each arm by stretch (arms, marks), and switches."""

    pulls: Vector = field(kw_only=True)
    switches: int = 0


def study(
    players: Sequence[Player],
    world: World,
    *,
    seeds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Play every player on the same texts for each seed; returns the record for `simulation.json`.

    Regret is in expectation: minus the arm that is best on average over the seeds, separately by rounds and
    by seconds. `progress` is called with the finished seeds and their total.
    """
    if seeds < 1 or not players:
        raise UserError(f"{len(players)} policies and {seeds} seeds: give at least one of each")
    marks = world.marks
    courses = [Course(pulls=np.zeros((len(world.arms), len(marks)))) for _ in players]
    alone = [Track() for _ in world.arms]
    for seed in range(seeds):
        progress(seed, seeds)
        rng, of = Random(seed), (world.acceptance, world.arms)
        texts = [Text.draw(*of, n, rng=rng, query=i) for i, n in enumerate(world.tokens)]
        for arm, track in enumerate(alone):
            rounds = [before + text.rounds(arm, at) for text, at, before in _at(texts, marks, arm)]
            track.rounds.append(rounds)
            track.seconds.append([n * world.arms[arm].seconds for n in rounds])
        for player, course in zip(players, courses, strict=True):
            _follow(player, course, world, texts, Random(seed + 10_000))
    progress(seeds, seeds)
    return _record(players, courses, alone, world)


def _at(texts: Sequence[Text], marks: Sequence[int], arm: int) -> Iterator[tuple[Text, int, int]]:
    """For each mark its text, its place there, and the arm's rounds in the previous texts."""
    number = start = before = 0
    for mark in marks:
        while mark - start > texts[number].tokens:
            start, before = start + texts[number].tokens, before + texts[number].rounds(arm)
            number += 1
        yield texts[number], mark - start, before


def _follow(player: Player, course: Course, world: World, texts: Sequence[Text], rng: Random) -> None:
    learner, runs = player.new(len(world.arms)), list[Run]()
    for number, text in enumerate(texts):
        if number and not player.keep:
            learner = player.new(len(world.arms))
        runs.append(play(learner, text, rng=rng, delay=world.delay, worth=world.worth))
    played = np.concatenate([run.played for run in runs])
    written = _written(runs, texts)
    cost = np.array([arm.seconds for arm in world.arms])[played]
    ends = np.searchsorted(written, world.marks) + 1
    course.rounds.append(ends.tolist())
    course.seconds.append(np.cumsum(cost)[ends - 1].tolist())
    stretch = np.searchsorted(ends, np.arange(len(played)), side="right")
    np.add.at(course.pulls, (played, stretch), 1.0)
    course.switches += sum(run.switches for run in runs)


def _written(runs: Sequence[Run], texts: Sequence[Text]) -> NDArray[np.int64]:
    """Return the tokens of all texts written after each round; a text's last round is cut at its end."""
    written, start = [], 0
    for run, text in zip(runs, texts, strict=True):
        written.append(start + np.minimum(np.cumsum(run.accepted.astype(np.int64) + 1), text.tokens))
        start += text.tokens
    return np.concatenate(written)


def _record(
    players: Sequence[Player], courses: Sequence[Course], alone: Sequence[Track], world: World
) -> dict[str, Any]:
    fixed = {key: np.stack([track.curves()[key] for track in alone]) for key in ("rounds", "seconds")}
    means = fixed["seconds"].mean(axis=1)
    stretches = np.diff(means, axis=1, prepend=0.0)
    policies = []
    for player, course in zip(players, courses, strict=True):
        curves = course.curves()
        row: dict[str, Any] = {"policy": player.name}
        for key, used in curves.items():
            best = fixed[key][fixed[key][:, :, -1].mean(axis=1).argmin()]
            row[key] = float(used[:, -1].mean())
            row[f"{key}_regret"] = (used - best).mean(axis=0).tolist()
            row[f"{key}_regret_error"] = _error(used - best)
        hits = course.pulls[stretches.argmin(axis=0), range(len(world.marks))]
        row["best_share"] = [
            h / n if n else None for h, n in zip(hits, course.pulls.sum(axis=0), strict=True)
        ]
        row["best_choices"] = float(hits.sum() / course.pulls.sum())
        row["pulls"] = course.pulls.sum(axis=1).astype(int).tolist()
        row["switches"] = course.switches / len(course.rounds)
        policies.append(row)
    return {"marks": world.marks, "arms": _arms(world, fixed), "policies": policies}


def _error(values: Vector) -> list[float | None]:
    """The standard error of the mean over seeds, the first axis; None for a single seed."""
    if len(values) < 2:
        return [None] * values.shape[1]
    errors: list[float | None] = (values.std(axis=0, ddof=1) / np.sqrt(len(values))).tolist()
    return errors


def _arms(world: World, fixed: dict[str, Vector]) -> list[dict[str, Any]]:
    totals = {key: value[:, :, -1].mean(axis=1) for key, value in fixed.items()}
    return [
        {
            "name": f"drafter-{arm.drafter + 1}:{arm.length}" if arm.length else "none",
            "drafter": arm.drafter,
            "length": arm.length,
            "seconds": arm.seconds,
            "rounds": float(totals["rounds"][i]),
            "total_seconds": float(totals["seconds"][i]),
        }
        for i, arm in enumerate(world.arms)
    ]
