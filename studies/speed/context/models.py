"""Models of acceptance that learn online: the chance of each token of a draft, by what is known before."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from typing import Protocol

from draftwise.policies.auto.parts import new_skill

from .rows import LONGEST

Features = Mapping[str, int]
DEPTHS = (0, 1, 3, 7)  # the last position of each bucket but one
SURE = 1e-3  # no chance is nearer to 0 or 1


class Model(Protocol):
    """Says and learns the chances of a draft's tokens, given that those before were accepted."""

    def chances(self, features: Features) -> Sequence[float]: ...

    def learn(self, features: Features, accepts: Sequence[float]) -> None: ...

    def close(self) -> None:
        """The text is over."""
        ...


class Table:
    """The model of `auto`: counts by match length and position, and counts of the text."""

    def __init__(self) -> None:
        self.skill, self.text = new_skill(least=0.0), 0

    def chances(self, features: Features) -> Sequence[float]:
        """Ratios of the curve of survival."""
        curve = [1.0, *self.skill.survival(self.text, features["match"])]
        return [after / before for before, after in pairwise(curve)]

    def learn(self, features: Features, accepts: Sequence[float]) -> None:
        """One draft."""
        self.skill.learn(self.text, features["match"], accepts)

    def close(self) -> None:
        """The next text."""
        self.skill.close(self.text)
        self.text += 1


Counts = tuple[list[float], list[float]]


class Tree:
    """Counts by contexts from coarse to fine; each leans on the one before, and the text's on the last."""

    def __init__(self, levels: Sequence[Sequence[str]], *, lean: float = 4.0, own: float = 12.0) -> None:
        self.levels, self.lean, self.own = levels, lean, own
        self.counts: dict[tuple[int, ...], Counts] = {}
        self.mine: dict[int, Counts] = {}

    def chances(self, features: Features) -> Sequence[float]:
        """The finest context last."""
        chances = [0.5] * LONGEST
        for key in self._keys(features):
            if counts := self.counts.get(key):
                chances = _leaning(counts, chances, self.lean)
        counts = self.mine.get(features["match"])
        return _leaning(counts, chances, self.own) if counts else chances

    def learn(self, features: Features, accepts: Sequence[float]) -> None:
        """One draft."""
        for key in self._keys(features):
            _count(self.counts.setdefault(key, ([0.0] * LONGEST, [0.0] * LONGEST)), accepts, 0.997)
        mine = self.mine.setdefault(features["match"], ([0.0] * LONGEST, [0.0] * LONGEST))
        _count(mine, accepts, 0.95)

    def close(self) -> None:
        """Forget the text's own counts."""
        self.mine = {}

    def _keys(self, features: Features) -> list[tuple[int, ...]]:
        return [(i, *(features.get(name, 0) for name in level)) for i, level in enumerate(self.levels)]


def _leaning(counts: Counts, on: Sequence[float], lean: float) -> list[float]:
    return [(a + lean * p) / (t + lean) for t, a, p in zip(*counts, on, strict=True)]


def _count(counts: Counts, accepts: Sequence[float], memory: float) -> None:
    tested, accepted = counts
    for k, accept in enumerate(accepts):
        tested[k] = memory * tested[k] + 1.0
        accepted[k] = memory * accepted[k] + accept


