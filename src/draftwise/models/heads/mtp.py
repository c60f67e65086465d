"""Multi-token prediction: the layer that a model's own files hold for drafting, which Transformers drops.

DeepSeek-V3 (arXiv 2412.19437, section 2.2), and after it GLM-4.5, Qwen3-Next, Qwen3.5 and MiMo: norms of the
token's embedding and of the last hidden state, a projection of both to the model's width, one decoder layer
of the model's own kind, a norm, and the model's output layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..cache_names import name_for
from .files import folder_of, read_tensors
from .mtp_names import Roles, inside, roles
from .own_layers import blocks_of, converted, fresh_layer, load_layer


class Mtp(nn.Module):
    """A model's layer of multi-token prediction, with the interface of `Eagle`.

    Embedding and output layer are the model's, unless the layer's own differ. The layer is Transformers' own
    for this kind of model. Where a checkpoint holds several, the first drafts every token of a draft.
    """

    ids: Tensor | None = None
    layers_read: tuple[int, ...] = (-1,)

    def __init__(self, target: Any, layer: Any, norm: Any, found: Roles) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        self.config = copy(text)
        self.config.num_hidden_layers = 1
        self.vocab_size, width = int(text.vocab_size), int(text.hidden_size)
        self.shared = (target.get_input_embeddings(), target.get_output_embeddings())
        self.rotary = (target.get_decoder().rotary_emb,)  # in a tuple: not a part of this module
        self.states_first, self.normed = found.states_first, found.normed
        self.words_norm, self.states_norm, self.norm = (deepcopy(norm) for _ in range(3))
        self.joined = nn.Linear(2 * width, width, bias=False)
        self.layer, self.cache_name = layer, name_for(layer)

    def read(self, features: Tensor) -> Tensor:
        """The target's last hidden state, as it is."""
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
        """The layer's states after each pair; shapes and defaults as for `Eagle.forward`."""
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        embedding = getattr(self, "embed_tokens", self.shared[0])
        words = self.words_norm(embedding(tokens).to(states.device, states.dtype))
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
        head: Any = getattr(self, "lm_head", self.shared[1])
        states = states if self.normed else self.norm(states)
        logits: Tensor = head(states.to(head.weight.device))
        return logits


def load_mtp(name: str | Path, target: Any) -> Mtp:
    """The layer of multi-token prediction in a model's own files, or in the `speculators` format.

    Raises:
        UserError: there is none, its names are not known, or it was made for another model.
    """
    text = target.config.get_text_config(decoder=True)
    depth, width = int(text.num_hidden_layers), int(text.hidden_size)
    given = read_tensors(folder_of(str(name)), lambda key: inside(key, depth))
    if not given:
        raise UserError(
            f"model {str(name)!r} has no layer of multi-token prediction: its files hold no tensor named "
            f"mtp, and none of a layer after {depth - 1}; name the folder that holds it, mtp?folder=FOLDER, "
            "or use another drafter"
        )
    return _made(str(name), given, target, depth, width)


def _made(name: str, given: Mapping[str, Tensor], target: Any, depth: int, width: int) -> Mtp:
    blocks, path = blocks_of(target, depth)
    if not hasattr(target.get_decoder(), "rotary_emb") or not hasattr(blocks[-1], "input_layernorm"):
        raise UserError(
            f"model {name!r}: multi-token prediction for {type(target).__name__} is not supported, since its "
            "decoder has no rotary_emb or its layers no input_layernorm; use another drafter"
        )
    parts = roles(name, given, depth, width, int(target.config.get_text_config(decoder=True).vocab_size))
    place, tensors = converted(name, parts.layer, target, blocks, path)
    layer = fresh_layer(target, blocks, place)
    load_layer(name, layer, tensors, blocks[place])
    norm: Any = blocks[place].input_layernorm
    made = Mtp(target, layer, norm, parts)
    with torch.no_grad():
        for part, key in ((made.words_norm, "words"), (made.states_norm, "states"), (made.norm, "last")):
            part.weight.copy_(parts.found[key])
        made.joined.weight.copy_(parts.found["joined"])
    _own(made, parts.found)
    weight = target.get_input_embeddings().weight
    for part in (
        made.joined,
        *(getattr(made, key) for key in ("embed_tokens", "lm_head") if hasattr(made, key)),
    ):
        part.to(weight.dtype)
    return made.to(weight.device).eval()


def _own(made: Mtp, found: Mapping[str, Tensor]) -> None:
    """Keep the layer's own embedding and output layer where they differ from the model's."""
    for key, shared in (("embed_tokens", made.shared[0]), ("lm_head", made.shared[1])):
        theirs = shared.weight.detach()
        if key not in found or torch.equal(found[key].to(theirs), theirs):
            continue
        rows, width = found[key].shape
        part: Any = nn.Embedding(rows, width) if key == "embed_tokens" else nn.Linear(width, rows, bias=False)
        with torch.no_grad():
            part.weight.copy_(found[key])
        setattr(made, key, part)
