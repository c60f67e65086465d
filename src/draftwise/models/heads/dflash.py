"""DFlash: a block of masked tokens, filled in one pass beside the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from .eagle import TargetHead, finish_head, parts_of
from .files import (
    OTHER_TARGET,
    Published,
    check_features,
    check_mask,
    check_vocabulary,
    explains_files,
)


class Sight(NamedTuple):
    """What a layer's block sees: so many positions before it (0: all), and whether only earlier places."""

    window: int
    causal: bool


class DFlash(TargetHead):
    """DFlash's head (arXiv 2602.06036): layers whose attention reads, beside the block, the target's features
    of all positions before it, as keys and values.

    A block is the last known token and masks (`mask_token`), `size` in all; place i predicts the token at its
    own position, except where `shifted`, which predicts the one after it.
    """

    def __init__(self, config: Any, target: Any, own: Sequence[str], layers_read: Sequence[int]) -> None:
        width, drafted = int(config.hidden_size), int(getattr(config, "draft_vocab_size", 0) or 0)
        super().__init__(target, width, own=own, drafted=drafted)
        self.config, self.layers_read = config, tuple(layers_read)
        self.size, self.mask_token = int(config.block_size), int(config.mask_token_id)
        self.shifted = bool(getattr(config, "sample_from_anchor", False))
        parts = parts_of(config)
        self.fc = nn.Linear(len(self.layers_read) * self.target_width, width, bias=False)
        self.layers = nn.ModuleList(parts.layer(config, i) for i in range(config.num_hidden_layers))
        self.hidden_norm, self.norm = (parts.norm(width, eps=config.rms_norm_eps) for _ in range(2))
        self.rotary_emb = parts.rotary(config)
        self.sights = [_sight(config, i) for i in range(config.num_hidden_layers)]

    def context(self, features: Tensor, start: int) -> Tensor:
        """Keys and values that each layer has for the target's features at positions from `start` on.

        `features` are (positions, layers * target width); the result is (draft layers, 2, heads, positions,
        head size).
        """
        states = self.hidden_norm(self.fc(features))[None]
        places = torch.arange(start, start + len(features), device=states.device)[None]
        turn = self.rotary_emb(states, position_ids=places)
        return torch.stack([torch.stack(_keys(layer.self_attn, states, turn)) for layer in self.layers])[
            :, :, 0
        ]

    def forward(self, tokens: Tensor, starts: Tensor, context: Tensor) -> Tensor:
        """States of a block, shape (rows, block, width), after the last norm.

        `tokens` (rows, block) stand at positions from `starts` (rows,) on, which is the length of each row's
        context too; `context` (draft layers, 2, rows, heads, most positions, head size) is padded on the
        right.
        """
        places = starts[:, None] + torch.arange(tokens.shape[1], device=starts.device)
        states = self.embed(tokens).to(self.norm.weight.dtype)
        turn = self.rotary_emb(states, position_ids=places)
        layers: Any = self.layers
        for layer, sight, (keys, values) in zip(layers, self.sights, context, strict=True):
            normed = layer.input_layernorm(states)
            seen = _seen(sight, starts, keys.shape[2], tokens.shape[1])
            states = states + _attend(layer.self_attn, normed, turn, keys, values, seen)
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        last: Tensor = self.norm(states)
        return last if self.shifted else last[:, 1:]


def _sight(config: Any, layer: int) -> Sight:
    """What a layer sees; a windowed one is causal, unless the settings say otherwise."""
    kinds = getattr(config, "layer_types", None) or ()
    everywhere = bool(getattr(config, "use_swa", False)) and "sliding_attention" not in kinds
    slides = everywhere or (layer < len(kinds) and kinds[layer] == "sliding_attention")
    window = getattr(config, "swa_window_size", None) or getattr(config, "sliding_window", None) or 0
    causal = getattr(config, "causal", None)
    if causal is None:
        causal = slides and not everywhere and not getattr(config, "sliding_window_non_causal", False)
    return Sight(int(window) if slides else 0, bool(causal))


