"""Greedy text of every drafter against Transformers' own `generate`, on all Spec-Bench prompts that fit.

    python -m studies.exactness.exact [--every N] [--dtype float32] [--new-tokens 64]
    python -m studies.exactness.exact --policies hedgespec,draft-all --batches 8

Policies choose among `zoo:general`, `ngram` and `suffix`. Prints how many texts differ for each way of
decoding. A first difference counts as a tie only if the margin between the two most likely tokens, recomputed
in float64 on the same prefix, is below four times the error measured on that row and below 1e-4; each
difference is listed. The exit status is 1 at one that is no tie, in float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from draftwise import Decoder, Sampling
from draftwise.data import spec_bench
from draftwise.drafters.lookup.datastore import build, tokenizer_fingerprint
from draftwise.generation.prompts import prompt_ids
from draftwise.models.load import load_model, load_tokenizer
from studies.common.command import command, listed, numbers, start
from studies.common.texts import generated, write

PAGE = "docs/explanation/lossless.md"
WAYS = {
    "none": ("none", []),
    "lm": ("static-4", ["zoo:general"]),
    "ngram": ("static-8", ["ngram"]),
    "suffix": ("static-8", ["suffix"]),
    "retrieval": ("static-8", ["retrieval"]),
    "ucb1, all": (
        "ucb1?arms=drafters*lengths&lengths=1,4,8",
        ["zoo:general", "ngram", "suffix", "retrieval"],
    ),
}
CHOICE = ["zoo:general", "ngram", "suffix"]  # whom the policies of `--policies` choose among


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--every", type=int, default=1, help="take every N-th prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", type=numbers, default="8,1", help="batch sizes, with commas between")
    parser.add_argument("--policies", type=listed, default=[], help="these alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer, plain = load_tokenizer("zoo:target"), load_model("zoo:target", dtype=options.dtype)
    exact: Any = load_model("zoo:target", dtype="float32").double()
    prompts = fitting(tokenizer, 2048 - options.new_tokens)[:: options.every]
    waiting = track(prompts, "Transformers", disable=not sys.stderr.isatty())
    own = [generated(plain, prompt, options.new_tokens) for prompt in waiting]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        store = datastore(Path(folder), tokenizer, own[::2])
        ways = {name: (name, CHOICE) for name in options.policies} or WAYS
        for way, (policy, drafters) in ways.items():
            names = [f"retrieval:{store}" if name == "retrieval" else name for name in drafters]
            for batch in options.batches:
                decoder = Decoder.from_pretrained(
                    "zoo:target", drafters=names, policy=policy, dtype=options.dtype
                )
                sampling = Sampling(max_new_tokens=options.new_tokens, eos=decoder.eos)
                texts, rounds = write(decoder.loop, prompts, sampling, batch=batch)
                if any(decoder.loop.faults.values()):
                    raise RuntimeError(f"a drafter failed: {decoder.loop.faults}")
                apart = differences(plain, exact, prompts, own, texts)
                ties = sum(difference["tie"] for difference in apart)
                wrong += len(apart) - ties
                figures = {"way": way, "batch": batch, "prompts": len(prompts), "ties": ties}
                figures["differences"] = len(apart) - ties
                figures["mean_accepted"] = round(sum(one.accepted for one in rounds) / len(rounds), 3)
                for line in (figures, *apart):
                    print(json.dumps(line), flush=True)
    print(f"{len(prompts)} prompts: {wrong} differences that are no ties")
    return int(wrong > 0 and options.dtype == "float32")


def fitting(tokenizer: Any, longest: int) -> list[list[int]]:
    """First turns as token ids; those that do not fit are refused, never cut."""
    encoded = [prompt_ids(tokenizer, question.text) for question in spec_bench()]
    fit = [ids for ids in encoded if len(ids) <= longest]
    print(f"{len(fit)} of {len(encoded)} prompts fit", flush=True)
    return fit


def datastore(folder: Path, tokenizer: Any, texts: Sequence[Sequence[int]]) -> Path:
    """A store of what the target wrote for every other prompt: it finds something and is often wrong."""
    corpus, store = folder / "corpus.jsonl", folder / "store"
    rows = [{"text": tokenizer.decode(text, skip_special_tokens=True)} for text in texts]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    build(
        [corpus],
        store,
        encode=lambda text: list(tokenizer(text)["input_ids"]),
        vocab_size=len(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer.get_vocab()),
    )
    return store


@torch.inference_mode()
def differences(plain: Any, exact: Any, prompts: Any, own: Any, texts: Any) -> list[dict[str, Any]]:
    """Where two texts of a prompt part: the margin in float64, and the largest error of the row."""
    apart = []
    for number, (prompt, a, b) in enumerate(zip(prompts, own, texts, strict=True)):
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            ids = torch.tensor([[*prompt, *a[:at]]])
            row = exact(ids).logits[0, -1]
            first, second = row.topk(2).values.tolist()
            error = float((plain(ids).logits[0, -1].double() - row).abs().max())
            margin, where = first - second, {"prompt": number, "position": at}
            apart.append(where | {"margin": margin, "error": error, "tie": margin < min(4 * error, 1e-4)})
    return apart


if __name__ == "__main__":
    start(main)
