"""Estimates for a drafter that did not write the text, against the true value by enumeration.

    python -m studies.theory.estimators [--pictures docs/pictures]

The forms are those of `draftwise.policies.recorders.cursors`. The true value comes from speculative sampling
by enumeration, every draft, acceptance and residual token with its probability, for vocabularies of a few
tokens. Distributions depend on the whole history, so nothing is i.i.d.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftwise.core.arms import NEVER, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Grade
from draftwise.core.stops import stop
from draftwise.policies.recorders.cursors import FORMS, Cursor, window
from studies.common.command import add_pictures, command, start

PAGE = "docs/explanation/theory.md"


History = tuple[int, ...]
Vector = NDArray[np.float64]
Distribution = Callable[[History], Vector]


def random_distribution(vocab: int, seed: int, *, sharp: float = 1.0) -> Distribution:
    """A distribution that depends on the whole history; `sharp` above 1 makes its rows less even."""
    rows: dict[History, Vector] = {}

    def distribution(history: History) -> Vector:
        if history not in rows:
            weights = np.random.default_rng([seed, *history]).exponential(size=vocab) ** sharp
            rows[history] = weights / weights.sum()
        return rows[history]

    return distribution


def near(distribution: Distribution, other: Distribution, share: float) -> Distribution:
    """A mixture of two distributions: `share` of the second."""
    return lambda history: (1.0 - share) * distribution(history) + share * other(history)


def greedy(distribution: Distribution) -> Distribution:
    """All weight on the most likely token, the lowest id among equals."""
    return lambda history: one_hot(int(distribution(history).argmax()), len(distribution(history)))


def one_hot(token: int, vocab: int) -> Vector:
    """The distribution with all weight on one token."""
    row = np.zeros(vocab)
    row[token] = 1.0
    return row


@dataclass(frozen=True, slots=True)
class Chain:
    """A model that samples drafts token by token from its own distribution, and stops by `stops`."""

    distribution: Distribution
    length: int
    stops: tuple[Stop, ...] = (NEVER,)

    def drafts(self, history: History) -> Iterator[tuple[History, list[Vector], float]]:
        """Every draft with the rows it was sampled from and its probability."""
        yield from self._drafts(history, (), [], 1.0, ())

    def _drafts(
        self, history: History, draft: History, rows: list[Vector], prob: float, seen: tuple[Signals, ...]
    ) -> Iterator[tuple[History, list[Vector], float]]:
        if len(draft) == self.length or (draft and self._ends(seen)):
            yield draft, rows, prob
            return
        q = self.distribution(history + draft)
        for token in np.flatnonzero(q).tolist():
            now = (*seen, signals(q, token))
            yield from self._drafts(history, (*draft, token), [*rows, q], prob * float(q[token]), now)

    def _ends(self, seen: tuple[Signals, ...]) -> bool:
        at = len(seen) - 1
        joint = float(np.prod([s.chosen for s in seen]))
        rule = self.stops[min(at, len(self.stops) - 1)]
        return bool(stop(rule, seen[at], position=at, previous=seen[at - 1] if at else None, joint=joint))

    def grades(self, p: Distribution, history: History, text: History) -> list[Grade]:
        """Its grade for every token of `text` after `history`."""
        grades = []
        for i, token in enumerate(text):
            before = history + text[:i]
            grades.append(grade(p(before), self.distribution(before), token))
        return grades


@dataclass(frozen=True, slots=True)
class Picked:
    """A lookup: it picks all tokens of a draft at the start of a round."""

    pick: Callable[[History], History]
    length: int

    def drafts(self, history: History) -> Iterator[tuple[History, list[Vector], float]]:
        """The one draft that it makes; a picked token is one of which its drafter is certain."""
        draft = self.pick(history)[: self.length]
        vocab = max(draft, default=0) + 1
        yield draft, [one_hot(token, vocab) for token in draft], 1.0

    def grades(self, p: Distribution, history: History, text: History) -> list[Grade]:
        """Its grade for every token of `text`, had its round started right after `history`."""
        draft = self.pick(history)[: self.length]
        rows = [p(history + text[:i]) for i in range(len(text))]
        return [grade(rows[i], one_hot(d, len(rows[i])), text[i]) for i, d in enumerate(draft[: len(text)])]


Drafter = Chain | Picked


def signals(q: Vector, token: int) -> Signals:
    """The inputs of a stop rule from one row."""
    top = np.sort(q)[::-1]
    entropy = float(-sum(x * np.log(x) for x in q if x > 0.0))
    return Signals(float(top[0]), float(top[1]), entropy, float(q[token]))


def grade(p: Vector, q: Vector, token: int) -> Grade:
    """accept = min(1, q(x) / p(x)) and overlap = sum_v min(p, q)."""
    return Grade(min(1.0, float(q[token] / p[token])), float(np.minimum(p, q).sum()), signals(q, token))


@lru_cache(maxsize=1 << 13)  # a text is reached by many rounds, and each estimate is about the same ones
def rounds(p: Distribution, drafter: Drafter, history: History) -> dict[History, float]:
    """The distribution of the tokens of one round, with the target's own (Leviathan et al. 2023)."""
    out: dict[History, float] = defaultdict(float)
    for draft, rows, prob in drafter.drafts(history):
        left = prob
        for j, token in enumerate(draft):
            row = p(history + draft[:j])
            q = np.zeros(len(row))
            q[: len(rows[j])] = rows[j]
            kept = min(1.0, float(row[token] / q[token]))
            residual = np.maximum(row - q, 0.0)
            for other in np.flatnonzero(residual).tolist() if kept < 1.0 else ():
                share = float(residual[other] / residual.sum())
                out[(*draft[:j], other)] += left * (1.0 - kept) * share
            left *= kept
            if left == 0.0:
                break
        else:
            row = p(history + draft)
            for other in np.flatnonzero(row).tolist():
                out[(*draft, other)] += left * float(row[other])
    return dict(out)