def _seen(sight: Sight, starts: Tensor, longest: int, block: int) -> Tensor:
    """Which of context and block each place of the block sees, shape (rows, 1, block, longest + block)."""
    at = torch.arange(longest, device=starts.device)
    visible = at < starts[:, None]
    if sight.window:
        visible &= at >= starts[:, None] - sight.window
    inner = torch.ones(block, block, dtype=torch.bool, device=starts.device)
    inner = inner.tril() if sight.causal else inner
    parts = visible[:, None, None].expand(-1, 1, block, -1), inner.expand(len(starts), 1, -1, -1)
    return torch.cat(parts, dim=-1)


def _heads(attention: Any, states: Tensor, name: str) -> Tensor:
    """Queries, keys or values, shape (rows, heads, length, head size), normed if the kind of layer norms."""
    vectors: Tensor = getattr(attention, f"{name}_proj")(states)
    vectors = vectors.view(*states.shape[:2], -1, attention.head_dim)
    norm = getattr(attention, f"{name}_norm", None)
    return (vectors if norm is None else norm(vectors)).transpose(1, 2)


def _keys(attention: Any, states: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    keys = _heads(attention, states, "k")
    return apply_rotary_pos_emb(keys, keys, *turn)[1], _heads(attention, states, "v")


def _attend(
    attention: Any, states: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Attention of the block to context and block, shape (rows, block, width)."""
    queries = _heads(attention, states, "q")
    queries = apply_rotary_pos_emb(queries, queries, *turn)[0]
    own_keys, own_values = _keys(attention, states, turn)
    keys, values = torch.cat((keys, own_keys), dim=2), torch.cat((values, own_values), dim=2)
    mixed = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=attention.scaling, enable_gqa=True
    )
    out: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return out


@explains_files
def make_dflash(published: Published, target: Any) -> DFlash:
    """Make the head that was read, on the target's device and in its dtype.

    Raises:
        UserError: a setting is missing or not supported, or it was made for another target.
    """
    check_vocabulary(published, target)
    settings, tensors, more = published.settings, published.tensors, dict[str, Any]()
    if settings.get("block_size") is None:
        raise published.refuse("its config.json has no block_size: add the number of tokens in a block")
    if int(settings["block_size"]) < 2:
        raise published.refuse(f"its block_size is {settings['block_size']}: a block has 2 tokens or more")
    check_mask(published, target)
    if not settings.get("is_neox_style", True):
        raise published.refuse("it turns neighbouring numbers (is_neox_style false), which is not supported")
    drafted = tensors.get("lm_head.weight", tensors.get("d2t"))
    if drafted is not None:
        more["draft_vocab_size"] = len(drafted)
    config = published.config(**more)
    ids = _layers_read(published, config, target)
    return finish_head(DFlash(config, target, published.own, ids), published, target)


def _layers_read(published: Published, config: Any, target: Any) -> list[int]:
    """The layers whose states it reads, numbered like `hidden_states`; -1 is the last, after the norm.

    `speculators` counts so; the authors count the layers from 0.
    """
    text = target.config.get_text_config(decoder=True)
    depth, width = int(text.num_hidden_layers), int(text.hidden_size)
    key = "aux_hidden_state_layer_ids"
    ids = published.settings.get(key)
    if ids is None:
        key = "target_layer_ids"
        authors_ids = published.settings.get(key) or _spread(depth, int(config.num_hidden_layers))
        ids = [int(k) + 1 for k in authors_ids]
    if (wrong := next((k for k in ids if not 0 <= k <= depth), None)) is not None:
        raise published.refuse(
            f"it reads the states after {wrong} layers ({key}), and this target has {depth}: {OTHER_TARGET}"
        )
    check_features(published, len(ids), target, key)
    if config.hidden_size != width and "embed_tokens.weight" not in published.tensors:
        raise published.refuse(f"it is {config.hidden_size} wide and the target {width}: {OTHER_TARGET}")
    return [-1 if k == depth else k for k in ids]


def _spread(depth: int, layers: int) -> list[int]:
    """The authors' default: layers evenly from the second to the third from the last."""
    if layers == 1:
        return [depth // 2]
    return [round(1 + i * (depth - 4) / (layers - 1)) for i in range(layers)]
