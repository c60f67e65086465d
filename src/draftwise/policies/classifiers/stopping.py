"""Classifiers that say how likely the target is to accept a drafted token: signals in, one chance out.

The stop rules `disco` and `specdecpp` ask one after each token. A classifier is one Safetensors file of float
tensors (16, 32 or 64 bits), whose metadata, all of it text, is

    format    draftwise-scorer
    version   1
    kind      disco or specdecpp
    layers    disco: 2; specdecpp: the number D of residual blocks a state goes through, 0 to 64
    width     disco: of the hidden layer; specdecpp: of the drafter's hidden state
    shared    specdecpp: true where one block is gone through D times, false where each has its own weights
    drafter   the fingerprint of the drafter it was trained for, empty if unknown

and whose tensors are laid out as `torch.nn.Linear` has them, outputs first:

    disco       hidden.weight (width, 12), hidden.bias (width), out.weight (1, width), out.bias (1)
    specdecpp   blocks.I.weight (width, width) and blocks.I.bias (width) for I = 0 ... D - 1, or I = 0 alone
                where shared; out.weight (2, width), out.bias (2), the outputs being rejected, accepted

Inputs are not scaled: fold the scaling used in training into the first layer. `save` writes such a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, tanh
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core.drafts import Signals
from ...core.stops import TOP
from ...errors import UserError
from . import files

FORMAT, VERSION = "draftwise-scorer", "1"
INPUTS = TOP + 2
DEEPEST = 64  # residual blocks: more would be a damaged number
DISCO = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
Floats: TypeAlias = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Disco:
    """DISCO's classifier: two layers on the drafter's ten largest probabilities (arXiv 2405.04304).

    The chance is sigmoid(v . relu(W x + b) + c) with x from `features`. The paper calls it a feed-forward
    network of two layers and leaves its activation and width open: ReLU here, and the width is the file's.
    Shapes: W (width, 12), b (width), v (1, width), c (1).

    Raises:
        UserError: shapes that do not fit together, or a weight that is not finite.
    """

    kind: ClassVar[str] = "disco"
    layers: ClassVar[int] = 2

    hidden_weight: Floats = field(repr=False)
    hidden_bias: Floats = field(repr=False)
    out_weight: Floats = field(repr=False)
    out_bias: Floats = field(repr=False)
    drafter: str = ""

    def __post_init__(self) -> None:
        width, *_ = np.shape(self.hidden_weight) or (0,)
        self.hidden_weight = _checked("hidden.weight", self.hidden_weight, (width, INPUTS))
        self.hidden_bias = _checked("hidden.bias", self.hidden_bias, (width,))
        self.out_weight = _checked("out.weight", self.out_weight, (1, width))
        self.out_bias = _checked("out.bias", self.out_bias, (1,))

    @property
    def width(self) -> int:
        return len(self.hidden_weight)

    def score(self, now: Signals) -> float:
        with np.errstate(all="ignore"):
            h = self.hidden_weight @ features(now)
            h += self.hidden_bias
            np.maximum(h, 0.0, out=h)
            return _sigmoid(float((self.out_weight @ h)[0] + self.out_bias[0]))

    def tensors(self) -> dict[str, Floats]:
        weights = (self.hidden_weight, self.hidden_bias, self.out_weight, self.out_bias)
        return dict(zip(DISCO, weights, strict=True))


@dataclass(slots=True, eq=False)
class SpecDecPlus:
    """SpecDec++'s acceptance head: residual blocks x + SiLU(W x + b) on the drafter's last hidden state, then
    a linear layer to the two outputs rejected and accepted, of which the softmax is taken.

    arXiv 2405.19715, section 3.2; depth and form are those of its code, which repeats *one* block D times
    (`repeat`, D = 3 in its example); a file may have D separate `blocks` instead. The state is the one that
    the model's output layer reads. Shapes: each W (width, width), b (width); out (2, width) and (2).

    Raises:
        UserError: shapes that do not fit together, or a weight that is not finite.
    """

    kind: ClassVar[str] = "specdecpp"

    blocks: tuple[tuple[Floats, Floats], ...] = field(repr=False)
    out_weight: Floats = field(repr=False)
    out_bias: Floats = field(repr=False)
    repeat: int = 1
    drafter: str = ""

    def __post_init__(self) -> None:
        *_, width = np.shape(self.out_weight) or (0,)
        self.blocks = tuple(
            (_checked(f"blocks.{i}.weight", w, (width, width)), _checked(f"blocks.{i}.bias", b, (width,)))
            for i, (w, b) in enumerate(self.blocks)
        )
        self.out_weight = _checked("out.weight", self.out_weight, (2, width))
        self.out_bias = _checked("out.bias", self.out_bias, (2,))

    @property
    def width(self) -> int:
        return int(self.out_weight.shape[1])

    @property
    def layers(self) -> int:
        """Residual blocks that a state goes through."""
        return self.repeat * len(self.blocks)

    def score(self, now: Signals) -> float:
        """Return the chance, in [0, 1], that the target accepts the token which the state was computed from.

        Raises:
            UserError: the drafter has no hidden states, or they are of another width.
        """
        if now.hidden is None:
            raise UserError(
                "specdecpp reads the drafter's hidden states, and it has none: choose a model as the drafter"
            )
        x = np.asarray(now.hidden, dtype=np.float32)
        if x.shape != (self.width,):
            raise UserError(
                f"the classifier reads hidden states of {self.width} numbers and the drafter's have "
                f"{x.size}: give the one that was trained for this drafter"
            )
        with np.errstate(all="ignore"):
            for _ in range(self.repeat):
                for weight, bias in self.blocks:
                    z = weight @ x
                    z += bias
                    x = x + z * (0.5 + 0.5 * np.tanh(0.5 * z))
            rejected, accepted = self.out_weight @ x + self.out_bias
            return _sigmoid(float(accepted - rejected))

    def tensors(self) -> dict[str, Floats]:
        named = {"out.weight": self.out_weight, "out.bias": self.out_bias}
        for i, (weight, bias) in enumerate(self.blocks):
            named |= {f"blocks.{i}.weight": weight, f"blocks.{i}.bias": bias}
        return named


Scorer: TypeAlias = Disco | SpecDecPlus


def features(now: Signals) -> Floats:
    """What DISCO reads of one token: ten probabilities in falling order, their entropy, the token's place.

    Shape (12,). The entropy is -sum p ln p of these ten as they stand, in nats (arXiv 2405.04304, appendix D,
    where the place counts from the start of the output, not of the draft). A drafter that knows fewer
    probabilities has zeros for the rest.
    """
    top = now.top or (now.top1, now.top2)
    entropy = -sum([p * log(p) for p in top if p > 0.0])
    return np.array((*top, *[0.0] * (TOP - len(top)), entropy, now.place), dtype=np.float32)


def save(scorer: Scorer, path: str | os.PathLike[str]) -> None:
    """Write a classifier."""
    said = {"format": FORMAT, "version": VERSION, "kind": scorer.kind, "layers": str(scorer.layers)}
    said |= {"width": str(scorer.width), "drafter": scorer.drafter}
    if isinstance(scorer, SpecDecPlus):
        said["shared"] = "true" if scorer.repeat > 1 else "false"
    files.save(Path(path), scorer.tensors(), said)


def load(path: str | os.PathLike[str], kind: str) -> Scorer:
    """Read a classifier of the kind `disco` or `specdecpp`.

    Raises:
        UserError: no such file, one of another kind or version, or a damaged one.
    """
    said = {"format": FORMAT, "version": VERSION, "kind": kind}
    remedy = f"give a file of {FORMAT} {VERSION}, kind {kind} (see draftwise.policies.classifiers.stopping)"
    return files.load(path, _disco if kind == Disco.kind else _specdecpp, said, "classifier", remedy)


def _disco(said: Mapping[str, str], tensors: Mapping[str, Any]) -> Scorer:
    hidden_weight, hidden_bias, out_weight, out_bias = (tensors[name] for name in DISCO)
    return Disco(hidden_weight, hidden_bias, out_weight, out_bias, said.get("drafter", ""))


def _specdecpp(said: Mapping[str, str], tensors: Mapping[str, Any]) -> Scorer:
    layers, is_shared = int(said["layers"]), said["shared"] == "true"
    if not 0 <= layers <= DEEPEST:
        raise UserError(f"layers={layers}: a classifier has 0 to {DEEPEST} residual blocks")
    own = min(layers, 1) if is_shared else layers
    blocks = [(tensors[f"blocks.{i}.weight"], tensors[f"blocks.{i}.bias"]) for i in range(own)]
    repeat, drafter = layers // own if own else 1, said.get("drafter", "")
    return SpecDecPlus(tuple(blocks), tensors["out.weight"], tensors["out.bias"], repeat, drafter)


def _checked(name: str, array: Any, shape: tuple[int, ...]) -> Floats:
    found: tuple[int, ...] = np.shape(array)
    if found != shape or not all(shape):
        raise UserError(f"{name} has the shape {found} where {shape} fits")
    with np.errstate(over="ignore"):
        made: Floats = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(made).all():
        raise UserError(f"{name} has a weight that is not a finite number")
    return made


def _sigmoid(z: float) -> float:
    """Of a number that may be infinite; what is no number at all scores 0, as a reason to stop."""
    return 0.5 + 0.5 * tanh(0.5 * z) if z == z else 0.0
