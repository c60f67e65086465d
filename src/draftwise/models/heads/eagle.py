"""EAGLE heads: one decoder layer, or a few, that continue from the target's hidden states.

They read pairs of the target's feature at token i and the token i + 1, which the feature does not include.
The output state for a pair is an estimate of the feature at token i + 1. Token i + 2 is predicted from it,
and in longer drafts it replaces the target's feature.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlamaConfig

from ...errors import UserError
from ..cache_names import CACHE
from .files import (
    Published,
    check_features,
    check_mask,
    check_vocabulary,
    complete_tensors,
    explains_files,
    fill,
    read_head,
    warn_of_other_target,
    write,
)

LAYER_KINDS = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of models whose decoder layers are Llama's but for norms, biases and windows within attention. The
first layer of a head is used part by part (`Eagle3._layers`), which would leave out what other layers add."""

Head = TypeVar("Head", bound=nn.Module)


class Parts(NamedTuple):
    """The classes of a model: its decoder layer, its norm and its rotary embedding."""

    layer: Any
    norm: Any
    rotary: Any


def parts_of(config: Any) -> Parts:
    """Return the classes of Transformers' model of this configuration, by building it without weights.

    Raises:
        UserError: its layers are not made like Llama's.
    """
    if config.model_type not in LAYER_KINDS:
        raise UserError(
            f"a head with layers of the kind {config.model_type!r} is not supported: use one whose layers "
            f"are of the kind {', '.join(LAYER_KINDS)}"
        )
    build: Any = AutoModel.from_config  # without a declared type
    with torch.device("meta"):
        body = build(deepcopy(config))
    return Parts(type(body.layers[0]), type(body.norm), type(body.rotary_emb))


