"""Multi-token prediction: the layer that a model's own files hold for drafting, which Transformers drops.

DeepSeek-V3 (arXiv 2412.19437, section 2.2), and after it GLM-4.5, Qwen3-Next, Qwen3.5 and MiMo: norms of the
token's embedding and of the last hidden state, a projection of both to the model's width, one decoder layer
of the model's own kind, a norm, and the model's output layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from ...errors import UserError
from ..cache_names import name_for
from ..memory import AFTER, is_mtp_tensor
from ..runner.hidden_states import layers_of
from ..stages import quiet
from .eagle import PairHead
from .files import explains_files, folder_of, read_tensors

# Where such a layer lies: after the model's own layers (`AFTER`; DeepSeek-V3, GLM-4.5), in a part `mtp` with
# layers of its own (Qwen3-Next, Qwen3.5), or in a list (MiMo; `speculators`).
WITHIN = re.compile(r"^(?:.*\.)?mtp(?:\.layers|_layers)\.(\d+)\.(.+)$")
BESIDE = re.compile(r"^(?:.*\.)?mtp\.(?!layers\.)(.+)$")
MIMO = re.compile(r"^(?:.*\.)?model\.mtp_layers\.")
NAMES = {
    **dict.fromkeys(("enorm", "pre_fc_norm_embedding", "token_layernorm"), "words"),
    **dict.fromkeys(("hnorm", "pre_fc_norm_hidden", "hidden_layernorm"), "states"),
    **dict.fromkeys(("eh_proj", "fc", "input_proj"), "joined"),
    **dict.fromkeys(("shared_head.norm", "norm", "final_layernorm"), "last"),
    **dict.fromkeys(("shared_head.head", "lm_head"), "lm_head"),
    "embed_tokens": "embed_tokens",
}
WITHIN_LAYER = ("input_layernorm", "post_attention_layernorm")
NEEDED = {
    "words": "a norm of the words",
    "states": "a norm of the states",
    "joined": "a projection of two states to one",
    "last": "a last norm",
}
KNOWN = "DeepSeek-V3's, GLM-4.5's, Qwen3-Next's, Qwen3.5's, MiMo's and those of speculators"


class Mtp(PairHead):
    """A model's layer of multi-token prediction.

    Embedding and output layer are the model's, unless the layer's own differ. The layer is Transformers' own
    for this kind of model. Where a checkpoint holds several, the first drafts every token of a draft.
    """

    def __init__(self, target: Any, layer: Any, norm: Any, roles: Roles) -> None:
        text = target.config.get_text_config(decoder=True)
        super().__init__(target, int(text.hidden_size))
        self.config = copy(text)
        self.config.num_hidden_layers = 1
        self.rotary = (target.get_decoder().rotary_emb,)  # in a tuple: not a part of this module
        self.states_first, self.normed = roles.states_first, roles.normed
        self.words_norm, self.states_norm, self.norm = (deepcopy(norm) for _ in range(3))
        self.joined = nn.Linear(2 * self.target_width, self.target_width, bias=False)
        self.layer, self.cache_name = layer, name_for(layer)

    def _after(
        self, tokens: Tensor, states: Tensor, position_ids: Tensor, attention_mask: Tensor | None, cache: Any
    ) -> Tensor:
        words = self.words_norm(self.embed(tokens).to(states.device, states.dtype))
        both = [words, self.states_norm(states)]
        x = self.joined(torch.cat(both[::-1] if self.states_first else both, dim=-1))
        after = self.layer(
            x,
            position_embeddings=self.rotary[0](x, position_ids=position_ids),
            position_ids=position_ids,
            attention_mask=attention_mask,
            **{self.cache_name: cache},
        )
        after = after[0] if isinstance(after, tuple) else after
        done: Tensor = self.norm(after) if self.normed else after
        return done

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each pair, shape (..., vocabulary)."""
        return super().logits(states if self.normed else self.norm(states))


