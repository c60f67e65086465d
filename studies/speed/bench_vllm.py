"""Throughput inside vLLM: plain, its own ways of drafting, and Draftwise, on prompts of every category.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one) on a quiet machine. Each method is an
engine in a process of its own: it warms up, then writes the same texts with 1, 4 and 16 requests in flight.
Plain vLLM runs first and last: how far the two are apart is the noise of the machine. Of each of vLLM's own
methods the best length is named in the table; all are in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

DRAFTERS = ("ngram", "suffix", "zoo:general")


def methods(model: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Names, and what vLLM is told of each; `drafters` marks ours."""
    yield "plain", None
    for length in (3, 5):
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
        yield f"vllm ngram {length}", {"method": "ngram", "num_speculative_tokens": length} | lookup
    yield "vllm suffix 16", {"method": "suffix", "num_speculative_tokens": 16}
    for length in (1, 3):
        draft = {"method": "draft_model", "num_speculative_tokens": length, "model": model}
        yield f"vllm draft model {length}", draft
    for policy in ("metasd-ucb", "hedgespec", "auto"):
        yield f"draftwise {policy}", {"drafters": list(DRAFTERS), "policy": policy}
    yield "plain, again", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--draft-model", default="zoo:general", help="of vLLM's own method")
    parser.add_argument("--prompts", type=int, default=26)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", default="1,4,16", help="with commas between them")
    parser.add_argument("--only", default="", help="methods whose names contain this")
    parser.add_argument("--cores", default="0-1", help="cores that vLLM's threads are bound to")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile: a slower start")
    parser.add_argument("--out", type=Path, default=Path("bench-vllm.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        asked = json.loads(options.one)
        Path(asked["out"]).write_text(json.dumps(measure(options, asked["speculative"])))
        return
    results = run(options)
    swap = options.out.with_suffix(".writing")
    swap.write_text(json.dumps(results, indent=1))
    os.replace(swap, options.out)
    print(table(results))


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One engine after the other; those that do not start say why."""
    from draftwise.models.load import resolve

    chosen = [m for m in methods(resolve(options.draft_model)) if m[1] is None or options.only in m[0]]
    results: list[dict[str, Any]] = []
    start = perf_counter()
    for k, (name, speculative) in enumerate(chosen):
        left = (perf_counter() - start) / k * (len(chosen) - k) if k else 0.0
        about = f", about {left / 60:.1f} min left" if k else ""
        print(f"{name} ({k + 1} of {len(chosen)}{about})", file=sys.stderr, flush=True)
        told = child(options, speculative)
        plain = next((r["texts"] for r in results if r["name"] == "plain"), told.get("texts"))
        same = sum(a == b for a, b in zip(plain or (), told.get("texts", ()), strict=False))
        results.append({"name": name, "identical": same} | told)
    for result in results:
        result.pop("texts", None)
    return results


def child(options: argparse.Namespace, speculative: dict[str, Any] | None) -> dict[str, Any]:
    """What one engine took, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        asked = json.dumps({"out": str(out), "speculative": speculative})
        log = Path(folder) / "log"
        environment = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
            "VLLM_CPU_OMP_THREADS_BIND": options.cores,
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        with log.open("w") as err:
            command = [sys.executable, *sys.argv, "--one", asked]
            ended = subprocess.run(command, stdout=err, stderr=err, env=environment, check=False)
        if ended.returncode or not out.exists():
            lines = [line for line in log.read_text().splitlines() if "Error" in line]
            return {"absent": lines[-1][-200:] if lines else f"ended with status {ended.returncode}"}
        told: dict[str, Any] = json.loads(out.read_text())
    return told


def measure(options: argparse.Namespace, speculative: dict[str, Any] | None) -> dict[str, Any]:
    """Seconds and tokens of one engine at every concurrency."""
    from vllm import LLM

    import draftwise
    from draftwise.data import spec_bench
    from draftwise.hosts.vllm import totals
    from draftwise.models.load import resolve

    ours = speculative is not None and "drafters" in speculative
    levels = [int(level) for level in options.concurrency.split(",")]
    llm = LLM(
        resolve(options.target),
        dtype="float32",
        enforce_eager=not options.compile,
        max_num_seqs=max(levels),
        enable_prefix_caching=False,
        gpu_memory_utilization=0.3,  # on a CPU: of all memory, to be free when it starts
        disable_log_stats=False,
        speculative_config=draftwise.vllm_config(**speculative) if ours and speculative else speculative,
    )
    every = spec_bench()
    room = llm.llm_engine.vllm_config.model_config.max_model_len - options.max_new_tokens - 16
    ids = [encode(llm, p.text)[-room:] for p in every[:: len(every) // options.prompts][: options.prompts]]
    warm = [encode(llm, p.text)[-room:] for p in every[7 :: len(every) // 8][:8]]
    for level in levels:
        write(llm, warm, level, options.max_new_tokens)
    told: dict[str, Any] = {"levels": {}}
    for level in levels:
        before, start = counts(llm), perf_counter()
        texts = write(llm, ids, level, options.max_new_tokens)
        seconds = perf_counter() - start
        drafted = {k: v - before[k] for k, v in counts(llm).items()}
        told["levels"][str(level)] = {"seconds": seconds, "tokens": sum(map(len, texts))} | drafted
        told.setdefault("texts", texts)
    if ours:
        told["totals"] = totals(llm)
    return told


def encode(llm: Any, text: str) -> list[int]:
    """Token ids in the chat template."""
    messages = [{"role": "user", "content": text}]
    ids = llm.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
    return list(ids["input_ids"] if hasattr(ids, "keys") else ids)


def write(llm: Any, prompts: Sequence[list[int]], level: int, most: int) -> list[list[int]]:
    """All texts, at most `level` in flight."""
    from vllm import SamplingParams

    greedy, engine = SamplingParams(temperature=0.0, max_tokens=most), llm.llm_engine
    waiting, texts, flying = iter(enumerate(prompts)), dict[str, list[int]](), 0
    while True:
        while flying < level and (one := next(waiting, None)) is not None:
            engine.add_request(str(one[0]), {"prompt_token_ids": one[1]}, greedy)
            flying += 1
        if not flying:
            return [texts[str(k)] for k in range(len(prompts))]
        for output in engine.step():
            if output.finished:
                texts[output.request_id] = list(output.outputs[0].token_ids)
                flying -= 1


def counts(llm: Any) -> dict[str, int]:
    """vLLM's own counts of drafted and accepted tokens so far."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    found = dict.fromkeys(names.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in names:
            found[names[metric.name]] += int(metric.value)
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Tokens per second and speed-up over the mean of the two plain runs, as Markdown."""
    plain = [r for r in results if r["name"].startswith("plain") and "levels" in r]
    levels = list(plain[0]["levels"])
    base = {level: sum(rate(r, level) for r in plain) / len(plain) for level in levels}
    lines = ["| method | " + " | ".join(f"{level} in flight" for level in levels) + " | identical |"]
    lines.append("|---" * (len(levels) + 2) + "|")
    for r in results:
        if "levels" not in r:
            lines.append(f"| {r['name']} | {r['absent'][:80]}" + " |" * (len(levels) + 1))
            continue
        cells = [f"{rate(r, level):.0f} tok/s ({rate(r, level) / base[level]:.2f}x)" for level in levels]
        lines.append(f"| {r['name']} | " + " | ".join(cells) + f" | {r['identical']} |")
    return "\n".join(lines)


def rate(result: dict[str, Any], level: str) -> float:
    """Tokens per second."""
    told = result["levels"][level]
    return float(told["tokens"] / told["seconds"])


if __name__ == "__main__":
    main()