def chunk(p: Distribution, drafter: Drafter) -> float:
    """The true E[L]: the tokens of one round, the target's own included."""
    return sum(prob * len(tokens) for tokens, prob in rounds(p, drafter, ()).items())


def ends(p: Distribution, drafter: Drafter, budget: int) -> dict[tuple[History, int], float]:
    """The probability that the text starts so *and* that one of the arm's own rounds ends right there.

    Keys are (the first `budget` tokens, position from 1); a text ends where its budget does.
    """
    out: dict[tuple[History, int], float] = defaultdict(float)

    def go(text: History, marks: tuple[int, ...], prob: float) -> None:
        if len(text) >= budget:
            for mark in marks:
                out[text[:budget], mark] += prob
            return
        for tokens, chance in rounds(p, drafter, text).items():
            go(text + tokens, (*marks, len(text) + len(tokens)), prob * chance)

    go((), (), 1.0)
    return dict(out)


def count(p: Distribution, drafter: Drafter, budget: int) -> float:
    """The true mean number of rounds for a text of `budget` tokens."""

    @cache
    def left(budget: int, history: History) -> float:
        if budget <= 0:
            return 0.0
        distributions = rounds(p, drafter, history).items()
        return 1.0 + sum(
            prob * left(budget - len(tokens), history + tokens) for tokens, prob in distributions
        )

    return left(budget, ())


def texts(p: Distribution, length: int, history: History = ()) -> Iterator[tuple[History, float]]:
    """Every text of `length` tokens that the target may write, with its probability."""
    if not length:
        yield (), 1.0
        return
    row = p(history)
    for token in np.flatnonzero(row).tolist():
        for rest, prob in texts(p, length - 1, (*history, token)):
            yield (token, *rest), float(row[token]) * prob


# -- estimates -------------------------------------------------------------------------------------------


