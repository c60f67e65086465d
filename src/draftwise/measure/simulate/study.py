"""Several learners on the same simulated texts, over seeds: curves of regret and of arms played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...policies.learners.learner import FullInformation, Learner
from .play import Run, play
from .text import Acceptance, SimArm, Text, Worth

Vector = NDArray[np.float64]
POINTS = 40  # points of a curve


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
