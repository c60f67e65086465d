"""A head as a model that reads a state beside each token, which is how `ModelRunner` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from ..weights.packed import layout_of
from .eagle import EAGLES, PairHead

SHARED = ("words", "output")  # the target's embedding and output layer, where a head has none of its own


class PairModel(nn.Module):
    """A head with the interface that `ModelRunner` needs of a model.

    Its tokens are one position ahead of their `states`. It returns logits over the drafted vocabulary, and
    the head's own `states` after each pair.
    """

    def __init__(self, head: PairHead) -> None:
        super().__init__()
        self.head, self.config = head, head.config
        own = ("embed_tokens", "lm_head")
        for name, other, module in zip(SHARED, own, head.shared, strict=True):
            if not hasattr(head, other):
                self.add_module(name, module)
        self.training = False  # it has no mode of its own, beside its head's
        self.weight = (next(head.parameters()).new_empty(0),)  # its device and dtype

    @property
    def dtype(self) -> torch.dtype:
        return self.weight[0].dtype

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    def get_input_embeddings(self) -> SimpleNamespace:
        """Return an object whose weight is on the head's device."""
        return SimpleNamespace(weight=self.weight[0])

    def forward(
        self,
        input_ids: Tensor,
        states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
        use_cache: bool,
        logits_to_keep: int | Tensor,
    ) -> SimpleNamespace:
        """Return logits at the kept positions and all states, shape (rows, length, width)."""
        after = self.head(
            input_ids, states, position_ids=position_ids, attention_mask=attention_mask, cache=cache
        )
        at = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return SimpleNamespace(logits=self.head.logits(after[:, at]), states=after)

    def share(self) -> None:
        """Let the head use the shared modules that this model has now."""
        pairs = zip(SHARED, self.head.shared, strict=True)
        self.head.shared = tuple(getattr(self, name, module) for name, module in pairs)

    def structure(self) -> dict[str, Any] | None:
        """What `from_structure` makes such a model from, as plain data.

        None for a head that is not one of EAGLE's, or shares modules of other classes than PyTorch's.
        """
        kind = next((name for name, one in EAGLES.items() if type(self.head) is one), None)
        words, output = self.head.shared
        is_linear = type(output) is nn.Linear or bool(layout_of(output))
        plain = {"words": type(words) is nn.Embedding, "output": is_linear}
        if kind is None or not all(plain[name] for name in SHARED if hasattr(self, name)):
            return None
        return {
            "kind": kind,
            "config": self.config.to_dict(),
            "own": [name for name in ("embed_tokens", "lm_head") if hasattr(self.head, name)],
            "vocab_size": self.head.vocab_size,
            "width": self.head.target_width,
            "words": words.num_embeddings,
            "output": [output.out_features, output.bias is not None],
        }


def from_structure(structure: Mapping[str, Any]) -> PairModel:
    """A model of this structure with weights of no meaning."""
    rows, bias = structure["output"]
    width = structure["width"]
    text = SimpleNamespace(vocab_size=structure["vocab_size"], hidden_size=width)
    words, output = nn.Embedding(structure["words"], width), nn.Linear(width, rows, bias=bias)
    target = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda decoder: text),
        get_input_embeddings=lambda: words,
        get_output_embeddings=lambda: output,
    )
    config = AutoConfig.for_model(**structure["config"])
    return PairModel(EAGLES[structure["kind"]](config, target, own=structure["own"]))