class TargetHead(nn.Module):
    """A head that shares the target's embedding and output layer, unless it brings its `own`, and drafts from
    the target's vocabulary or, if `drafted` is smaller, from so many of its tokens."""

    d2t: Tensor  # for each drafted token, the target's id less its own
    t2d: Tensor  # which of the target's ids are drafted
    layers_read: tuple[int, ...] = (-1,)
    """The target's hidden states used as features, numbered like Transformers' `hidden_states`; -1 is the
    last, after the final norm."""

    def __init__(self, target: Any, width: int, *, own: Sequence[str] = (), drafted: int = 0) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        self.vocab_size, self.target_width = int(text.vocab_size), int(text.hidden_size)
        self.shared = (target.get_input_embeddings(), target.get_output_embeddings())
        size = drafted or self.vocab_size
        if "embed_tokens" in own:
            self.embed_tokens = nn.Embedding(self.vocab_size, width)
        if "lm_head" in own or size < self.vocab_size:
            self.lm_head = nn.Linear(width, size, bias=False)
        if size < self.vocab_size:
            self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(self.vocab_size, dtype=torch.bool))

    @property
    def ids(self) -> Tensor | None:
        """The target's ids of the drafted vocabulary; None if it is the whole vocabulary."""
        if "d2t" not in self._buffers:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def embed(self, tokens: Tensor) -> Tensor:
        words: Tensor = getattr(self, "embed_tokens", self.shared[0])(tokens)
        return words

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the drafted vocabulary, see `ids`, from states of `forward`."""
        head: Any = getattr(self, "lm_head", self.shared[1])
        # A target's own may be on another device, or in another precision.
        logits: Tensor = head(states.to(head.weight.device, head.weight.dtype))
        return logits


class PairHead(TargetHead):
    """A head that reads pairs of a state of the target and the token after it."""

    config: Any

    def read(self, features: Tensor) -> Tensor:
        """Turn the target's features of `layers_read`, concatenated, shape (..., layers * target width), into
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
        """Return the head's own states after each pair, shape (rows, length, width).

        `tokens` (rows, length) are one position ahead of `states` (rows, length, width), which are either
        `read` from the target or outputs of this method. `position_ids` default to 0, 1, ...;
        `attention_mask` is additive, (rows, 1, length, seen), and causal by default; `cache` is one of
        Transformers.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self._after(tokens, states, position_ids, attention_mask, cache)

    @abstractmethod
    def _after(
        self, tokens: Tensor, states: Tensor, position_ids: Tensor, attention_mask: Tensor | None, cache: Any
    ) -> Tensor: ...


class Eagle(PairHead):
    """EAGLE's head (arXiv 2401.15077): feature and token through `fc`, one decoder layer, the target's own
    output layer.

    Raises:
        UserError: the head's width differs from the target's.
    """

    architecture = "LlamaForCausalLMEagle"
    may_restrict = False  # its vocabulary is the target's

    def __init__(self, config: Any, target: Any, *, own: Sequence[str] = ()) -> None:
        drafted = int(getattr(config, "draft_vocab_size", 0) or 0)
        super().__init__(target, config.hidden_size, own=own, drafted=drafted * self.may_restrict)
        config._attn_implementation = "sdpa"
        self.config, self.parts = config, parts_of(config)
        if "embed_tokens" not in own and config.hidden_size != self.target_width:
            raise UserError(
                f"this head is {config.hidden_size} wide and the target {self.target_width}: "
                "choose the head made for this target"
            )
        self.rotary_emb = self.parts.rotary(config)
        self._build()

    def _build(self) -> None:
        config, layer = self.config, self.parts.layer
        bias = bool(getattr(config, "bias", True))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(layer(config, i) for i in range(config.num_hidden_layers))
        self.layers[0].input_layernorm = nn.Identity()

    def _after(
        self, tokens: Tensor, states: Tensor, position_ids: Tensor, attention_mask: Tensor | None, cache: Any
    ) -> Tensor:
        place = self.rotary_emb(states, position_ids=position_ids)
        given = {"position_embeddings": place, "attention_mask": attention_mask, CACHE: cache}
        return self._layers(self.embed(tokens).to(states.dtype), states, **given)

    def _layers(self, words: Tensor, states: Tensor, **given: Any) -> Tensor:
        states = self.fc(torch.cat((words, states), dim=-1))
        for layer in self.layers:
            states = layer(states, **given)
        return states

    def save(self, folder: str | Path) -> None:
        config = self.config.to_dict() | {"architectures": [self.architecture]}
        tensors = {_published(name): t for name, t in self.state_dict().items() if "rotary_emb" not in name}
        write(folder, config, tensors)


class Eagle3(Eagle):
    """EAGLE-3's head (arXiv 2503.01840): features of a low, a middle and a high layer, and an output layer of
    its own over the drafted vocabulary.

    Its vocabulary is published as `d2t` and `t2d`. Its configuration may ask for norms: of the features, one
    by one (`fc_norm`) or together (`norm_before_fc`), of the residual (`norm_before_residual`), and of the
    states that the next token continues from (`norm_output`). Without `use_aux_hidden_state` it reads the
    target's last state alone, as it is.
    """

    architecture = "LlamaForCausalLMEagle3"
    may_restrict = True

    def _build(self) -> None:
        config, norm, eps = self.config, self.parts.norm, self.config.rms_norm_eps
        self.layers_read = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or (-1,))
        width = len(self.layers_read) * self.target_width
        if getattr(config, "use_aux_hidden_state", True):
            self.fc = nn.Linear(width, config.hidden_size, bias=False)
        if getattr(config, "norm_before_fc", False):
            self.input_norm = norm(width, eps=eps)
        if getattr(config, "fc_norm", False):
            self.fc_norm = nn.ModuleList(norm(self.target_width, eps=eps) for _ in self.layers_read)
        self.midlayer = self.parts.layer(config, 0)
        self.midlayer.hidden_norm = norm(config.hidden_size, eps=eps)
        for name in ("q_proj", "k_proj", "v_proj"):  # attention reads the token and the state concatenated
            old = getattr(self.midlayer.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, old.out_features, bias=old.bias is not None)
            setattr(self.midlayer.self_attn, name, wide)
        self.upper = nn.ModuleList(self.parts.layer(config, i) for i in range(1, config.num_hidden_layers))
        self.norm = norm(config.hidden_size, eps=eps)
        self.norms_residual = bool(getattr(config, "norm_before_residual", False))
        self.norms_output = bool(getattr(config, "norm_output", False))
        if self.ids is not None:
            self.choose(range(len(self.ids)))

    def choose(self, ids: Sequence[int]) -> None:
        """Restrict the draft to these tokens of the target, one for each row of `lm_head`."""
        chosen = torch.tensor(sorted(ids), device=self.d2t.device)
        self.d2t.copy_(chosen - torch.arange(len(chosen), device=chosen.device))
        self.t2d.zero_()
        self.t2d[chosen] = True

    def read(self, features: Tensor) -> Tensor:
        """Combine the features of all layers into one state, shape (..., width)."""
        if hasattr(self, "input_norm"):
            features = self.input_norm(features)
        if hasattr(self, "fc_norm"):
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features) if hasattr(self, "fc") else features

    def _layers(self, words: Tensor, states: Tensor, **given: Any) -> Tensor:
        first: Any = self.midlayer
        normed = first.hidden_norm(states)
        both = torch.cat((first.input_layernorm(words), normed), dim=-1)
        states = (normed if self.norms_residual else states) + first.self_attn(hidden_states=both, **given)[0]
        states = states + first.mlp(first.post_attention_layernorm(states))
        for layer in self.upper:
            states = layer(states, **given)
        return self.norm(states) if self.norms_output else states

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each pair, shape (..., drafted vocabulary): see `ids`."""
        return super().logits(states if self.norms_output else self.norm(states))


