"""Learners on simulated texts, where drafters are right with given probabilities: numbers only, no models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..core.outcomes import Outcome
from ..errors import UserError
from ..policies.learners.learner import FullInformation, Learner
from ..policies.learners.linucb import LinUCB
from ..policies.recorders.bandit import accepted as accepted_share
from ..state.learned import LEARNED

Hits = NDArray[np.bool_]
Worth = Sequence[Sequence[float]]
POINTS = 40  # points of a curve


# -- texts ------------------------------------------------------------------------------------------------


class Acceptance(Protocol):
    """Samples which tokens of a text each drafter predicts: shape (drafters, tokens)."""

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits: ...


@dataclass(frozen=True, slots=True)
class Switching:
    """Acceptance probabilities, one per drafter, that cycle through `phases`.

    With `every` tokens they change inside a text, otherwise once per text.
    """

    phases: Sequence[Sequence[float]]
    every: int = 0

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        """Return where each drafter is right in text number `query`."""
        phase: Any = np.arange(tokens) // self.every if self.every else query
        by_drafter = np.asarray(self.phases, np.float32)[phase % len(self.phases)].T
        return np.stack([rng.random(tokens, dtype=np.float32) < chances for chances in by_drafter])


class Stationary(Switching):
    """Drafter i is right with probability `chances[i]` at every token, independently of the past.

    The stationary arms of BanditSpec (arXiv 2505.15141), section 4, and of MetaSD (arXiv 2604.05417).
    """

    def __init__(self, chances: Sequence[float]) -> None:
        super().__init__([chances])


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of easy and of hard text: a two-state Markov chain selects the probability.

    Runs of easy tokens have a geometric length of mean `easy_run`, hard ones of `hard_run`, both at least 1.
    The chain is shared by all drafters and starts in its stationary distribution.
    """

    easy: Sequence[float]
    hard: Sequence[float]
    easy_run: float = 20.0
    hard_run: float = 20.0

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        """Return where each drafter is right."""
        chain, pairs = self._chain(tokens, rng), zip(self.easy, self.hard, strict=True)
        by_drafter = [np.where(chain, np.float32(easy), np.float32(hard)) for easy, hard in pairs]
        return np.stack([rng.random(tokens, dtype=np.float32) < chances for chances in by_drafter])

    def _chain(self, tokens: int, rng: np.random.Generator) -> Hits:
        """Return True where it is easy; geometric runs are memoryless, so the first is like any other."""
        easy = bool(rng.random() < self.easy_run / (self.easy_run + self.hard_run))
        means = (self.easy_run, self.hard_run) if easy else (self.hard_run, self.easy_run)
        pairs = int(tokens / sum(means) * 1.2) + 16
        pieces, total = [], 0
        while total < tokens:
            lengths = np.stack([rng.geometric(1.0 / mean, pairs) for mean in means], axis=1).ravel()
            pieces.append(np.repeat(np.tile([easy, not easy], pairs), lengths))
            total += int(lengths.sum())
        return np.concatenate(pieces)[:tokens]


@dataclass(frozen=True, slots=True)
class SimArm:
    """A round of `length` (0 to 250) draft tokens by drafter number `drafter`.

    It takes `draft` seconds per draft token and one second for the target's pass.
    """

    drafter: int
    length: int = 5
    draft: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return self.length * self.draft + 1.0


@dataclass(frozen=True, slots=True)
class Text:
    """A text of `tokens` tokens for `arms`, sampled before any learner plays on it.

    `accepted[arm][t]` is how many tokens a round of the arm that starts at token t gets accepted, counted
    before the text is cut at its end. `ends[arm, t]` says whether a round of the arm ends with token t if the
    arm plays alone from the start: its virtual cursor.
    """

    arms: tuple[SimArm, ...]
    tokens: int
    accepted: tuple[bytes, ...]
    ends: Hits

    @classmethod
    def draw(
        cls, acceptance: Acceptance, arms: Sequence[SimArm], tokens: int, *, rng: Random, query: int = 0
    ) -> Text:
        """Draw a text by `acceptance`; `query` is its number, for distributions that change between texts."""
        longest = max(arm.length for arm in arms)
        hits = acceptance.hits(query, tokens + longest, np.random.default_rng(rng.getrandbits(64)))
        accepted = tuple(_accepted(hits[arm.drafter], arm.length)[:tokens].tobytes() for arm in arms)
        ends = np.stack([_ends(hits[arm.drafter, :tokens], arm.length) for arm in arms])
        return cls(tuple(arms), tokens, accepted, ends)


