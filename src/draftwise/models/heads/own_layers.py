"""One more decoder layer of a loaded model's own kind, from tensors named as its files name them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from ...errors import UserError
from ..quiet import quiet

Shapes = dict[str, tuple[int, ...]]


def blocks_of(target: Any, depth: int) -> tuple[nn.ModuleList, str]:
    """The decoder layers of a model, and the list's name in it.

    Raises:
        UserError: it shows no list of its layers.
    """
    body = target.get_decoder()
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            path = next(name for name, other in target.named_modules() if other is module)
            return module, path
    raise UserError(f"{type(body).__name__} shows no list of its {depth} layers to draft with one more")


def converted(
    name: str, tensors: Mapping[str, Tensor], target: Any, blocks: nn.ModuleList, path: str
) -> tuple[int, dict[str, Tensor]]:
    """The place of a layer of the model that has exactly these tensors, and the tensors as that layer has
    them: Transformers' own conversions, such as of single experts to stacked ones, are applied.

    Raises:
        UserError: no layer has them.
    """
    seen: list[Shapes] = []
    closest = ""
    for place in reversed(range(len(blocks))):
        with torch.device("meta"):
            wanted = shapes(_built(target, blocks[place], place).state_dict())
        if wanted in seen:
            continue
        seen.append(wanted)
        found = _renamed(tensors, target, f"{path}.{place}.")
        given = shapes(found)
        if given == wanted:
            return place, found
        wrong = next(key for key in sorted({*given, *wanted}) if given.get(key) != wanted.get(key))
        closest = closest or (
            f"the tensor {wrong} is {given.get(wrong, 'missing')} where a layer of this target asks for "
            f"{wanted.get(wrong, 'none')}"
        )
    raise UserError(
        f"model {name!r}: its layer of multi-token prediction is like no layer of {type(target).__name__}: "
        f"{closest}; name the folder of this target"
    )


def shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    """The shape of every tensor."""
    return {key: tuple(t.shape) for key, t in tensors.items()}


def fresh_layer(target: Any, blocks: nn.ModuleList, place: int) -> Any:
    """A layer like the one at a place, alone in a cache of its own.

    Raises:
        UserError: it sees a window of the text.
    """
    kinds = getattr(target.config.get_text_config(decoder=True), "layer_types", None) or ()
    if kinds and place < len(kinds) and kinds[place] not in ("full_attention", "attention"):
        raise UserError(
            f"{type(target).__name__}: its layer of multi-token prediction is of the kind {kinds[place]}, "
            "and only full attention is supported; use another drafter"
        )
    with torch.device(target.get_input_embeddings().weight.device):
        layer = _built(target, blocks[place], place)
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0
    return layer


def load_layer(name: str, layer: Any, tensors: Mapping[str, Tensor], like: nn.Module) -> None:
    """Fill a layer, in the precision of each tensor of the layer that it is like."""
    kept = {key: t.dtype for key, t in like.state_dict().items() if t.is_floating_point()}
    layer.load_state_dict(dict(tensors))
    own = next(iter(kept.values()))
    for part in (*layer.named_parameters(), *layer.named_buffers()):
        key, tensor = part
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(kept.get(key, own))


def _built(target: Any, block: Any, place: int) -> Any:
    config = target.config.get_text_config(decoder=True)
    try:
        return type(block)(config, place)
    except TypeError as error:
        raise UserError(
            f"one more {type(block).__name__} cannot be made for multi-token prediction ({error}); use "
            "another drafter"
        ) from error


def _renamed(tensors: Mapping[str, Tensor], target: Any, prefix: str) -> dict[str, Tensor]:
    """The tensors of one layer after Transformers' conversions for this model."""
    with quiet():
        mapping = get_model_conversion_mapping(target)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    found: dict[str, Tensor] = {}
    waiting: dict[str, WeightConverter] = {}
    for key in sorted(tensors, key=_natural):
        whole = prefix + key
        new, pattern = rename_source_key(whole, renamings, converters)
        if pattern is None:
            found[_within(new, whole, prefix)] = tensors[key]
        else:
            one = waiting.setdefault(new, deepcopy(by_pattern[pattern]))
            given: Any = tensors[key]
            one.add_tensor(new, whole, pattern, given)
    for first, one in waiting.items():
        for new, tensor in one.convert(first, model=target, config=target.config).items():
            found[_within(new, first, prefix)] = tensor[0] if isinstance(tensor, list) else tensor
    return found


def _natural(key: str) -> list[tuple[int, str]]:
    """Numbers in a name in their own order: expert 10 after expert 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]


def _within(new: str, whole: str, prefix: str) -> str:
    """A converted name within the layer; the conversion may have changed what comes before it."""
    place = prefix.rstrip(".").rpartition(".")[2]
    _, _, rest = new.partition(f"layers.{place}.")
    return rest or new.removeprefix(prefix)
