"""Finds out, when a model is loaded, which ways of running it leave its text exact.

Some Transformers classes count positions by themselves, slice masks by the cache's length, or compute biases
from a padding mask. No list of class names could be complete. So a few made-up tokens are read alone, in
pieces, after rejected drafts, in even and uneven batches, and as a tree, and the logits are compared with
those of the model's own `generate`. Ways that disagree are disabled; if none agrees, the model is rejected.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from logging import getLogger
from typing import Any

import torch
import transformers
from torch import nn

from ...errors import DraftwiseWarning, UserError
from .. import verdicts
from ..limits import limited
from ..modes import evaluating
from ..runner import ModelRunner
from ..runner.recurrent import carriers, kinds
from ..runner.states import StateRunner
from ..runner.traits import Traits
from ..stages import announce
from ..weights.lazy import LazyWeight
from .checks import check, check_attention, check_steady, device_of, name
from .readings import Readings
from .small import miniature, selects
from .ways import alone, branched, neighbours, side_by_side, stateful

LOG = getLogger(__name__)
KIND = "probes"  # name of the file of saved verdicts


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a model may be run so that its text stays exact.

    `together`: several texts in one pass. `guided`: position ids and attention masks are passed in; otherwise
    the model computes its own. `stateful`: it keeps states that cannot rewind, `carried` in the argument of
    this name or, if "", in its cache or its modules; with `steps` it reads one token a pass, and with `free`
    the steps of its layers are limited in the prompt alone. `why` names the first way that disagreed. `noise`
    is how far its logits move with the width of a pass if rounding does not explain it.
    """

    together: bool = True
    guided: bool = True
    why: str = ""
    stateful: bool = False
    carried: str = ""
    steps: bool = False
    free: bool = False
    noise: float = 0.0

    @classmethod
    def of(cls, kept: object) -> Verdict | None:
        like = asdict(cls())
        if not isinstance(kept, dict) or kept.keys() != like.keys():
            return None
        return cls(**{name: type(value)(kept[name]) for name, value in like.items()})

    def make_runner(self, model: Any, traits: Traits | None = None) -> ModelRunner:
        runner: ModelRunner
        if self.stateful:
            runner = StateRunner(model, traits=traits, carried=self.carried, steps=self.steps, free=self.free)
        else:
            runner = ModelRunner(model, traits=traits)
        runner.together, runner.guided = self.together, self.guided
        if isinstance(runner, StateRunner) and not self.carried:
            runner.find_states()
        return runner


def rows_of(model: Any, *, probe: bool = True, drafts: bool = False) -> ModelRunner:
    """A runner of the model that uses only the ways that passed the probe.

    With `probe` off, or DRAFTWISE_PROBE=0, all ways are assumed correct, except for a model with states. A
    model that `drafts` need not have the same logits in every pass.

    Raises:
        UserError: no way of running it is exact, or Transformers itself cannot decode with it.
    """
    check(model)
    with evaluating(model):
        runner = _unprobed(model)
    if wanted(probe) or kinds(runner.config):
        found = _verdict(runner, drafts=drafts)
        runner = found.make_runner(model, runner.traits)
        if found.steps or not found.together:
            said = f"reads each text in a pass of its own ({found.why}): "
            said += "a batch takes as long as its texts one after another"
            if found.steps:
                said = f"reads one token a pass, since longer ones ignore its state ({found.why}): "
                said += "drafts gain nothing"
            warnings.warn(f"{name(model)} {said}", DraftwiseWarning, stacklevel=3)
    return runner


def check_trees(runner: ModelRunner, *, probe: bool = True) -> None:
    """Raise a UserError unless the model reads trees correctly; probed when the first tree comes."""
    model, why = runner.model, ""
    check_attention(model)
    if runner.stateful:
        why = "it keeps a state that cannot rewind"
    elif "position_ids" not in inspect.signature(model.forward).parameters:
        why = "it counts positions for itself"
    elif not runner.guided:
        why = "it makes its own masks"
    elif wanted(probe):
        why = _why_no_trees(runner)
    if why:
        raise UserError(
            f"{name(model)} cannot read a tree of drafted tokens ({why}): use a policy that drafts chains"
        )


def wanted(asked: bool) -> bool:
    """Return whether to probe: as asked, unless the environment says no.

    Raises:
        UserError: the environment's DRAFTWISE_PROBE is neither 0 nor 1.
    """
    if (usual := os.environ.get("DRAFTWISE_PROBE") or "1") not in ("0", "1"):
        raise UserError(f"DRAFTWISE_PROBE={usual!r}: give 0 or 1")
    return asked and usual == "1"


def _verdict(runner: ModelRunner, *, drafts: bool) -> Verdict:
    model = runner.model
    key = fingerprint(model)
    found = Verdict.of(verdicts.load(KIND, key))
    if found is None:
        announce("finding out how the model can be run")
        with evaluating(model):
            known = _known(model)
            check_steady(model, 0.0 if drafts else known.unsteady)
            found = replace(_found(runner, known), noise=known.unsteady)
        if known.lively:
            verdicts.keep(KIND, key, asdict(found))
    elif not drafts:
        check_steady(model, found.noise)
    how = "in one pass" if found.together else f"one text a pass ({found.why})"
    LOG.info("%s: reads batches %s", name(model), how)
    return found


