"""What may change on a model between two texts: its mode, its weights, and its adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

SAMPLED = 16  # parameters of which one value is looked at
ADAPTERS = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")  # of PEFT's layers


@contextmanager
def attributes(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Give objects other attributes, (object, name, value) each, then their own again."""
    own = [(holder, name, getattr(holder, name)) for holder, name, _ in changes]
    try:
        for holder, name, value in changes:
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value in own:
            setattr(holder, name, value)


def evaluating(*models: Any) -> AbstractContextManager[None]:
    """Evaluation mode (no dropout), then the previous mode of every module."""
    training = [module for model in models for module in model.modules() if module.training]
    return attributes([(module, "training", False) for module in training])


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
    few = [weight for weight in parameters[:: max(1, len(parameters) // SAMPLED)] if _is_plain(weight)]
    return hash((*changes, *adapters, *_values(few)))


def _place(weight: Any) -> int:
    """Where a weight is; a class of its own may have no such place."""
    return id(weight) if hasattr(weight, "__tensor_flatten__") else int(weight.data_ptr())


def _is_plain(weight: Tensor) -> bool:
    wrapped = hasattr(weight, "__tensor_flatten__") or weight.is_meta or not weight.is_floating_point()
    return not wrapped and weight.numel() > 0 and weight.is_contiguous()


def _values(weights: Sequence[Tensor]) -> list[float]:
    """Return one number of each parameter; a device is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    with torch.inference_mode(False), torch.no_grad():
        for weight in weights:
            by_device.setdefault(weight.device, []).append(weight.view(-1)[weight.numel() // 2].float())
        return [value for found in by_device.values() for value in torch.stack(found).tolist()]
