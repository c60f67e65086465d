"""The formulas of published heads, written plainly, for one text from position 0 on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.models.heads.folders import HEAD

Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def turned(x: Tensor, places: Tensor, theta: float = 5000.0) -> Tensor:
    """Rotary positions: x is (heads, tokens, HEAD)."""
    angle = places[:, None] / theta ** (torch.arange(0, HEAD, 2) / HEAD)
    cos, sin = torch.cat((angle.cos(),) * 2, -1).to(x), torch.cat((angle.sin(),) * 2, -1).to(x)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def split(x: Tensor, w: Weights, layer: str, name: str) -> Tensor:
    """Queries, keys or values of every head, (heads, tokens, HEAD), normed as Qwen3 norms them."""
    found = (x @ w[f"{layer}.self_attn.{name}_proj.weight"].T).view(len(x), -1, HEAD).transpose(0, 1)
    weight = w.get(f"{layer}.self_attn.{name}_norm.weight")
    return found if weight is None else norm(found, weight)


def mixed(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, w: Weights, layer: str) -> Tensor:
    """Attention of queries to the keys that they may see, (queries, keys)."""
    k, v = (y.repeat_interleave(len(q) // len(y), 0) for y in (k, v))
    scores = (q @ k.transpose(1, 2) / HEAD**0.5).masked_fill(~seen, -torch.inf)
    out = (scores.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], -1)
    done: Tensor = out @ w[f"{layer}.self_attn.o_proj.weight"].T
    return done


def attention(x: Tensor, w: Weights, layer: str) -> Tensor:
    """Causal attention at positions 0, 1, ..."""
    places = torch.arange(len(x))
    q, k = (turned(split(x, w, layer, name), places) for name in "qk")
    return mixed(q, k, split(x, w, layer, "v"), places[:, None] >= places, w, layer)


def perceptron(x: Tensor, w: Weights, layer: str) -> Tensor:
    """The second half of a decoder layer, its residual included."""
    y = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
    gate, up, down = (w[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    out: Tensor = x + (silu(y @ gate.T) * (y @ up.T)) @ down.T
    return out


def plain(x: Tensor, w: Weights, layer: str) -> Tensor:
    """A whole decoder layer."""
    x = x + attention(norm(x, w[f"{layer}.input_layernorm.weight"]), w, layer)
    return perceptron(x, w, layer)


def read(features: Tensor, w: Weights, count: int) -> Tensor:
    """EAGLE-3: the features of `count` layers as one state, with the norms that the head has."""
    if "input_norm.weight" in w:
        features = norm(features, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        parts = features.chunk(count, -1)
        features = torch.cat([norm(p, w[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)], -1)
    return features @ w["fc.weight"].T


def eagle3(words: Tensor, states: Tensor, w: Weights, *, norms: bool, depth: int = 1) -> Tensor:
    """EAGLE-3: the states after pairs of a token's embedding and a state."""
    normed = norm(states, w["layers.0.hidden_norm.weight"])
    both = torch.cat((norm(words, w["layers.0.input_layernorm.weight"]), normed), -1)
    x = perceptron((normed if norms else states) + attention(both, w, "layers.0"), w, "layers.0")
    for k in range(1, depth):
        x = plain(x, w, f"layers.{k}")
    return x


def dflash(
    words: Tensor, features: Tensor, w: Weights, *, depth: int, window: int = 0, causal: bool = False
) -> Tensor:
    """DFlash: the states of a block after its context, with `window` and `causal` for its second layer."""
    n, places = len(features), torch.arange(len(features) + len(words))
    context, x = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"]), words
    for k in range(depth):
        layer = f"layers.{k}"
        y = norm(x, w[f"{layer}.input_layernorm.weight"])
        both = torch.cat((context, y))
        keys = turned(split(both, w, layer, "k"), places)
        seen = torch.ones(len(words), len(both), dtype=torch.bool)
        if k == 1 and window:
            seen[:, : max(0, n - window)] = False
        if k == 1 and causal:
            seen[:, n:] = torch.ones(len(words), len(words)).tril().bool()
        queries = turned(split(y, w, layer, "q"), places[n:])
        x = perceptron(x + mixed(queries, keys, split(both, w, layer, "v"), seen, w, layer), w, layer)
    return norm(x, w["norm.weight"])
