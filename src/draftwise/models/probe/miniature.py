"""A small model of the same class, to try what a large one would show in long texts alone.

An index that keeps 2048 tokens, or 16 blocks of 128, leaves nothing out of a few tokens, and its blocks hold
the padding before a text as well as the text. Reading thousands of tokens would cost too much, so the model's
configuration is made small, with every kind of its layers, and a model with random weights is made of it: on
the CPU and in float32, whatever the precision of the model and wherever it is.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

from ..quiet import quiet
from ..recurrent import own_layers
from .readings import PROMPT, made_up, own_text
from .small import TRAINED, WINDOWS, small

LOG = getLogger(__name__)
SEEN = (DynamicLayer, DynamicSlidingWindowLayer)  # they hold keys and values, and masks decide what is seen


def selects(model: Any) -> bool:
    """Whether its cache holds more than keys, values and states: what an index chooses tokens by."""
    text = model.config.get_text_config(decoder=True)
    layers = [layer for layer in own_layers(text) if isinstance(layer, DynamicLayer)]
    return any(type(x) not in SEEN and not isinstance(x, LinearAttentionCacheLayerMixin) for x in layers)


def miniature(model: Any) -> Any:
    """A small model of the class and with the kinds of layers of this one; None if it cannot be made."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    attention = inner.config.get_text_config(decoder=True)._attn_implementation
    try:
        config = small(inner.config, kept=f"{WINDOWS}|{TRAINED}")
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            made = type(inner)._from_config(config, attn_implementation=attention).float().eval()
            spread(made, 0, 3.0, 0.1)
            own_text(made, made_up(PROMPT, config, int(config.get_text_config(decoder=True).vocab_size)))
    except Exception as trouble:  # sizes that do not go together may raise anything
        LOG.info("%s: no small model of the class could be made: %s", type(inner).__name__, trouble)
        return None
    return made


@torch.no_grad()
def spread(made: Any, seed: int, scale: float, embeddings: float) -> None:
    """Random weights so large that attention is sharp: a wrong place or mask shows at once."""
    draw = torch.Generator().manual_seed(seed)
    tables = {id(m.weight) for m in made.modules() if isinstance(m, torch.nn.Embedding)}
    for parameter in made.parameters():
        if parameter.dim() > 1:
            size = scale * (embeddings if id(parameter) in tables else 1.0)
            parameter.normal_(0.0, size / parameter.shape[-1] ** 0.5, generator=draw)
        elif not parameter.any():
            parameter.normal_(0.0, 0.1, generator=draw)  # biases