class Logistic:
    """A weight for each class of each feature, common to all positions and by bucket of them (AdaGrad)."""

    def __init__(self, names: Sequence[str], *, rate: float = 0.15) -> None:
        self.names, self.rate = names, rate
        self.weights: dict[tuple[str, int, int], float] = {}
        self.squares: dict[tuple[str, int, int], float] = {}
        self.mine = [0.0] * (len(DEPTHS) + 1)

    def chances(self, features: Features) -> Sequence[float]:
        """One chance for each bucket."""
        by = [_sigmoid(self._sum(features, bucket)) for bucket in range(len(DEPTHS) + 1)]
        return [by[bisect_left(DEPTHS, k)] for k in range(LONGEST)]

    def learn(self, features: Features, accepts: Sequence[float]) -> None:
        """One step for each tested token."""
        for k, accept in enumerate(accepts):
            bucket = bisect_left(DEPTHS, k)
            miss = accept - _sigmoid(self._sum(features, bucket))
            for key in self._keys(features, bucket):
                square = self.squares[key] = self.squares.get(key, 0.1) + miss * miss
                self.weights[key] = self.weights.get(key, 0.0) + self.rate * miss / sqrt(square)
            self.mine[bucket] = 0.98 * self.mine[bucket] + 0.1 * miss

    def close(self) -> None:
        """Forget the text's own weights."""
        self.mine = [0.0] * len(self.mine)

    def _sum(self, features: Features, bucket: int) -> float:
        return sum(self.weights.get(key, 0.0) for key in self._keys(features, bucket)) + self.mine[bucket]

    def _keys(self, features: Features, bucket: int) -> list[tuple[str, int, int]]:
        known = [(name, features.get(name, 0), at) for name in self.names for at in (-1, bucket)]
        return [("", 0, bucket), *known]


class Hedge:
    """A mixture of models, weighted by their losses so far (Hedge with a fixed share)."""

    def __init__(self, parts: Sequence[Model], *, rate: float = 0.3, share: float = 0.02) -> None:
        self.parts, self.rate, self.share = parts, rate, share
        self.weights = [1.0 / len(parts)] * len(parts)

    def chances(self, features: Features) -> Sequence[float]:
        """The weighted mean."""
        said = [part.chances(features) for part in self.parts]
        return [sum(w * p for w, p in zip(self.weights, ps, strict=True)) for ps in zip(*said, strict=True)]

    def learn(self, features: Features, accepts: Sequence[float]) -> None:
        """The models that said it best gain weight; all of them learn."""
        lost = [loss(part.chances(features), accepts) for part in self.parts]
        made = [w * exp(-self.rate * (x - min(lost))) for w, x in zip(self.weights, lost, strict=True)]
        total = sum(made)
        self.weights = [(1.0 - self.share) * w / total + self.share / len(made) for w in made]
        for part in self.parts:
            part.learn(features, accepts)

    def close(self) -> None:
        """Of all parts."""
        for part in self.parts:
            part.close()


def loss(chances: Sequence[float], accepts: Sequence[float]) -> float:
    """The log-loss of these tokens in nats, summed."""
    clipped = [min(max(p, SURE), 1.0 - SURE) for p in chances[: len(accepts)]]
    return -sum(log(p if accept else 1.0 - p) for p, accept in zip(clipped, accepts, strict=True))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x)) if x > -30.0 else 0.0


def compared() -> Mapping[str, Callable[[], Model]]:
    """The models that are compared; the first is that of `auto`."""
    tree = [(), ("match",), ("last token",)]
    views = ("last token", "target's entropy", "agreement", "lookup's share")
    return {
        "table of `auto`": Table,
        "tree: match": lambda: Tree(tree[:2]),
        "tree: match, last token": lambda: Tree(tree),
        "Hedge over five trees": lambda: Hedge(
            [Tree(tree[:2]), *(Tree([*tree[:2], ("match", view)]) for view in views)]
        ),
        "logistic: match": lambda: Logistic(["match"]),
        "logistic: match, last token": lambda: Logistic(["match", "last token"]),
        "logistic: all": lambda: Logistic(["match", "other match", "last round", "recent hits", *views]),
    }


def features(names: Sequence[str]) -> Mapping[str, Callable[[], Model]]:
    """A logistic model by match alone, and one more for each other feature."""
    more = {name: _with(name) for name in names if name != "match"}
    return {"match": lambda: Logistic(["match"]), **more}


def _with(name: str) -> Callable[[], Model]:
    return lambda: Logistic(["match", name])