def _accepted(hits: Hits, length: int) -> NDArray[np.uint8]:
    """Return consecutive hits from each position on, at most `length`."""
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.where(hits, np.int32(len(hits)), places)
    miss = np.minimum.accumulate(miss[::-1])[::-1]
    return np.minimum(miss - places, length).astype(np.uint8)


def _ends(hits: Hits, length: int) -> Hits:
    """Return where rounds end: at a miss, which the target corrects, or after `length` hits and its token.

    That token counts whether the drafter predicted it or not, so the next round starts at the same place
    either way, and the rounds between two misses are `length` + 1 tokens each.
    """
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.maximum.accumulate(np.where(hits, np.int32(-1), places))
    return cast(Hits, (places - miss) % (length + 1) == 0)


def count_rounds(texts: Sequence[Text], arm: int) -> NDArray[np.int64]:
    """Return the rounds that `arm` alone needs up to each token of all texts; a text may cut its last one."""
    ends = np.concatenate([np.append(text.ends[arm, :-1], True) for text in texts])
    rounds: NDArray[np.int64] = np.cumsum(ends) + ~ends
    return rounds


# -- learners on texts ------------------------------------------------------------------------------------


def by_reward(arms: Sequence[SimArm], reward: Callable[[Outcome, int], float]) -> Worth:
    """Return the table worth[arm][accepted] of a stateless reward of `policies.recorders.bandit`."""
    longest = max(arm.length for arm in arms)
    return [
        [reward(Outcome(i, n, arm.length, arm.seconds), longest) for n in range(arm.length + 1)]
        for i, arm in enumerate(arms)
    ]


def by_rate(arms: Sequence[SimArm]) -> Worth:
    """Return the table worth[arm][accepted] of tokens per second over the most that any arm can reach."""
    top = max((arm.length + 1) / arm.seconds for arm in arms)
    return [[(n + 1) / arm.seconds / top for n in range(arm.length + 1)] for arm in arms]


