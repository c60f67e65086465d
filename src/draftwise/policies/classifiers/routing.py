"""A text classifier over prompts, and the policy that plays the drafter it picks for the whole text.

One Safetensors file, `model.safetensors`, whose metadata, all of it text, is

    format       draftwise-router
    version      1
    drafters     their names, a JSON list: the classes
    vocabulary   the fingerprint of the tokenizer that the terms are written in

and whose tensors are

    terms    (F, n) int32   runs of up to n tokens, padded with -1 on the right
    idf      (F) float32    inverse document frequencies
    weight   (C, F) float32, bias (C) float32

A text is counted by its terms, 1 + ln(count) each, times idf, brought to length 1; the class with the largest
weight . x + bias is the route: scikit-learn's TfidfVectorizer(sublinear_tf=True) and LogisticRegression.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arms import Arm, Context, Decision
from ...core.outcomes import Feedback
from ...errors import UserError
from ...inputs import expanded
from ..arms import in_use
from . import files

FORMAT, VERSION = "draftwise-router", "1"
SAID = {"format": FORMAT, "version": VERSION}
FILE = "model.safetensors"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """A linear classifier on runs of tokens (TF-IDF): numbers only, so that replays can ask it too.

    Shapes: idf (F), weight (C, F), bias (C); `terms` has F runs of tokens and `drafters` C names.

    Raises:
        UserError: shapes that do not fit together, or a number that is not finite.
    """

    drafters: tuple[str, ...]
    terms: Mapping[tuple[int, ...], int] = field(repr=False)
    idf: Array = field(repr=False)
    weight: Array = field(repr=False)
    bias: Array = field(repr=False)
    vocabulary: str = ""

    def __post_init__(self) -> None:
        classes, terms = len(self.drafters), len(self.terms)
        wanted = {"idf": (terms,), "weight": (classes, terms), "bias": (classes,)}
        for name, shape in wanted.items():
            found = getattr(self, name)
            if np.shape(found) != shape or not classes or not terms:
                raise UserError(f"{name} has the shape {np.shape(found)} where {shape} fits")
            if not np.isfinite(found).all():
                raise UserError(f"{name} has a value that is not a finite number")

    def scores(self, tokens: Sequence[int]) -> list[float]:
        """One number a drafter, in their order: the higher, the better it suits the text."""
        longest = max(map(len, self.terms))
        counts = Counter(index for run in runs(tokens, longest) if (index := self.terms.get(run)) is not None)
        if not counts:
            return [float(b) for b in self.bias]
        found = np.fromiter(counts.keys(), np.int64, len(counts))
        x = np.array([1.0 + log(n) for n in counts.values()]) * self.idf[found]
        x /= np.sqrt(x @ x)
        scores: list[float] = (self.weight[:, found] @ x + self.bias).tolist()
        return scores


@dataclass(slots=True)
class RoutedPolicy:
    """One arm for each drafter that the router knows, in its order; it learns nothing.

    The text is classified once when it is opened, and again with each turn of a conversation. Where the best
    drafter is out of use, the next best plays.
    """

    arms: tuple[Arm, ...]
    router: Router
    reads_hints: bool = False
    routes: dict[int, list[float]] = field(default_factory=dict)

    def open(self, request: int, tokens: Sequence[int]) -> None:
        """Read the prompt, or all there is of a conversation."""
        self.routes[request] = self.router.scores(tokens)

    def choose(self, context: Context, rng: Random) -> Decision:
        scores = self.routes[context.request]
        arm = max(in_use(self.arms, context), key=scores.__getitem__)
        return Decision(arm, 1.0, self.arms[arm].stops)

    def learn(self, feedback: Feedback) -> None:
        """A router is trained beforehand."""

    def close(self, request: int) -> None:
        self.routes.pop(request, None)

    def check(self, vocabulary: str) -> None:
        """See that the router's terms are of this tokenizer, by its fingerprint.

        Raises:
            UserError: they are of another.
        """
        if self.router.vocabulary and self.router.vocabulary != vocabulary:
            raise UserError(
                "the router was trained for another tokenizer: train one for this target with "
                "`draftwise train router`"
            )


def runs(tokens: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """Return every run of up to `longest` tokens, as often as it stands there."""
    ids = tuple(tokens)
    return [ids[i : i + n] for n in range(1, longest + 1) for i in range(len(ids) - n + 1)]


def save(router: Router, folder: str | os.PathLike[str]) -> None:
    """Write a router into a folder."""
    longest = max(map(len, router.terms))
    terms = np.full((len(router.terms), longest), -1, np.int32)
    for run, index in router.terms.items():
        terms[index, : len(run)] = run
    tensors = {"terms": terms}
    for name in ("idf", "weight", "bias"):
        tensors[name] = np.ascontiguousarray(getattr(router, name), np.float32)
    said = {"drafters": json.dumps(list(router.drafters)), "vocabulary": router.vocabulary}
    files.save(Path(folder) / FILE, tensors, SAID | said)


def load(path: str | os.PathLike[str]) -> Router:
    """Read a router from its folder or file.

    Raises:
        UserError: there is none, or it is damaged or of another version.
    """
    place = expanded(path)
    file = place / FILE if place.is_dir() else place
    return files.load(file, _made, SAID, "router", "give a folder that `draftwise train router` made")


def _made(said: Mapping[str, str], tensors: Mapping[str, Array]) -> Router:
    rows = tensors["terms"].tolist()
    terms = {tuple(token for token in run if token >= 0): i for i, run in enumerate(rows)}
    idf, weight, bias = (tensors[name].astype(np.float64) for name in ("idf", "weight", "bias"))
    drafters = tuple(map(str, json.loads(said["drafters"])))
    return Router(drafters, terms, idf, weight, bias, said.get("vocabulary", ""))