@explains_files
def load_mtp(name: str | Path, target: Any) -> Mtp:
    """Load the layer of multi-token prediction in a model's own files, or in the `speculators` format.

    Raises:
        UserError: there is none, its names are not known, or it was made for another model.
    """
    text = target.config.get_text_config(decoder=True)
    depth = int(text.num_hidden_layers)
    raw = read_tensors(folder_of(str(name)), lambda key: is_mtp_tensor(key, depth))
    if not raw:
        raise UserError(
            f"model {str(name)!r} has no layer of multi-token prediction: its files hold no tensor named "
            f"mtp, and none of a layer after {depth - 1}; name the folder that holds it, mtp?folder=FOLDER, "
            "or use another drafter"
        )
    blocks = layers_of(target)
    path = next(name for name, module in target.named_modules() if module is blocks)
    if not hasattr(target.get_decoder(), "rotary_emb") or not hasattr(blocks[-1], "input_layernorm"):
        raise UserError(
            f"model {str(name)!r}: multi-token prediction for {type(target).__name__} is not supported, "
            "since its decoder has no rotary_emb or its layers no input_layernorm; use another drafter"
        )
    roles = find_roles(str(name), raw, depth, (int(text.vocab_size), int(text.hidden_size)))
    place, tensors = _convert(str(name), roles.layer, target, blocks, path)
    layer = _make_layer(target, blocks, place, tensors)
    return _fill(Mtp(target, layer, blocks[place].input_layernorm, roles), roles.found, target).eval()


@torch.no_grad()
def _fill(head: Mtp, found: Mapping[str, Tensor], target: Any) -> Mtp:
    """Take over norms and projection, and the own embedding and output layer where they differ from the
    model's."""
    parts: dict[str, Any] = {
        "words": head.words_norm,
        "states": head.states_norm,
        "last": head.norm,
        "joined": head.joined,
    }
    for role, part in parts.items():
        part.weight.copy_(found[role])
    weight = target.get_input_embeddings().weight
    head.joined.to(weight.dtype)
    for key, shared in zip(("embed_tokens", "lm_head"), head.shared, strict=True):
        shared_weight = shared.weight.detach()
        if key not in found or torch.equal(found[key].to(shared_weight), shared_weight):
            continue
        rows, width = found[key].shape
        own: Any = nn.Embedding(rows, width) if key == "embed_tokens" else nn.Linear(width, rows, bias=False)
        own.weight.copy_(found[key])
        setattr(head, key, own.to(weight.dtype))
    return head.to(weight.device)


# -- which tensor is which ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Roles:
    """The tensors by role (`found`, see `NAMES`), and those of the decoder layer by name within it (`layer`).

    Two facts are not in names or shapes. `states_first`: the projection reads the state before the token, as
    only MiMo's does. `normed`: later tokens of a draft continue from the states after the last norm; with
    DeepSeek's layout, whose last norm belongs to the output layer (`shared_head`), from those before it.
    """

    layer: dict[str, Tensor] = field(default_factory=dict)
    found: dict[str, Tensor] = field(default_factory=dict)
    states_first: bool = False
    normed: bool = True


def find_roles(name: str, raw: Mapping[str, Tensor], depth: int, table: tuple[int, int]) -> Roles:
    """Return the role of every tensor of the first such layer; `table` is the shape of the embedding.

    Raises:
        UserError: a tensor has no known role, or a role no tensor, or it was made for another model.
    """
    roles, width = Roles(states_first=any(map(MIMO.match, raw))), table[1]
    shapes = {"joined": (width, 2 * width), "embed_tokens": table, "lm_head": table}
    for key, tensor in sorted(raw.items()):
        rest = _within_layer(name, key, depth)
        if rest is None:
            continue
        if "scale" in rest.rpartition(".")[2]:
            raise UserError(
                f"model {name!r}: its layer of multi-token prediction is quantised ({key}), which is not "
                "supported: name the same model in bfloat16 as mtp?folder=FOLDER"
            )
        top, shape = rest.removesuffix(".weight"), tuple(tensor.shape)
        role = NAMES.get(top)
        wanted = shapes.get(role or "", (width,))
        if role is None:
            if "." not in top and top not in WITHIN_LAYER:
                raise _unknown(name, key)
            roles.layer[rest] = tensor
        elif shape != wanted:
            raise UserError(
                f"model {name!r}: {key} is {shape} and the target asks for {wanted}: name the folder of this "
                "target"
            )
        else:
            roles.found[role] = tensor
            roles.normed &= rest != "shared_head.norm.weight"
    if missing := next((what for role, what in NEEDED.items() if role not in roles.found), ""):
        raise UserError(
            f"model {name!r}: its layer of multi-token prediction has no tensor for {missing}; known layouts "
            f"are {KNOWN}: fetch its files again, or use another drafter"
        )
    return roles


