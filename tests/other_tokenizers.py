"""Tokenizers of other families than a target's, and models that know them."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.tiny import CONFIGS, VOCAB

FAST: Any = PreTrainedTokenizerFast  # untyped


def letters(order: Sequence[int], merges: Sequence[str] = ()) -> Any:
    """A tokenizer of `VOCAB` letters, the i-th of which has the id `order[i]`, and of some pairs of them."""
    names = string.ascii_lowercase[:VOCAB]
    vocabulary = {name: order[i] for i, name in enumerate(names)}
    vocabulary |= {pair: VOCAB + i for i, pair in enumerate(merges)}
    made = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in merges]))
    made.decoder = decoders.Fuse()
    return FAST(tokenizer_object=made)


def permuted(model: Any, order: Sequence[int], *, more: int = 0) -> Any:
    """The same model with other ids, and embeddings of `more` tokens after them: those of the first ids."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.vocab_size = len(order) + more
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).to(model.dtype).eval()
    old = torch.empty(config.vocab_size, dtype=torch.long)
    old[torch.tensor(order)] = torch.arange(len(order))
    old[len(order) :] = torch.arange(more)
    weights = model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][old]
    made.load_state_dict(weights)
    made.generation_config.eos_token_id = None
    return made


def small(size: int, *, seed: int = 0) -> Any:
    """A random model of some vocabulary size, whose text is not flat."""
    torch.manual_seed(seed)
    config = CONFIGS["llama"]()
    config.vocab_size, config.max_position_embeddings = size, 2048
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return made


@cache
def coarser(size: int) -> tuple[Any, Any]:
    """`zoo:general` with only the first `size` tokens of its vocabulary, under other ids: model, tokenizer.

    Longer tokens fall apart into those that are left, so that it is a useful model of other tokens.
    """
    from draftwise.models.load import load_model, load_tokenizer

    model, tokenizer = load_model("zoo:general", dtype="float32"), load_tokenizer("zoo:general")
    raw = json.loads(tokenizer.backend_tokenizer.to_str())
    old = {name: i for name, i in raw["model"]["vocab"].items() if i < size}
    raw["model"]["vocab"] = {name: size - 1 - i for name, i in old.items()}
    merges = (pair if isinstance(pair, list) else pair.split(" ") for pair in raw["model"]["merges"])
    raw["model"]["merges"] = [pair for pair in merges if "".join(pair) in old]
    for added in raw["added_tokens"]:
        added["id"] = size - 1 - added["id"]
    other = FAST(
        tokenizer_object=Tokenizer.from_str(json.dumps(raw)),
        eos_token=tokenizer.eos_token,
        bos_token=tokenizer.bos_token,
        pad_token=tokenizer.pad_token,
    )
    model.resize_token_embeddings(size)  # the first of them
    return permuted(model, list(reversed(range(size)))), other