def _why_no_trees(runner: ModelRunner) -> str:
    model, verdict = runner.model, Verdict(runner.together, runner.guided)
    key = fingerprint(model) + ":trees"
    found = Verdict.of(verdicts.load(KIND, key))
    if found is None:
        with evaluating(model):
            known = _known(model)
            wrong = _wrong(runner, known, verdict, partial(branched, together=verdict.together))
        found = replace(verdict, why=wrong)
        if known.lively:
            verdicts.keep(KIND, key, asdict(found))
    return found.why


def fingerprint(model: Any) -> str:
    """Everything except the weights' values that determines how a model is run."""
    config = model.config
    text = config.get_text_config(decoder=True)
    parts = (
        type(model).__module__,
        type(model).__qualname__,
        json.dumps(config.to_dict(), sort_keys=True, default=str),
        getattr(text, "_attn_implementation", None),
        str(model.dtype),
        repr(model),  # its modules, which may have been replaced by quantised ones
        sorted({f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()}),
        sorted(set(map(_kind, model.parameters()))),
        device_of(model).type,
        torch.__version__,
        transformers.__version__,
        version("draftwise"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _kind(weight: Any) -> str:
    """A weight's type and dtype, and how it is quantised if it is of a class of its own."""
    if isinstance(weight, LazyWeight):
        return _kind(nn.Parameter(weight.new_empty(0)))
    flattened = getattr(weight, "__tensor_flatten__", None)
    own = flattened()[1] if flattened is not None else ""
    return f"{type(weight).__module__}.{type(weight).__qualname__} {weight.dtype} {own}"


def _unprobed(model: Any) -> ModelRunner:
    try:
        return ModelRunner(model)
    except (torch.OutOfMemoryError, UserError):
        raise
    except Exception as error:  # a class not made to be decoded may raise anything
        raise UserError(f"{name(model)} cannot read a text ({_line(error)}): choose another model") from error


def _known(model: Any) -> Readings:
    try:
        known = Readings(model)
        if selects(model) and (made := miniature(model)) is not None:
            known.small = Readings(made)
        return known
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the class raises, it cannot generate text
        raise UserError(
            f"{name(model)} cannot be decoded by Transformers' own generate ({_line(error)}): "
            "choose another model"
        ) from error


def _found(runner: ModelRunner, known: Readings) -> Verdict:
    """The first way of running the model that reproduces its own logits."""
    if kinds(runner.config):
        return _recurrent(runner, known)
    wrong = _wrong(runner, known, Verdict(), alone)
    if not wrong:
        apart = _wrong(runner, known, Verdict(), side_by_side)
        return Verdict(together=not apart, why=apart)
    own = Verdict(together=False, guided=False, why=wrong)
    if still := _wrong(runner, known, own, alone):
        return _recurrent(runner, known, still)
    return own


def _recurrent(runner: ModelRunner, known: Readings, why: str = "") -> Verdict:
    """The first way of keeping the model's states that reproduces its own logits.

    `why` a model whose cache declares no states cannot be read without them.
    """
    options = carriers(runner.model)
    if why or runner.masks.late:  # a cache with states in some layers would be no better than one without
        options = [name for name in options if name]
    if runner.rope.borders:
        why, options = why or "its rotary frequencies depend on the text's length", []
    wrong, ways = "", [(False, False), (True, False)]  # of reading: in steps, and without limits
    if limited(runner.model):
        ways.insert(1, (False, True))
    for carrier, guided, (steps, free) in product(options, (True, False), ways):
        own = Verdict(True, guided, wrong if steps else "", True, carrier, steps, free)
        if not (wrong := _wrong(runner, known, own, stateful)):
            apart = _wrong(runner, known, own, neighbours)
            return replace(own, together=not apart, why=own.why or apart)
        why = why or wrong
    raise UserError(
        f"{name(runner.model)} cannot be read in pieces and rewound ({why}): "
        "use it as it is, or choose a model with full or sliding-window attention"
    )


def _wrong(
    like: ModelRunner, known: Readings, verdict: Verdict, way: Callable[[ModelRunner, Readings], float]
) -> str:
    """What is wrong with a way of running the model; "" if it reproduces the model's own logits.

    The small model of its class is tried too, if there is one: it selects among fewer tokens.
    """
    try:
        runner = verdict.make_runner(like.model, like.traits)
        runner.prompts |= {0: known.n, 1: known.n}
        error = way(runner, known)
    except torch.OutOfMemoryError:
        raise
    except Exception as trouble:  # a class not made for this may raise anything
        return _line(trouble)
    if error <= known.tolerance:
        small = known.small
        return "" if small is None else _wrong(ModelRunner(small.model), small, verdict, way)
    return f"its logits are off by {error:.1g} of their spread, where rounding explains {known.tolerance:.1g}"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text[:120]}"