def _within_layer(name: str, key: str, depth: int) -> str | None:
    """Return a tensor's name within the first layer, None for those of later ones."""
    if within := WITHIN.match(key):
        return within[2] if int(within[1]) == 0 else None
    if beside := BESIDE.match(key):
        return beside[1]
    after = AFTER.match(key)
    if after and int(after[1]) >= depth:
        return after[2] if int(after[1]) == depth else None
    raise _unknown(name, key)


def _unknown(name: str, key: str) -> UserError:
    return UserError(
        f"model {name!r}: its layer of multi-token prediction has a tensor {key} of unknown use; known "
        f"layouts are {KNOWN}: use another drafter"
    )


# -- one more decoder layer of the model's own kind --------------------------------------------------------


def _convert(
    name: str, tensors: Mapping[str, Tensor], target: Any, blocks: nn.ModuleList, path: str
) -> tuple[int, dict[str, Tensor]]:
    """The place of a layer of the model that has exactly these tensors, and the tensors as that layer has
    them: Transformers' own conversions, such as of single experts to stacked ones, are applied."""
    tried: list[dict[str, tuple[int, ...]]] = []
    closest = ""
    for place in reversed(range(len(blocks))):
        with torch.device("meta"):
            expected = _shapes(_build(target, blocks[place], place).state_dict())
        if expected in tried:
            continue
        tried.append(expected)
        converted = _apply_conversions(tensors, target, f"{path}.{place}.")
        shapes = _shapes(converted)
        if shapes == expected:
            return place, converted
        wrong = next(key for key in sorted({*shapes, *expected}) if shapes.get(key) != expected.get(key))
        closest = closest or (
            f"the tensor {wrong} is {shapes.get(wrong, 'missing')} where a layer of this target asks for "
            f"{expected.get(wrong, 'none')}"
        )
    raise UserError(
        f"model {name!r}: its layer of multi-token prediction is like no layer of {type(target).__name__}: "
        f"{closest}; name the folder of this target"
    )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(t.shape) for key, t in tensors.items()}


def _make_layer(target: Any, blocks: nn.ModuleList, place: int, tensors: Mapping[str, Tensor]) -> Any:
    """A layer like the one at a place, alone in a cache of its own, with these tensors in the precision of
    that layer's."""
    kinds = getattr(target.config.get_text_config(decoder=True), "layer_types", None) or ()
    if kinds and place < len(kinds) and kinds[place] not in ("full_attention", "attention"):
        raise UserError(
            f"{type(target).__name__}: its layer of multi-token prediction is of the kind {kinds[place]}, "
            "and only full attention is supported; use another drafter"
        )
    with torch.device(target.get_input_embeddings().weight.device):
        layer = _build(target, blocks[place], place)
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0
    dtypes = {key: t.dtype for key, t in blocks[place].state_dict().items() if t.is_floating_point()}
    layer.load_state_dict(dict(tensors))
    for key, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtypes.get(key, next(iter(dtypes.values()))))
    return layer


def _build(target: Any, block: Any, place: int) -> Any:
    try:
        return type(block)(target.config.get_text_config(decoder=True), place)
    except TypeError as error:
        raise UserError(
            f"one more {type(block).__name__} cannot be made for multi-token prediction ({error}); use "
            "another drafter"
        ) from error


def _apply_conversions(tensors: Mapping[str, Tensor], target: Any, prefix: str) -> dict[str, Tensor]:
    """The tensors of one layer after Transformers' conversions for this model, by name within the layer."""
    with quiet():
        mapping = get_model_conversion_mapping(target)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    converted: dict[str, Tensor] = {}
    waiting: dict[str, WeightConverter] = {}
    for key in sorted(tensors, key=_natural):
        new, pattern = rename_source_key(prefix + key, renamings, converters)
        if pattern is None:
            converted[new] = tensors[key]
        else:
            tensor_given: Any = tensors[key]
            converter = waiting.setdefault(new, deepcopy(by_pattern[pattern]))
            converter.add_tensor(new, prefix + key, pattern, tensor_given)
    for first, converter in waiting.items():
        for new, tensor in converter.convert(first, model=target, config=target.config).items():
            converted[new] = tensor[0] if isinstance(tensor, list) else tensor
    place = prefix.rstrip(".").rpartition(".")[2]  # conversions may have changed what comes before it
    return {
        new.partition(f"layers.{place}.")[2] or new.removeprefix(prefix): t for new, t in converted.items()
    }


def _natural(key: str) -> list[tuple[int, str]]:
    """Numbers in a name in their own order: expert 10 after expert 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]
