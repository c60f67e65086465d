"""What may change on a model between two texts: its mode, its weights, and its adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

SAMPLED = 16  # parameters of which one value is looked at
ADAPTERS = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")  # of PEFT's layers


@contextmanager
def evaluating(*models: Any) -> Iterator[None]:
    """Evaluation mode (no dropout), then the previous mode of every module."""
    training = [module for model in models for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def weights_version(model: Any) -> int:
    """A number that changes with the model's weights and its active adapters.

    PyTorch counts a parameter's changes in place, but not those through `.data`; so a few values count too.
    """
    parameters, adapters = list[Any](), list[str]()
    for module in model.modules():
        own = vars(module)
        parameters += [weight for weight in own["_parameters"].values() if weight is not None]
        adapters += [repr(own[name]) for name in ADAPTERS if name in own]
    changes = [(_place(w), 0 if w.is_inference() else w._version) for w in parameters]
    few = parameters[:: max(1, len(parameters) // SAMPLED)]
    return hash((*changes, *adapters, *map(_value, few)))


def _place(weight: Any) -> int:
    """Where a weight is; a class of its own may have no such place."""
    return id(weight) if hasattr(weight, "__tensor_flatten__") else int(weight.data_ptr())


def _value(weight: Tensor) -> float:
    """One number of a parameter; 0 if it has none that can be read."""
    wrapped = hasattr(weight, "__tensor_flatten__") or weight.is_meta or not weight.is_floating_point()
    if wrapped or not weight.numel() or not weight.is_contiguous():
        return 0.0
    return float(weight.detach().view(-1)[weight.numel() // 2])