def moments(values: Iterator[tuple[float, float]]) -> tuple[float, float]:
    """Mean and variance of (value, probability) pairs."""
    pairs = list(values)
    mean = sum(prob * value for value, prob in pairs)
    return mean, sum(prob * (value - mean) ** 2 for value, prob in pairs)


def windows(p: Distribution, drafter: Drafter, form: str) -> tuple[float, float]:
    """Mean and variance of `cursors.window` along the target's own text."""
    stops = drafter.stops if isinstance(drafter, Chain) else (NEVER,)
    return moments(
        (window(drafter.grades(p, (), text), drafter.length, form=form, stops=stops), prob)
        for text, prob in texts(p, drafter.length)
    )


def own(p: Distribution, drafter: Drafter) -> tuple[float, float]:
    """Mean and variance of the drafter's own chunk: the feedback of a bandit that plays it."""
    return moments((float(len(tokens)), prob) for tokens, prob in rounds(p, drafter, ()).items())


def seen(
    p: Distribution, drafter: Drafter, played: Drafter, form: str, *, weigh: bool = True
) -> tuple[float, float]:
    """Mean and variance of the estimate from the tokens of one round that `played` drafted.

    `weigh` False leaves the weights out: the estimate is then merely cut off where the round ended.
    """

    def estimate(tokens: History) -> float:
        grades = drafter.grades(p, (), tokens)
        accepts = [g.accept for g in played.grades(p, (), tokens)] if weigh else []
        accepts += [1.0] * (len(tokens) - len(accepts))
        return window(grades[: len(tokens)], drafter.length, form=form, played=accepts)

    return moments((estimate(tokens), prob) for tokens, prob in rounds(p, played, ()).items())


def steps(p: Distribution, drafter: Drafter, text: History, form: str) -> list[float]:
    """`Cursor.step` along one text: the chance that a round of the arm ends with each token."""
    if isinstance(drafter, Chain):
        cursor = Cursor(drafter.length, stops=drafter.stops, form=form)
        return [cursor.step(g) for g in drafter.grades(p, (), text)]
    # A lookup is graded by the draft that it made where its own round began; a shorter one is a shorter arm.
    out: list[float] = []
    while len(out) < len(text):
        start = text[: len(out)]
        grades = drafter.grades(p, start, text[len(out) :])
        cursor = Cursor(len(drafter.pick(start)[: drafter.length]), form=form)
        rest = iter(grades)
        while len(out) < len(text):
            now = next(rest, Grade(0.0, 0.0))
            out.append(cursor.step(now))
            if now.accept == 0.0:
                break
    return out


def clustered(length: int) -> tuple[Distribution, Chain]:
    """Half the texts are all `a`, half all `b`, and the drafter predicts `a` only.

    The counterexample to the product form: one token tells how all the others will go.
    """

    def p(history: History) -> Vector:
        return one_hot(history[0], 2) if history else np.array([0.5, 0.5])

    return p, Chain(lambda history: one_hot(0, 2), length)


def locked(length: int = 4) -> tuple[Distribution, Chain, Chain]:
    """`steady` is right half the time; `starter` is right 3 times in 10 at first, and then always.

    Token 2 never comes: a drafter that puts 1 - c of its weight there accepts any text with chance c.
    """
    p = np.array([0.5, 0.5, 0.0])

    def right(chance: float) -> Vector:
        return chance * p + (1.0 - chance) * one_hot(2, 3)

    steady = Chain(lambda history: right(0.5), length)
    starter = Chain(lambda history: right(1.0 if history else 0.3), length)
    return lambda history: p, steady, starter


def example() -> tuple[Distribution, dict[str, Drafter], Drafter]:
    """A target over three tokens, drafters of each kind, and the one that wrote the text."""
    p = random_distribution(3, 1, sharp=1.5)
    q = near(p, random_distribution(3, 2, sharp=2.0), 0.7)

    def lookup(history: History) -> History:
        first = int(p(history).argmax())
        return (first, int(p((*history, first)).argmax()), first, 0)

    kinds: dict[str, Drafter] = {
        "model": Chain(q, 4),
        "greedy model": Chain(greedy(q), 4),
        "lookup": Picked(lookup, 4),
    }
    return p, kinds, Chain(near(p, random_distribution(3, 3, sharp=2.0), 0.8), 4)


