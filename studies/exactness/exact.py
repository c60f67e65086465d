"""Greedy text of every drafter against Transformers' own `generate`, on all Spec-Bench prompts that fit.

    python -m studies.exactness.exact [--every N --offset K] [--dtype float32] [--new-tokens 64] [--json FILE]
    python -m studies.exactness.exact --policies all --every 10 --new-tokens 32      # the whole catalogue
    python -m studies.exactness.exact --policies hedgespec,draft-all --batches 8

Policies choose among `zoo:general`, `ngram` and `suffix`; `disco` and `specdecpp` use classifiers with random
weights. Prints how many texts differ for each way of decoding. A first difference counts as a tie only if the
margin between the two most likely tokens, recomputed in float64 on the same prefix, is below four times the
float32 error measured on that row and below 1e-4; each tie is listed. The exit status is 1 at any other
difference.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from draftwise import Decoder, Sampling, registry
from draftwise.data import spec_bench
from draftwise.drafters.lookup.datastore import build, tokenizer_fingerprint
from draftwise.models.load import load_model, load_tokenizer
from draftwise.policies.classifiers.stopping import Disco, SpecDecPlus, save
from studies.common.command import command, numbers, start

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


@dataclass(frozen=True)
class Difference:
    """The first position where two greedy texts differ."""

    way: str
    batch: int
    prompt: int
    position: int
    margin: float
    error: float
    tie: bool


def main() -> int:
    options = parse()
    torch.manual_seed(0)
    tokenizer = load_tokenizer("zoo:target")
    plain = load_model("zoo:target", dtype=options.dtype)
    prompts = fitting(tokenizer, 2048 - options.new_tokens)[options.offset :: options.every][: options.limit]
    own = references(plain, prompts, options.new_tokens, options.reference)
    with tempfile.TemporaryDirectory() as folder:
        store = datastore(Path(folder) / "store", tokenizer, own[::2])
        differences: list[Difference] = []
        rows = []
        for way, (policy, drafters) in ways(options, Path(folder)).items():
            for batch in options.batches:
                decoder = Decoder.from_pretrained(
                    "zoo:target",
                    drafters=[f"retrieval:{store}" if d == "retrieval" else d for d in drafters],
                    policy=policy.replace("drafter=retrieval", f"drafter=retrieval:{store}"),
                    dtype=options.dtype,
                )
                texts, accepted = written(decoder, prompts, options.new_tokens, batch)
                mine = compare(way, batch, prompts, own, texts, options.dtype)
                differences += mine
                ties = sum(d.tie for d in mine)
                rows.append(
                    {
                        "way": way,
                        "batch": batch,
                        "prompts": len(prompts),
                        "identical": len(prompts) - len(mine),
                    }
                )
                rows[-1] |= {
                    "ties": ties,
                    "differences": len(mine) - ties,
                    "mean_accepted": round(accepted, 3),
                }
                print(json.dumps(rows[-1]), flush=True)
    for difference in differences:
        print(json.dumps(asdict(difference)))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"rows": rows, "differences": [asdict(d) for d in differences]}, indent=1)
        )
    wrong = [d for d in differences if not d.tie]
    print(
        f"{len(prompts)} prompts, {len(rows)} ways: {len(differences) - len(wrong)} ties, "
        f"{len(wrong)} differences"
    )
    return 1 if wrong and options.dtype == "float32" else 0


def parse() -> Namespace:
    parser = command(__doc__, PAGE)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--every", type=int, default=1, help="take every N-th prompt")
    parser.add_argument("--offset", type=int, default=0, help="begin with this one")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", default="")
    parser.add_argument("--batches", type=numbers, default="8,1", help="batch sizes, with commas between")
    parser.add_argument("--ways", default="", help="only these of the ways above, with semicolons between")
    parser.add_argument("--policies", default="", help="named policies, with commas between, or all")
    parser.add_argument("--reference", default="", help="keep Transformers' texts in this file, or take them")
    return parser.parse_args()


def ways(options: Namespace, folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the ways above, or the policies asked for."""
    if not options.policies:
        return {name: WAYS[name] for name in (options.ways.split(";") if options.ways else WAYS)}
    names = registry.names("policies") if options.policies == "all" else options.policies.split(",")
    rng = np.random.default_rng(0)

    def n(*size: int) -> NDArray[np.float32]:
        return rng.normal(size=size).astype(np.float32)

    save(Disco(n(16, 12), n(16), n(1, 16), n(1)), folder / "disco.safetensors")
    block = (n(192, 192) / np.float32(14), n(192))
    save(SpecDecPlus((block,), n(2, 192) / np.float32(14), n(2)), folder / "specdecpp.safetensors")
    learned = {name: f"{name}?model={folder / name}.safetensors" for name in ("disco", "specdecpp")}
    return {name: (learned.get(name, name), CHOICE) for name in names}


