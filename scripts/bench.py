"""Speed against Transformers' own decoding, on the same models and prompts, interleaved prompt by prompt.

    python scripts/bench.py [--per-category 5] [--new-tokens 128] [--methods A,B] [--json FILE]

Every method decodes every prompt in one process, in an order shuffled for each prompt; ratios are of total
times, with a bootstrapped 95 % interval over prompts. Every text is held against plain Transformers'.
`draftwise ...` are this project's; `hf ...` are Transformers'. `hf packed plain` gives Transformers the
weight layout that Draftwise uses on a CPU, so that one can see how much of a gain is the layout's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftwise import Decoder, Sampling
from draftwise.data import spec_bench
from draftwise.models import load_model, load_tokenizer
from draftwise.packed import pack

Method = Callable[[list[int], int], list[int]]
ALL = ["zoo:general", "ngram", "suffix"]
OURS = {
    "draftwise none": ("none", []),
    "draftwise ngram static-8": ("static-8", ["ngram"]),
    "draftwise ngram static-16": ("static-16", ["ngram"]),
    "draftwise suffix static-8": ("static-8", ["suffix"]),
    "draftwise general static-2": ("static-2", ["zoo:general"]),
    "draftwise ucb1": ("ucb1", ALL),
    "draftwise ucb1 rate": ("ucb1?arms=drafters*lengths&lengths=2,8&reward=rate&strength=0.1", ALL),
    "draftwise random": ("random", ALL),
}


def main() -> int:
    options = parse()
    tokenizer = load_tokenizer("zoo:target")
    prompts = chosen(tokenizer, options.per_category, options.new_tokens)
    methods = {
        name: m
        for name, m in built(tokenizer).items()
        if not options.methods or name in options.methods.split(",")
    }
    shuffle = random.Random(0)
    seconds: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, list[list[int]]] = defaultdict(list)
    for _ in range(2):  # warm up every path, on a short and a longer prompt
        for method in methods.values():
            method(prompts[0][1], 24), method(prompts[-1][1][:300], 24)
    load = [os.getloadavg()[0]]
    for _, ids in track(prompts, "prompts", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        for name in shuffle.sample(list(methods), len(methods)):
            start = perf_counter()
            text = methods[name](ids, options.new_tokens)
            seconds[name].append(perf_counter() - start)
            texts[name].append(text)
        load.append(os.getloadavg()[0])
    rows = [row(name, seconds, texts, [c for c, _ in prompts]) for name in methods]
    show(rows, len(prompts), options.new_tokens, load)
    if options.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "load": load,
            "torch": torch.__version__,
        }
        Path(options.json).write_text(
            json.dumps({"machine": machine, "settings": vars(options), "results": rows}, indent=1)
        )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-category", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--methods", default="")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def chosen(tokenizer: Any, per_category: int, new_tokens: int) -> list[tuple[str, list[int]]]:
    """The first prompts of every Spec-Bench category that fit the window."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for question in spec_bench():
        message = [{"role": "user", "content": question.text}]
        ids = list(
            tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
        if len(ids) + new_tokens <= 2048 and len(found[question.category]) < per_category:
            found[question.category].append(ids)
    return [(category, ids) for category, prompts in found.items() for ids in prompts]


def built(tokenizer: Any) -> dict[str, Method]:
    """Every way of decoding; Transformers' have a target and an assistant of their own, as it loads them."""
    plain, assistant, packed = load_model("zoo:target"), load_model("zoo:general"), load_model("zoo:target")
    pack(packed)
    constant = load_model("zoo:general")
    constant.generation_config.num_assistant_tokens = 5
    constant.generation_config.num_assistant_tokens_schedule = "constant"
    constant.generation_config.assistant_confidence_threshold = 0.0
    methods = {
        "hf plain": transformers(plain),
        "hf assisted": transformers(plain, assistant_model=assistant),
        "hf assisted constant-5": transformers(plain, assistant_model=constant),
        "hf prompt lookup": transformers(plain, prompt_lookup_num_tokens=10),
        "hf packed plain": transformers(packed),
    }
    return methods | {name: draftwise(policy, drafters) for name, (policy, drafters) in OURS.items()}


def transformers(model: Any, **options: Any) -> Method:
    def decode(ids: list[int], n: int) -> list[int]:
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, do_sample=False, **options
        )
        text: list[int] = out[0, len(ids) :].tolist()
        return text

    return decode


def draftwise(policy: str, drafters: list[str]) -> Method:
    decoder = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=policy)

    def decode(ids: list[int], n: int) -> list[int]:
        rounds = decoder.loop.run([ids], Sampling(max_new_tokens=n, eos=decoder.eos))
        return [token for round in rounds for token in round.tokens]

    return decode


def row(name: str, seconds: Any, texts: Any, categories: Sequence[str]) -> dict[str, Any]:
    mine, plain = np.array(seconds[name]), np.array(seconds["hf plain"])
    tokens = np.array([len(t) for t in texts[name]])
    picks = np.random.default_rng(0).integers(0, len(mine), (2000, len(mine)))
    ratios = plain[picks].sum(1) / mine[picks].sum(1)
    by = {c: [i for i, x in enumerate(categories) if x == c] for c in dict.fromkeys(categories)}
    return {
        "method": name,
        "tokens": int(tokens.sum()),
        "seconds": float(mine.sum()),
        "tokens_per_s": float(tokens.sum() / mine.sum()),
        "speedup": float(plain.sum() / mine.sum()),
        "interval": [float(x) for x in np.quantile(ratios, [0.025, 0.975])],
        "identical": sum(a == b for a, b in zip(texts[name], texts["hf plain"], strict=True)),
        "by_category": {c: float(plain[at].sum() / mine[at].sum()) for c, at in by.items()},
    }


def show(rows: list[dict[str, Any]], prompts: int, new_tokens: int, load: list[float]) -> None:
    table = Table(
        "method",
        "tokens/s",
        "against hf plain",
        "95 %",
        "identical",
        title=f"{prompts} prompts, {new_tokens} new tokens",
    )
    for r in sorted(rows, key=lambda r: -r["speedup"]):
        low, high = r["interval"]
        table.add_row(
            r["method"],
            f"{r['tokens_per_s']:.1f}",
            f"{r['speedup']:.2f}x",
            f"{low:.2f} to {high:.2f}",
            f"{r['identical']}/{prompts}",
        )
    Console(width=100).print(table)
    print(f"load {load[0]:.2f} before, at most {max(load):.2f} during; {torch.get_num_threads()} threads")
    best = max(
        (r for r in rows if r["method"].startswith("hf ") and "packed" not in r["method"]),
        key=lambda r: r["speedup"],
    )
    ours = max((r for r in rows if r["method"].startswith("draftwise")), key=lambda r: r["speedup"])
    print(
        f"{ours['method']} is {ours['speedup'] / best['speedup']:.2f} times as fast as "
        f"{best['method']}, the best of Transformers"
    )


if __name__ == "__main__":
    sys.exit(main())
