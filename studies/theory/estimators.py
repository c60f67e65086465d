"""Estimates for a drafter that did not write the text, against the true value by enumeration.

    python -m studies.theory.estimators [--pictures docs/pictures]

The forms are those of `draftwise.policies.recorders.cursors`; the true value comes from enumerated
speculative sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from draftwise.core.arms import NEVER
from draftwise.core.outcomes import Grade
from draftwise.policies.recorders.cursors import FORMS, Cursor, window
from studies.common.command import add_pictures, command, start
from studies.theory.enumeration import (
    Chain,
    Distribution,
    Drafter,
    History,
    Picked,
    Vector,
    chunk,
    count,
    greedy,
    near,
    one_hot,
    random_distribution,
    rounds,
    texts,
)

PAGE = "docs/explanation/theory.md"


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