def forms(p: Distribution, drafter: Drafter, played: Drafter) -> dict[str, tuple[float, float]]:
    """Mean and variance of every estimate of a drafter's chunk."""
    return {
        "rb": windows(p, drafter, "rb"),
        "ratio": windows(p, drafter, "ratio"),
        "product": windows(p, drafter, "product"),
        "weighted": seen(p, drafter, played, "rb"),
        "cut off": seen(p, drafter, played, "rb", weigh=False),
        "own rounds": own(p, drafter),
    }


def sums(p: Distribution, drafter: Drafter, budget: int) -> dict[str, float]:
    """Mean rounds of a text of `budget` tokens: the truth, and the mean of each form's steps."""
    out = {"truth": count(p, drafter, budget)}
    for form in FORMS:
        distribution = texts(p, budget)
        out[form] = sum(prob * (sum(steps(p, drafter, text, form)[:-1]) + 1.0) for text, prob in distribution)
    return out


def draw(path: Path) -> None:
    """The counterexample by draft length, and the variance of each form."""
    from studies.common.plot import panels, save

    figure, (left, right) = panels(2)
    lengths = range(1, 11)
    pairs = [clustered(length) for length in lengths]
    left.plot(lengths, [chunk(*pair) for pair in pairs], label="truth")
    for form, line, label in (("rb", "o", "rb, ratio: mean"), ("product", "s-", "product: mean")):
        left.plot(lengths, [windows(*pair, form)[0] for pair in pairs], line, ms=4, label=label)
    left.set(title="Clustered agreement", xlabel="draft length", ylabel="tokens per round")
    left.legend()
    p, kinds, played = example()
    for at, (name, drafter) in enumerate(kinds.items()):
        values = {form: v for form, (_, v) in forms(p, drafter, played).items() if form != "cut off"}
        places = [i + 0.25 * (at - 1) for i in range(len(values))]
        right.bar(places, list(values.values()), 0.22, label=name)
    right.set(yscale="log", title="Variance of one estimate", ylabel="tokens squared")
    right.set_xticks(
        range(len(values)),
        [f"{form}\n(biased)" if form == "product" else form.replace(" ", "\n") for form in values],
    )
    right.set_ylim(top=20.0)
    right.legend(ncols=3, loc="upper left", columnspacing=1.0)
    save(figure, path)


def main() -> None:
    parser = command(__doc__, PAGE)
    add_pictures(parser)
    folder = parser.parse_args().pictures
    p, kinds, played = example()
    for name, drafter in kinds.items():
        print(f"\n{name}: truth {chunk(p, drafter):.4f}")
        for form, (mean, variance) in forms(p, drafter, played).items():
            print(f"  {form:<11}{mean:.4f}  variance {variance:.4f}  bias {mean - chunk(p, drafter):+.1e}")
        whole = sums(p, drafter, 6).items()
        print("  rounds of six tokens:", ", ".join(f"{form} {mean:.4f}" for form, mean in whole))
    print("\nclustered agreement: length, truth, rb, product")
    for length in (2, 5, 10):
        pair = clustered(length)
        print(
            length, f"{chunk(*pair):.4f}", *(f"{windows(*pair, form)[0]:.4f}" for form in ("rb", "product"))
        )
    distribution, steady, starter = locked()
    print("\ntruth: steady", chunk(distribution, steady), "starter", chunk(distribution, starter))
    for name, writer in (("steady", steady), ("starter", starter)):
        for weigh in (False, True):
            means = (seen(distribution, one, writer, "rb", weigh=weigh)[0] for one in (steady, starter))
            print(f"{name} plays, {'weighted' if weigh else 'cut off'}:", *(f"{x:.4f}" for x in means))
    draw(folder / "estimators.svg")


if __name__ == "__main__":
    start(main)
