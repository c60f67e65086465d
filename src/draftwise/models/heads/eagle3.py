"""EAGLE-3, and P-EAGLE, which drafts in parallel: features of several layers, a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .eagle import Eagle
from .layers import fused, through


class Eagle3(Eagle):
    """EAGLE-3's head (arXiv 2503.01840): features of a low, a middle and a high layer, and an output layer of
    its own over the drafted vocabulary.

    `ids` maps its vocabulary to the target's; published as `d2t` (target id minus draft id) and `t2d` (mask
    of the target's ids that are included). Its configuration may ask for norms: of the features, one by one
    (`fc_norm`) or together (`norm_before_fc`), of the residual (`norm_before_residual`), and of the states
    that the next token continues from (`norm_output`). Without `use_aux_hidden_state` it reads the target's
    last state alone, as it is.
    """

    architecture = "LlamaForCausalLMEagle3"
    d2t: Tensor
    t2d: Tensor

    def _build(self, own: Sequence[str]) -> None:
        config, size = self.config, int(getattr(self.config, "draft_vocab_size", 0) or self.vocab_size)
        self.layers_read = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or (-1,))
        count, norm, eps = len(self.layers_read), self.parts.norm, config.rms_norm_eps
        if getattr(config, "use_aux_hidden_state", True):
            self.fc = nn.Linear(count * self.target_width, config.hidden_size, bias=False)
        if getattr(config, "norm_before_fc", False):
            self.input_norm = norm(count * self.target_width, eps=eps)
        if getattr(config, "fc_norm", False):
            self.fc_norm = nn.ModuleList(norm(self.target_width, eps=eps) for _ in range(count))
        self.midlayer = fused(self.parts, config)
        self.upper = nn.ModuleList(self.parts.layer(config, i) for i in range(1, config.num_hidden_layers))
        self.norm = norm(config.hidden_size, eps=eps)
        self.norms_residual = bool(getattr(config, "norm_before_residual", False))
        self.norms_output = bool(getattr(config, "norm_output", False))
        if "lm_head" in own or size < self.vocab_size:
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
        """The features of all layers combined into one state, shape (..., width)."""
        if hasattr(self, "input_norm"):
            features = self.input_norm(features)
        if hasattr(self, "fc_norm"):
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features) if hasattr(self, "fc") else features

    def _layers(self, words: Tensor, states: Tensor, **how: Any) -> Tensor:
        states = through(self.midlayer, words, states, norms_residual=self.norms_residual, **how)
        for layer in self.upper:
            states = layer(states, **how)
        return self.norm(states) if self.norms_output else states

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each pair, shape (..., drafted vocabulary): see `ids`."""
        return super().logits(states if self.norms_output else self.norm(states))

    def _published(self) -> dict[str, Tensor]:
        return {_renumbered(name): tensor for name, tensor in super()._published().items()}


def _renumbered(name: str) -> str:
    """`upper.0` as `layers.1`: published layers are counted from the first, which is `midlayer`."""
    if not name.startswith("upper."):
        return name
    number, _, rest = name.removeprefix("upper.").partition(".")
    return f"layers.{int(number) + 1}.{rest}"


class PEagle(Eagle3):
    """P-EAGLE's head: EAGLE-3's layers, drafting all tokens in one pass.

    The second and later tokens are predicted at pairs of a mask token (`mask_token`) and a learnt feature
    (`mask_hidden`, shape (1, 1, layers * target width)), which follow the last known pair. `longest` is the
    number of tokens that it was trained to draft, 0 if unknown.
    """

    architecture = "PEagleSpeculator"

    def _build(self, own: Sequence[str]) -> None:
        super()._build(own)
        self.mask_token, self.longest = int(self.config.mask_token_id), int(self.config.longest)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(self.layers_read) * self.target_width))
