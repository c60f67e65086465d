"""A tiny target, a tiny drafter and prompts in letters, on disk: each training takes a second or two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny import VOCAB, model

Options = Callable[..., dict[str, Any]]
"""Makes the options of a small training, with changes."""

LETTERS = "abcdefghijklmnopqrst"
SPECIAL = ("<pad>", "<bos>", "<eos>")


def silent(what: str, done: int, total: int, left: float | None = None) -> None:
    """See that what a training reports can be shown."""
    assert what and 0 <= done <= total


def tokenizer() -> Any:
    """One token a letter."""
    known = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    assert len(known) == VOCAB
    letters = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast: Any = PreTrainedTokenizerFast  # has no types
    return fast(tokenizer_object=letters, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def save(folder: Path, *, seed: int, scale: float = 8.0) -> Path:
    """A random model and its tokenizer, as `save_pretrained` writes them."""
    made = model("llama", seed=seed, dtype=torch.float32, scale=scale)
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def write_prompts(path: Path, n: int = 24) -> Path:
    """Prompts of two domains, in different letters."""
    rng = Random(3)
    with path.open("w") as file:
        for i in range(n):
            domain, letters = (("low", LETTERS[:10]), ("high", LETTERS[10:]))[i % 2]
            text = "".join(rng.choices(letters, k=rng.randint(4, 9)))
            file.write(json.dumps({"prompt": text, "domain": domain, "source": "ours@1"}) + "\n")
    return path
