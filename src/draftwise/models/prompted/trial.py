"""Finds out how a model's passes over several tokens are taken back, at the first prompt of each kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from .. import verdicts
from ..limits import limited
from ..probe import fingerprint
from ..probe.checks import name
from ..probe.readings import HALF, LEAST, relative_error
from ..runner.recurrent import copied
from . import Prompted
from .rewind import WAYS, layers_of

KIND = "prompts"  # name of the file of saved verdicts
FREE = " without limits"  # after the prompt, of the steps of state-space layers
ALL = [way + free for free in ("", FREE) for way in WAYS]
NEW = 4  # tokens that are read one by one, and then in passes with rejected and accepted drafts


class Trials:
    """The ways of rewinding found so far for one model, by its inputs' names, and for batches or not."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.found: dict[str, str] = {}

    def settle(self, made: Prompted, ids: Tensor) -> str:
        """Give `made` the first way of rewinding that leaves the model's own logits as they are.

        `ids` are the prompts, shape (rows, tokens). Compared are passes with drafts and passes of one token,
        after this very prompt. The verdict is saved, and returned.

        Raises:
            UserError: no way is exact.
        """
        kind = f"{made.names}:{len(ids) > 1}"
        if kind not in self.found:
            key = f"{fingerprint(self.model)}:{kind}"
            known = verdicts.load(KIND, key)
            self.found[kind] = known if known in ALL else _found(made, ids)
            verdicts.keep(KIND, key, self.found[kind])
        _apply(made, self.found[kind])
        return self.found[kind]


def check_way(made: Prompted, ids: Tensor, way: str) -> None:
    """Raise a UserError unless this way of rewinding is exact after these prompts, shape (rows, tokens)."""
    start = _State(made)
    truth, ids = _own(made, ids)
    start.restore(made)
    _apply(made, way)
    error = _error(made, ids, truth)
    if error > _tolerance(made.model):
        raise UserError(
            f"{name(made.model)} reads several tokens after padding otherwise than one by one "
            f"(its logits are off by {error:.1g} of their spread)"
        )


def _found(made: Prompted, ids: Tensor) -> str:
    """The first way that agrees with single tokens."""
    start = _State(made)
    truth, ids = _own(made, ids)
    wrong, least = "", float("inf")
    for way in ALL if limited(made.model) else WAYS:
        start.restore(made)
        _apply(made, way)
        try:
            error = _error(made, ids, truth)
        except torch.OutOfMemoryError:
            raise
        except Exception as trouble:  # a class not made for this may raise anything
            wrong = wrong or f"{type(trouble).__name__}: {' '.join(str(trouble).split())[:120]}"
            continue
        if error <= _tolerance(made.model):
            start.restore(made)
            return way
        least = min(least, error)
    if least < float("inf"):
        wrong = f"its logits are off by {least:.1g} of their spread"
    raise UserError(
        f"{name(made.model)} cannot read several tokens after this prompt and take them back ({wrong}): "
        "use it as it is"
    )


def _apply(made: Prompted, way: str) -> None:
    made.rewind = WAYS[way.removesuffix(FREE)](made.cache)
    made.limits = limited(made.model) if way.endswith(FREE) else {}


def _own(made: Prompted, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of `NEW` greedy tokens read one by one, shape (rows, 1 + NEW, vocabulary), and the rows with
    these tokens."""
    said = [made.said]
    for _ in range(NEW):
        ids = torch.cat([ids, said[-1].argmax(-1, keepdim=True).to(ids)], dim=1)
        said.append(made.read(ids, 0)[:, 0])
    return torch.stack(said, 1), ids


def _error(made: Prompted, ids: Tensor, truth: Tensor) -> float:
    """The largest error of drafts that are rejected, accepted, and accepted in part; see `_own`."""
    n = ids.shape[1] - NEW
    wrong = ids.clone()
    wrong[:, n + 1 :] = (wrong[:, n + 1 :] + 1) % truth.shape[-1]
    pairs = [(made.read(wrong[:, : n + 3], 2)[:, :1], truth[:, 1:2])]
    made.keep(n + 2)
    pairs.append((made.read(ids[:, : n + 4], 2), truth[:, 2:5]))
    made.keep(n + 3)
    pairs.append((made.read(ids[:, : n + 3], 0), truth[:, 3:4]))
    made.keep(n + 4)
    pairs.append((made.read(ids[:, : n + 4], 0), truth[:, 4:5]))
    rows = [pair for said, own in pairs for pair in zip(said.flatten(0, 1), own.flatten(0, 1), strict=True)]
    errors = sorted(relative_error(said, own) for said, own in rows)
    return errors[(len(errors) - 1) // 2] if made.model.dtype in HALF else errors[-1]


def _tolerance(model: Any) -> float:
    eps = torch.finfo(model.dtype).eps
    return float(min(max(64 * eps, LEAST), 30 * eps**0.5, 0.3)) if model.dtype not in HALF else 0.3


class _State:
    """Everything that reading changes."""

    def __init__(self, made: Prompted) -> None:
        self.layers = [copied(vars(layer)) for layer in layers_of(made.cache)]
        self.held, self.length, self.carried = made.held, made.length, dict(made.carried)

    def restore(self, made: Prompted) -> None:
        """Back to the prompt."""
        for layer, values in zip(layers_of(made.cache), self.layers, strict=True):
            vars(layer).clear()
            vars(layer).update(copied(values))
        made.held, made.length, made.carried = self.held, self.length, dict(self.carried)
