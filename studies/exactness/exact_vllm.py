"""Compare texts decoded with Draftwise inside vLLM with vLLM's own, token by token.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one): for each drafter alone, and for a random
drafter in every step, the prompts of Spec-Bench at every concurrency, greedy, in float32. With `--own` the
drafters are vLLM's: its n-gram lookup, and in an engine each a draft model, an EAGLE head, and an EAGLE-3
head of random weights, which is always wrong.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import SUPPRESS, Namespace
from pathlib import Path
from time import perf_counter
from typing import Any

from draftwise.models.load import resolve
from studies.common import heads, vllm
from studies.common.command import command, listed, numbers, start
from studies.common.texts import spread

PAGE = "docs/how-to/vllm.md"

DRAFTERS = "ngram,suffix,zoo:general,zoo:code"


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default=DRAFTERS, help="with commas between them")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default="1,8", help="with commas between them")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="vLLM's own drafters")
    parser.add_argument("--only", default="", help="ways whose drafters contain this")
    parser.add_argument("--one", help=SUPPRESS)
    options = parser.parse_args()
    cores = "|".join(map(str, range(options.tensor_parallel))) if options.tensor_parallel > 1 else None
    os.environ.update(vllm.settings(level="WARNING", cores=cores))
    if options.tensor_parallel == 1:
        vllm.in_this_process()
    if options.one is not None:
        way = json.loads(options.one)
        Path(way["out"]).write_text(json.dumps(write(options, way)))
        return 0
    return compare(options)


def compare(options: Namespace) -> int:
    """Every way of drafting against none, each in a process of its own; 1 if any text differs."""
    with tempfile.TemporaryDirectory() as folder:
        teams = own_teams(Path(folder)) if options.own else [options.drafters]
        ways: list[dict[str, Any]] = [{"drafters": names, "policy": "random"} for names in teams]
        if options.own:  # a target of the same weights, with a layer that vLLM drafts with
            mimo = str(heads.write_mimo(Path(folder) / "mimo"))
            ways.append({"drafters": ["vllm:mtp", "ngram"], "policy": "random", "target": mimo})
        else:
            ways[:0] = [{"drafters": [name], "policy": "static-5"} for name in options.drafters]
        ways = [way for way in ways if options.only in ",".join(way["drafters"])]
        plain, worst = vllm.apart({})["texts"], 0
        for way in ways:
            start = perf_counter()
            result = vllm.apart(way)
            took, drafted = perf_counter() - start, result["totals"].get("drafters", {})
            name = f"{','.join(way['drafters'])} {way['policy']}".replace(folder, "")
            for level, texts in result["texts"].items():
                same = sum(a == b for a, b in zip(plain[level], texts, strict=True))
                worst |= same < len(texts)
                print(f"concurrency {level}  {name:45} {same}/{len(texts)} identical", flush=True)
            counts = {
                name.replace(folder, ""): (count["num_draft_tokens"], count["num_accepted_tokens"])
                for name, count in drafted.items()
            }
            steps = f"of {result['steps']} steps: {counts}"
            print(f"  {took:.0f} s; tokens drafted and accepted, {steps}", flush=True)
            if result["passes"]:
                print(f"  {result['passes']} calls of vLLM's own model", flush=True)
    return worst


def own_teams(folder: Path) -> list[list[str]]:
    """Return drafters of which one is a model that vLLM loads, with those that draft beside it."""
    good, bad = heads.write_eagle(folder / "eagle"), heads.write_random_eagle3(folder / "eagle3")
    models = ["vllm:draft_model:zoo:general", f"vllm:eagle:{good}", f"vllm:eagle3:{bad}"]
    return [*([model, "ngram"] for model in models), ["vllm:ngram?min=2", "suffix"]]


def write(options: Namespace, way: dict[str, Any]) -> dict[str, Any]:
    """All texts by one engine, for every number of requests in flight."""
    from draftwise.hosts.vllm import totals, vllm_arguments

    more: dict[str, Any] = {
        "tensor_parallel_size": options.tensor_parallel,
        "enable_prefix_caching": True,
    }
    if "drafters" in way:
        more |= vllm_arguments(drafters=way["drafters"], policy=way["policy"])
    if "target" in way:
        more["tokenizer"] = resolve(options.target)  # the same prompts
    speculative = more.pop("speculative_config", None)
    llm = vllm.engine(way.get("target", options.target), speculative, batch=max(options.concurrency), **more)
    ids, most = vllm.prompts(llm, spread(options.prompts), options.max_new_tokens), options.max_new_tokens
    texts = {level: vllm.write(llm, ids, level, most) for level in options.concurrency}
    ours = vllm.ours(llm) if options.tensor_parallel == 1 and speculative else None
    counts = ours.follower.totals() if ours else totals(llm) if speculative else {}
    return {
        "texts": texts,
        "totals": counts,
        "steps": counts.get("num_steps", 0),
        "passes": ours.model.passes if ours and ours.model else 0,
    }


if __name__ == "__main__":
    start(main)
