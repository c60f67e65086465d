"""EAGLE and EAGLE-3: one decoder layer that continues from the target's hidden states.

Both read pairs of the target's feature at token i and the token i + 1, which the feature does not include.
The output state for a pair is an estimate of the feature at token i + 1. Token i + 2 is predicted from it,
and in longer drafts it replaces the target's feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from ...errors import UserError
from .files import fill, folder_of, read_config, read_tensors, write


class Eagle(nn.Module):
    """EAGLE's head (arXiv 2401.15077): feature and token through `fc`, one decoder layer, the target's own
    output layer.

    The token embedding and the output layer are shared with the target and not part of the head's weights,
    unless a checkpoint contains its own. `layers_read` are the target's hidden states used as features,
    numbered like Transformers' `hidden_states`; -1 is the last, after the final norm.

    Raises:
        UserError: the head's width differs from the target's.
    """

    architecture = "LlamaForCausalLMEagle"
    ids: Tensor | None = None  # the target's ids of the drafted vocabulary; None: all of it

    def __init__(self, config: LlamaConfig, target: Any, *, own: Sequence[str] = ()) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        self.config = config
        text = target.config.get_text_config(decoder=True)
        self.vocab_size, self.target_width = int(text.vocab_size), int(text.hidden_size)
        self.layers_read: tuple[int, ...] = (-1,)
        self.shared = (target.get_input_embeddings(), target.get_output_embeddings())
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        elif config.hidden_size != self.target_width:
            raise UserError(
                f"this head is {config.hidden_size} wide and the target {self.target_width}: "
                "choose the head made for this target"
            )
        if "lm_head" in own:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self._build()

    def _build(self) -> None:
        config = self.config
        bias = bool(getattr(config, "bias", True))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.layers[0].input_layernorm = nn.Identity()

    def read(self, features: Tensor) -> Tensor:
        """The target's features of `layers_read`, concatenated, shape (..., layers * target width), as
        states, shape (..., width)."""
        return features

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        """The head's own states after each pair, shape (rows, length, width).

        `tokens` (rows, length) are one position ahead of `states` (rows, length, width), which are either
        `read` from the target or outputs of this method. `position_ids` default to 0, 1, ...;
        `attention_mask` is additive, (rows, 1, length, seen), and causal by default; `past_key_values` is a
        Transformers cache.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        place = self.rotary_emb(states, position_ids=position_ids)
        embedding = getattr(self, "embed_tokens", self.shared[0])
        words = embedding(tokens).to(states.dtype)
        return self._layers(
            words,
            states,
            position_embeddings=place,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )

    def _layers(self, words: Tensor, states: Tensor, **how: Any) -> Tensor:
        states = self.fc(torch.cat((words, states), dim=-1))
        for layer in self.layers:
            states = layer(states, **how)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each pair, shape (..., drafted vocabulary): see `ids`."""
        head: Any = getattr(self, "lm_head", self.shared[1])
        logits: Tensor = head(states.to(head.weight.device))  # a target's head may be on another device
        return logits

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors in the published format."""
        config = self.config.to_dict() | {"architectures": [self.architecture]}
        tensors = {name: t for name, t in self.state_dict().items() if "rotary_emb" not in name}
        write(folder, config, tensors)


class FusedLayer(LlamaDecoderLayer):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """EAGLE-3's decoder layer, whose attention reads the token and the state concatenated."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 0)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norms_residual = bool(getattr(config, "norm_before_residual", False))
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, old.out_features, bias=old.bias is not None)
            setattr(self.self_attn, name, wide)

    def forward(self, hidden_states: Tensor, words: Tensor, **how: Any) -> Tensor:  # type: ignore[override]
        """States after the layer, shape (rows, length, width), like both inputs."""
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norms_residual else hidden_states
        both = torch.cat((self.input_layernorm(words), normed), dim=-1)
        states = residual + self.self_attn(hidden_states=both, **how)[0]
        after: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return after


class Eagle3(Eagle):
    """EAGLE-3's head (arXiv 2503.01840): features of a low, a middle and a high layer, and an output layer of
    its own over the drafted vocabulary.

    `ids` maps its vocabulary to the target's; published as `d2t` (target id minus draft id) and `t2d` (mask
    of the target's ids that are included).
    """

    architecture = "LlamaForCausalLMEagle3"
    d2t: Tensor
    t2d: Tensor

    def _build(self) -> None:
        config, size = self.config, int(getattr(self.config, "draft_vocab_size", 0) or self.vocab_size)
        self.layers_read = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or ())
        self.fc = nn.Linear(len(self.layers_read) * self.target_width, config.hidden_size, bias=False)
        self.midlayer = FusedLayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, size, bias=False)
        if size < self.vocab_size:
            self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(self.vocab_size, dtype=torch.bool))
            self.choose(range(size))

    def choose(self, ids: Sequence[int]) -> None:
        """Restrict the draft to these tokens of the target, one for each row of `lm_head`."""
        chosen = torch.tensor(sorted(ids), device=self.d2t.device)
        self.d2t.copy_(chosen - torch.arange(len(chosen), device=chosen.device))
        self.t2d.zero_()
        self.t2d[chosen] = True

    @property
    def ids(self) -> Tensor | None:  # type: ignore[override]
        """The target's ids of the drafted vocabulary; None if it is the whole vocabulary."""
        if "d2t" not in self._buffers:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def read(self, features: Tensor) -> Tensor:
        """The three features combined into one state, shape (..., width)."""
        states: Tensor = self.fc(features)
        return states

    def _layers(self, words: Tensor, states: Tensor, **how: Any) -> Tensor:
        after: Tensor = self.midlayer(states, words, **how)
        return after

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each pair, shape (..., drafted vocabulary): see `ids`."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