def play(
    learner: Learner | FullInformation,
    text: Text,
    *,
    rng: Random,
    delay: int = 0,
    worth: Worth | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Play a learner on one text; returns the arm of each round, and its accepted tokens.

    The last round may be cut at the text's end; accepted tokens count before that. The feedback of a round
    arrives after `delay` further choices (a batch of b requests waits up to b - 1), the rest when the text
    ends. A bandit's reward is `worth[arm][accepted]`, by default accepted tokens over the longest draft. Full
    information ignores `worth`: see `_losses`.

    Raises:
        UserError: more than 256 arms.
    """
    if learner.arms > 256:
        raise UserError(f"{learner.arms} arms: a run keeps one byte a round, give 256 at most")
    rewards = worth or by_reward(text.arms, accepted_share)
    has_losses = hasattr(learner, "learn_all")
    losses = _losses(text) if has_losses else None
    learn: Callable[..., None] = cast(Any, learner).learn_all if has_losses else cast(Any, learner).update
    choose, reach, end, everyone, at = learner.choose, text.accepted, text.tokens, range(learner.arms), 0
    played, accepted = bytearray(), bytearray()
    late: deque[tuple[Any, ...]] = deque()
    while at < end:
        arm, chance = choose(everyone, rng)
        n = reach[arm][at]
        start, at = at, min(at + n + 1, end)
        played.append(arm)
        accepted.append(n)
        late.append((losses(start, at),) if losses else (arm, rewards[arm][n], chance))
        if len(late) > delay:
            learn(*late.popleft())
    for feedback in late:
        learn(*feedback)
    return np.frombuffer(played, np.uint8), np.frombuffer(accepted, np.uint8)


def _losses(text: Text) -> Callable[[int, int], list[float]]:
    """Return the losses of a round by its first token and its end: the time of each arm's own rounds there.

    Over the text these sum to the arm's own seconds, up to the round cut at the end. They are scaled into
    [0, 1] by their maximum: the longest chunk as rounds of one token by the slowest arm.
    """
    seconds = np.array([arm.seconds for arm in text.arms])
    scale = seconds / seconds.max() / (1 + max(arm.length for arm in text.arms))
    # counts modulo 256: a difference over at most 251 tokens is correct
    ended = np.zeros((text.tokens + 1, len(text.arms)), dtype=np.uint8)
    np.cumsum(text.ends.T, axis=0, dtype=np.uint8, out=ended[1:])

    def losses(start: int, end: int) -> list[float]:
        return cast("list[float]", ((ended[end] - ended[start]) * scale).tolist())

    return losses


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
    def marks(self) -> NDArray[np.int64]:
        """The token counts over all texts at which curves have points; the last is the end."""
        total = sum(self.tokens)
        points = min(POINTS, total)
        return np.array([round(total * (i + 1) / points) for i in range(points)])


class Course:
    """The course of a player over seeds: `rounds` and `seconds` have shape (seeds, marks).

    `pulls` are the rounds of each arm between one mark and the next, shape (arms, marks).
    """

    def __init__(self, arms: int, seeds: int, marks: int) -> None:
        self.rounds, self.seconds = np.zeros((seeds, marks)), np.zeros((seeds, marks))
        self.pulls, self.switches = np.zeros((arms, marks)), 0

    def follow(self, seed: int, player: Player, world: World, texts: Sequence[Text]) -> None:
        """Play the texts of one seed."""
        learner, rng = player.new(len(world.arms)), Random(seed + 10_000)
        arms, ends, start = [], [], 0
        for number, text in enumerate(texts):
            if number and not player.keep:
                learner = player.new(len(world.arms))
            played, accepted = play(learner, text, rng=rng, delay=world.delay, worth=world.worth)
            arms.append(played)
            ends.append(start + np.minimum(np.cumsum(accepted.astype(np.int64) + 1), text.tokens))
            start += text.tokens
            self.switches += int(np.count_nonzero(played[1:] != played[:-1]))
        arm = np.concatenate(arms)
        reached = np.searchsorted(np.concatenate(ends), world.marks) + 1  # rounds until each mark
        seconds = np.array([arm.seconds for arm in world.arms])[arm]
        self.rounds[seed] = reached
        self.seconds[seed] = np.cumsum(seconds)[reached - 1]
        np.add.at(self.pulls, (arm, np.searchsorted(reached, np.arange(len(arm)), side="right")), 1.0)


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
    marks, arms = world.marks, world.arms
    courses = [Course(len(arms), seeds, len(marks)) for _ in players]
    alone = np.zeros((len(arms), seeds, len(marks)))  # rounds of each arm
    for seed in range(seeds):
        progress(seed, seeds)
        rng = Random(seed)
        texts = [Text.draw(world.acceptance, arms, n, rng=rng, query=i) for i, n in enumerate(world.tokens)]
        for arm in range(len(arms)):
            alone[arm, seed] = count_rounds(texts, arm)[marks - 1]
        for player, course in zip(players, courses, strict=True):
            course.follow(seed, player, world, texts)
    progress(seeds, seeds)
    fixed = {"rounds": alone, "seconds": alone * np.array([arm.seconds for arm in arms])[:, None, None]}
    policies = [_policy_row(*pair, fixed) for pair in zip(players, courses, strict=True)]
    return {"marks": marks.tolist(), "arms": _arm_rows(arms, fixed), "policies": policies}


def _policy_row(player: Player, course: Course, fixed: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    row: dict[str, Any] = {"policy": player.name}
    for key, used in (("rounds", course.rounds), ("seconds", course.seconds)):
        regret = used - fixed[key][fixed[key][:, :, -1].mean(axis=1).argmin()]
        row[key] = float(used[:, -1].mean())
        row[f"{key}_regret"] = regret.mean(axis=0).tolist()
        row[f"{key}_regret_error"] = _error(regret)
    stretches = np.diff(fixed["seconds"].mean(axis=1), axis=1, prepend=0.0)
    hits, rounds = course.pulls[stretches.argmin(axis=0), range(stretches.shape[1])], course.pulls.sum(axis=0)
    row["best_share"] = [h / n if n else None for h, n in zip(hits, rounds, strict=True)]
    row["best_choices"] = float(hits.sum() / rounds.sum())
    row["pulls"] = course.pulls.sum(axis=1).astype(int).tolist()
    row["switches"] = course.switches / len(course.rounds)
    return row


def _error(values: NDArray[np.float64]) -> list[float | None]:
    """Return the standard error of the mean over seeds, the first axis; None for a single seed."""
    if len(values) < 2:
        return [None] * values.shape[1]
    return cast("list[float | None]", (values.std(axis=0, ddof=1) / np.sqrt(len(values))).tolist())


def _arm_rows(arms: Sequence[SimArm], fixed: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    rounds, seconds = (fixed[key][:, :, -1].mean(axis=1).tolist() for key in ("rounds", "seconds"))
    return [
        {
            "name": f"drafter-{arm.drafter + 1}:{arm.length}" if arm.length else "none",
            "drafter": arm.drafter,
            "length": arm.length,
            "seconds": arm.seconds,
            "rounds": rounds[i],
            "total_seconds": seconds[i],
        }
        for i, arm in enumerate(arms)
    ]
