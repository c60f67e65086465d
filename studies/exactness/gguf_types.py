"""Changes by a conversion to GGUF: greedy text and logits of llama.cpp against Transformers, by type.

    python -m studies.exactness.gguf_types [--prompts 8] [--new-tokens 32]
        [--types f32,f16,bf16,q8_0,q4_k]

Converts the target to each type and writes the greedy text of Spec-Bench prompts, evenly chosen, with
Transformers in float32. Every file then reads these texts, one token a pass and with keys and values in
float32: how far its logits are from Transformers' (the largest difference of a position, in units of the
logits), how often another token is the most likely one, and the mean negative log-likelihood of the text.
A position with another most likely token is a tie if Transformers' two logits are within 1e-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from draftwise import export_gguf
from draftwise.generation.prompts import encode
from draftwise.models.gguf.model import GgufTokenizer
from draftwise.models.load import load_model
from studies.common.command import command, listed, start
from studies.common.texts import generated, spread

PAGE = "docs/how-to/export.md"
TIE = 1e-4


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--types", type=listed, default=listed("f32,f16,bf16,q8_0,q4_k"))
    options = parser.parse_args()
    model: Any = load_model("zoo:target")
    texts: list[tuple[list[int], list[int], Any]] = []
    with TemporaryDirectory() as folder:
        for type in options.types:
            exported = export_gguf("zoo:target", Path(folder) / f"{type}.gguf", type=type)
            if not texts:
                words = GgufTokenizer.from_file(exported.path)
                texts = list(written(model, words, options.prompts, options.new_tokens))
            print(f"{type}: {exported.bytes / 1e6:.1f} MB, {compared(exported.path, texts)}", flush=True)
            exported.path.unlink()
    return 0


def written(
    model: Any, words: GgufTokenizer, prompts: int, length: int
) -> Iterator[tuple[list[int], list[int], Any]]:
    """Prompt, greedy text, and the logits before each of its tokens."""
    for prompt in spread(prompts):
        ids = encode(words, prompt, vocab_size=words.size)
        text = generated(model, ids, length)
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *text[:-1]]])).logits[0, len(ids) - 1 :]
        yield ids, text, logits.double().numpy()


def compared(path: Path, texts: list[tuple[list[int], list[int], Any]]) -> str:
    """A file's logits on these texts, in one line."""
    from tests.gguf import Plain

    engine = Plain(str(path))
    apart, others, ties, ours, theirs = list[float](), 0, 0, list[float](), list[float]()
    for ids, text, logits in texts:
        row = engine.after(ids)
        for at, (token, own) in enumerate(zip(text, logits, strict=True)):
            apart.append(float(np.abs(row - own).max()))
            if (mine := int(row.argmax())) != token:
                others, ties = others + 1, ties + bool(own[token] - own[mine] < TIE)
            for row_, likelihoods in ((row.astype(float), ours), (own, theirs)):
                likelihoods.append(float(np.logaddexp.reduce(row_) - row_[token]))
            if at + 1 < len(text):
                row = engine.read([token])
    return (
        f"{len(apart)} positions, largest difference {max(apart):.2g}, median {np.median(apart):.2g}, "
        f"{others} other tokens ({ties} ties), mean negative log-likelihood {np.mean(ours):.4f} "
        f"(Transformers {np.mean(theirs):.4f})"
    )


if __name__ == "__main__":
    start(main)