def _published(name: str) -> str:
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

    def _build(self) -> None:
        super()._build()
        self.mask_token, self.longest = int(self.config.mask_token_id), int(self.config.longest)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(self.layers_read) * self.target_width))


EAGLES: dict[str, type[Eagle]] = {"eagle": Eagle, "eagle3": Eagle3, "peagle": PEagle}


def new_eagle(target: Any, *, eagle3: bool = False, drafted: int = 0, **changes: Any) -> Eagle:
    """Make a head of the target's width, with one layer of its shape and new weights, on its device.

    For EAGLE-3 `drafted` is the size of the drafted vocabulary, 0 for the target's whole vocabulary.
    `changes` are settings of its configuration.
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
        "head_dim": int(getattr(text, "head_dim", None) or width // heads),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "tie_word_embeddings": False,
    }
    if eagle3:
        shape |= {"draft_vocab_size": drafted or shape["vocab_size"]}
        shape |= {"eagle_aux_hidden_state_layer_ids": _low_middle_high(target)}
    config = LlamaConfig(**(shape | changes))
    return beside(Eagle3(config, target, own=("lm_head",)) if eagle3 else Eagle(config, target), target)


def _low_middle_high(target: Any) -> list[int]:
    """The layers that EAGLE-3's code reads by default: 2, the middle one and the third from the last."""
    n = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    return [min(2, n - 1), n // 2, max(n - 3, 0)]


def beside(head: Head, target: Any) -> Head:
    """Move a head to the target's device and dtype."""
    weight = target.get_input_embeddings().weight
    return head.to(weight.device, weight.dtype)


def load_eagle(name: str | Path, target: Any) -> Eagle:
    """Load a published EAGLE, EAGLE-3 or P-EAGLE head, in the `speculators` format or its authors' own.

    Raises:
        UserError: the files cannot be read, or are not such a head for this target.
    """
    return make_eagle(read_head(str(name)), target)


@explains_files
def make_eagle(published: Published, target: Any) -> Eagle:
    """Make the head that was read, on the target's device and in its dtype.

    Raises:
        UserError: it is of another kind, or was made for another target.
    """
    if published.kind not in EAGLES:
        raise published.refuse(
            f"it is of the kind {published.kind}, not one of {', '.join(EAGLES)}: name one of these"
        )
    check_vocabulary(published, target)
    config = _complete_config(published, target)
    head = EAGLES[published.kind](config, target, own=published.own)
    return finish_head(head, published, target)


def finish_head(head: Head, published: Published, target: Any) -> Head:
    """Fill a head with the tensors that were read, on the target's device and in its dtype."""
    head = beside(head, target)
    fill(head, complete_tensors(published, head), published.name)
    warn_of_other_target(published, target)
    return head.eval()


def _complete_config(published: Published, target: Any) -> Any:
    tensors, settings = published.tensors, published.settings
    more: dict[str, Any] = {"attention_bias": any(k.endswith("self_attn.q_proj.bias") for k in tensors)}
    if published.kind == "eagle":
        more["bias"] = "fc.bias" in tensors
    else:
        fuses = bool(settings.get("use_aux_hidden_state", True))
        ids = settings.get("eagle_aux_hidden_state_layer_ids") or _low_middle_high(target)
        more["eagle_aux_hidden_state_layer_ids"] = ids if fuses else [-1]
        more["use_aux_hidden_state"] = fuses
        if "lm_head.weight" in tensors:
            more["draft_vocab_size"] = len(tensors["lm_head.weight"])
    if published.kind == "peagle":
        check_mask(published, target)
    config = published.config(**more)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise published.refuse(
            f"its layers see a window of {config.sliding_window} tokens: choose one that sees all"
        )
    if published.kind != "eagle":
        _check_layers(published, config.eagle_aux_hidden_state_layer_ids, target)
    return config


def _check_layers(published: Published, ids: Sequence[int], target: Any) -> None:
    """See that the layers read exist, and `fc` reads as many states as there are layers."""
    depth = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    key = "eagle_aux_hidden_state_layer_ids"
    wrong = next((k for k in ids if not -1 <= k < depth), None)
    if wrong is not None:
        raise published.refuse(
            f"it reads layer {wrong} ({key}), and this target has the layers 0 to {depth - 1}: choose the "
            "head made for this target"
        )
    check_features(published, len(ids), target, key)
