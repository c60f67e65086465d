"""Everything that determines the compiled graph of a model, which is all but the values of its weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ..heads.pairs import PairModel
from ..runner import ModelRunner
from ..runner.cache import RowCache
from ..verdicts import machine
from ..weights.layouts import fused_groups
from ..weights.packed import layout_of
from .heads import Layer, own_attention

FORMAT = 8  # of the compiled files; raised when the graph's inputs or the model's structure change
SMALL = 64  # elements of a tensor whose values may be written into the code


class Unfit(Exception):
    """Why a model cannot be compiled."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model's structure as plain data, from which another process builds it without weights.

    `tensors` maps names of parameters and buffers to shapes and dtypes, and `small` those of few elements to
    their values, since TorchInductor writes these into its code. `fused` has the linear layers that share a
    product, group by group; `packed` maps packed ones to their layouts. `layers` lists the cache layers in
    use, `kinds` the names of the attention masks if layers differ. `own_attention`: by our kernel. `keeps`:
    the forward pass takes `logits_to_keep`. `outputs`: the layers whose hidden states are returned beside the
    logits. `states`: the size of the states that a head reads beside its tokens, 0 if it is none.
    """

    format: int
    machine: str
    versions: tuple[str, str]
    model: tuple[str, str]
    config: dict[str, Any]
    attention: str
    own_attention: bool
    dtype: str
    tensors: dict[str, tuple[list[int], str]]
    small: dict[str, list[float]]
    fused: list[list[str]]
    packed: dict[str, str]
    depth: int
    layers: list[Layer]
    kinds: list[str]
    keeps: bool
    outputs: list[int]
    states: int

    @property
    def key(self) -> str:
        """A name for the graph: equal blueprints make equal graphs."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()[:32]

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_json(cls, text: str) -> Blueprint:
        known = json.loads(text)
        known["layers"] = [tuple(layer) for layer in known["layers"]]
        known["versions"], known["model"] = tuple(known["versions"]), tuple(known["model"])
        known["tensors"] = {name: (shape, dtype) for name, (shape, dtype) in known["tensors"].items()}
        return cls(**known)


def probe_cache(runner: ModelRunner) -> RowCache:
    """Return a cache after a pass of two tokens, which has shown what its layers hold.

    Raises:
        Unfit: the runner's passes differ by more than their sizes, so that one graph cannot run them.
    """
    if runner.stateful:
        raise Unfit("it keeps a state that cannot rewind")
    if not runner.guided:
        raise Unfit("it makes its own masks")
    if runner.rope.borders:
        raise Unfit("its rotary frequencies depend on the text's length")
    if len({p.device for p in runner.model.parameters()}) > 1:
        raise Unfit("its weights are on several devices")
    scratch = runner.scratch()
    scratch.open(0)
    scratch.forward(runner.blank_pass(2))
    if any(layer.more for layer in scratch.cache.rows):
        raise Unfit("its cache holds more than keys and values")
    return scratch.cache


def blueprint(runner: ModelRunner) -> Blueprint:
    """Return the blueprint of a runner's model, with the outputs that the runner has now.

    Raises:
        Unfit: another process could not build the same model from its configuration.
    """
    model: Any = runner.model
    _check_class(model)
    cache = probe_cache(runner)
    hooks = runner.eager.hooks
    _check(model, {handle.id for handle in hooks.handles} if hooks else set())
    named = named_tensors(model)
    layers = [(at, *shape) for at, shape in cache.shapes.items()]
    states = model.width if isinstance(model, PairModel) else 0
    config = model.structure() if states else model.config.to_dict()
    views = runner.masks.views
    return Blueprint(
        format=FORMAT,
        machine=machine(),
        versions=(torch.__version__, transformers.__version__),
        model=(type(model).__module__, type(model).__qualname__),
        config=json.loads(json.dumps(config, default=str)),
        attention=str(model.config.get_text_config(decoder=True)._attn_implementation),
        own_attention=runner.device.type == "cpu" and own_attention(model, layers, exact=runner.is_exact),
        dtype=str(model.dtype),
        tensors={name: (list(t.shape), str(t.dtype)) for name, t in named},
        small={name: t.detach().double().flatten().tolist() for name, t in named if t.numel() <= SMALL},
        fused=fused_groups(model),
        packed={name: kind for name, module in model.named_modules() if (kind := layout_of(module))},
        depth=len(cache.rows),
        layers=layers,
        kinds=sorted(views) if isinstance(views, dict) else [],
        keeps=runner.keeps,
        outputs=[*runner.layers],
        states=states,
    )


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers, shared ones under each of their names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _check_class(model: Any) -> None:
    """Only Transformers' own classes and EAGLE's heads are compiled."""
    if isinstance(model, PairModel):
        if model.structure() is None:
            raise Unfit(f"a head of the kind {type(model.head).__name__} is not compiled")
    elif not type(model).__module__.startswith("transformers."):
        raise Unfit(f"{type(model).__name__} is no class of Transformers")


def _check(model: Any, own_hooks: set[int]) -> None:
    if getattr(model, "hf_quantizer", None) or getattr(model.config, "quantization_config", None):
        raise Unfit("its weights are quantised")
    if getattr(model, "hf_device_map", None):
        raise Unfit("its weights are on several devices")
    odd = next((type(p).__name__ for p in model.parameters() if type(p) is not nn.Parameter), "")
    if odd:
        raise Unfit(f"its weights are of the type {odd}")
    hooks = [{*module._forward_hooks, *module._forward_pre_hooks} for module in model.modules()]
    if set().union(*hooks) - own_hooks:
        raise Unfit("its modules have hooks")
    if any(hasattr(module, "parametrizations") for module in model.modules()):
        raise Unfit("its weights are computed from others")
