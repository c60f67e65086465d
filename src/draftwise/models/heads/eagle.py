"""EAGLE: one decoder layer that continues from the target's hidden states.

It reads pairs of the target's feature at token i and the token i + 1, which the feature does not include.
The output state for a pair is an estimate of the feature at token i + 1. Token i + 2 is predicted from it,
and in longer drafts it replaces the target's feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..cache_names import CACHE
from .files import write
from .layers import parts_of


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

    def __init__(self, config: Any, target: Any, *, own: Sequence[str] = ()) -> None:
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
        self.parts = parts_of(config)
        self.rotary_emb = self.parts.rotary(config)
        self._build(own)

    def _build(self, own: Sequence[str]) -> None:
        config, layer = self.config, self.parts.layer
        bias = bool(getattr(config, "bias", True))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(layer(config, i) for i in range(config.num_hidden_layers))
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
        cache: Any = None,
    ) -> Tensor:
        """The head's own states after each pair, shape (rows, length, width).

        `tokens` (rows, length) are one position ahead of `states` (rows, length, width), which are either
        `read` from the target or outputs of this method. `position_ids` default to 0, 1, ...;
        `attention_mask` is additive, (rows, 1, length, seen), and causal by default; `cache` is one of
        Transformers.
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
            **{CACHE: cache},
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
        write(folder, config, self._published())

    def _published(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.state_dict().items() if "rotary_emb" not in name}