def references(model: Any, prompts: Sequence[list[int]], n: int, file: str) -> list[list[int]]:
    """Transformers' own texts, kept in `file` if there is one."""
    texts: dict[str, list[int]] = {}
    if file and Path(file).exists():
        texts = json.loads(Path(file).read_text())
    for prompt in track(prompts, "Transformers", disable=not sys.stderr.isatty()):
        key = f"{n} {prompt}"
        if key not in texts:
            texts[key] = reference(model, prompt, n)
    if file:
        Path(file).write_text(json.dumps(texts))
    return [texts[f"{n} {prompt}"] for prompt in prompts]


def fitting(tokenizer: Any, longest: int) -> list[list[int]]:
    """First turns as token ids; those that do not fit are refused, never cut."""
    messages = [[{"role": "user", "content": q.turns[0]}] for q in spec_bench()]
    encoded = [
        list(tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=True)["input_ids"])
        for m in messages
    ]
    fit = [ids for ids in encoded if len(ids) <= longest]
    print(f"{len(fit)} of {len(encoded)} prompts fit", flush=True)
    return fit


def datastore(folder: Path, tokenizer: Any, texts: Sequence[Sequence[int]]) -> Path:
    """A store of what the target wrote for every other prompt: it finds something and is often wrong."""
    corpus = folder.parent / "corpus.jsonl"
    corpus.write_text(
        "\n".join(json.dumps({"text": tokenizer.decode(t, skip_special_tokens=True)}) for t in texts)
    )
    build(
        [corpus],
        folder,
        encode=lambda text: list(tokenizer(text)["input_ids"]),
        vocab_size=len(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer.get_vocab()),
    )
    return folder


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], n: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    ids_after: list[int] = out[0, len(prompt) :].tolist()
    return ids_after


def written(
    decoder: Decoder, prompts: Sequence[Sequence[int]], n: int, batch: int
) -> tuple[list[list[int]], float]:
    texts: dict[int, list[int]] = {}
    rounds = accepted = 0
    for round in decoder.loop.run(prompts, Sampling(max_new_tokens=n, eos=decoder.eos), batch=batch):
        texts.setdefault(round.request, []).extend(round.tokens)
        rounds, accepted = rounds + 1, accepted + round.accepted
    if any(decoder.loop.faults.values()):
        raise RuntimeError(f"a drafter failed: {decoder.loop.faults}")
    return [texts[i] for i in sorted(texts)], accepted / rounds


def compare(way: str, batch: int, prompts: Any, own: Any, texts: Any, dtype: str) -> list[Difference]:
    differences = []
    for i, (prompt, a, b) in enumerate(zip(prompts, own, texts, strict=True)):
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            margin, error = judge([*prompt, *a[:at]], dtype)
            differences.append(Difference(way, batch, i, at, margin, error, margin < min(4 * error, 1e-4)))
    return differences


@torch.inference_mode()
def judge(prefix: Sequence[int], dtype: str) -> tuple[float, float]:
    """Margin of the two most likely tokens in float64, and the largest error of the row in `dtype`."""
    exact = row("float64", prefix)
    top = exact.topk(2).values
    return float(top[0] - top[1]), float((row(dtype, prefix).double() - exact).abs().max())


def row(dtype: str, prefix: Sequence[int], models: dict[str, Any] = {}) -> torch.Tensor:  # noqa: B006 - a cache
    if dtype not in models:
        kind = dtype if dtype != "float64" else "float32"
        models[dtype] = load_model("zoo:target", dtype=kind).to(getattr(torch, dtype))
    logits: torch.Tensor = models[dtype](torch.tensor([prefix])).logits[0, -1]
    return logits


if __name__ == "__main__":
    start(main)