def eagle_config(target: Any, *, eagle3: bool = False, drafted: int = 0, **changes: Any) -> LlamaConfig:
    """The configuration of a new head for a target: the target's width, one layer of its shape.

    For EAGLE-3 `drafted` is the size of the drafted vocabulary, 0 for the target's whole vocabulary. The
    layers read are those of the paper's code: 2, the middle one, and the third from the last.
    """
    text = target.config.get_text_config(decoder=True)
    heads, width = int(text.num_attention_heads), int(text.hidden_size)
    shape: dict[str, Any] = {
        "vocab_size": int(text.vocab_size),
        "hidden_size": width,
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 4 * width),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "tie_word_embeddings": False,
    }
    if eagle3:
        shape |= {"draft_vocab_size": drafted or shape["vocab_size"]}
        shape |= {"eagle_aux_hidden_state_layer_ids": _low_middle_high(target)}
    return LlamaConfig(**(shape | changes))


def _low_middle_high(target: Any) -> list[int]:
    n = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    return [min(2, n - 1), n // 2, max(n - 3, 0)]


def new_eagle(target: Any, *, eagle3: bool = False, drafted: int = 0, **changes: Any) -> Eagle:
    """A head with newly initialised weights, on the target's device and in its dtype."""
    config = eagle_config(target, eagle3=eagle3, drafted=drafted, **changes)
    return _beside((Eagle3 if eagle3 else Eagle)(config, target), target)


def _beside(head: Eagle, target: Any) -> Eagle:
    """The head on the target's device and in its dtype."""
    weight = target.get_input_embeddings().weight
    return head.to(weight.device, weight.dtype)


def load_eagle(name: str | Path, target: Any) -> Eagle:
    """Load a published EAGLE or EAGLE-3 head; the two are distinguished by the names of the tensors.

    Raises:
        UserError: the files cannot be read, or are not a head for this target.
    """
    folder = folder_of(str(name))
    raw, tensors = read_config(folder), _renamed(read_tensors(folder))
    raw |= raw.get("transformer_layer_config") or {}
    raw |= raw.get("eagle_config") or {}
    eagle3 = "d2t" in tensors or any(part.startswith("midlayer.") for part in tensors)
    if eagle3 and not raw.get("eagle_aux_hidden_state_layer_ids"):
        raw["eagle_aux_hidden_state_layer_ids"] = _low_middle_high(target)
    raw["attention_bias"] = any(part.endswith("q_proj.bias") for part in tensors)
    if not eagle3:
        raw["bias"] = "fc.bias" in tensors
    own = [part for part in ("embed_tokens", "lm_head") if f"{part}.weight" in tensors]
    try:
        config = LlamaConfig(
            **{k: v for k, v in raw.items() if k not in ("transformer_layer_config", "dtype")}
        )
        head = (Eagle3 if eagle3 else Eagle)(config, target, own=own)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"head {str(name)!r}: its config.json does not make a head ({error})") from error
    head = _beside(head, target)
    fill(head, _mapped(head, tensors), str(name))
    return head.eval()


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensor names as in our module, for every known way of publishing a head."""
    names = {name: name.removeprefix("model.") for name in tensors if not name.endswith("inv_freq")}
    if any(name.endswith("hidden_norm.weight") for name in names):
        names = {old: new.replace("layers.0.", "midlayer.") for old, new in names.items()}
    return {new: tensors[old] for old, new in names.items()}


def _mapped(head: Eagle, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with both vocabulary maps if the head has them, else with neither."""
    maps = {key: t for key, t in tensors.items() if key in ("d2t", "t2d")}
    others = {key: t for key, t in tensors.items() if key not in maps}
    if head.ids is None:
        return others
    if "d2t" in maps and "t2d" not in maps:
        ids = maps["d2t"] + torch.arange(len(maps["d2t"]))
        maps["t2d"] = torch.zeros(head.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    return others | maps
