"""Throughput inside vLLM: plain decoding, vLLM's own drafting methods, and Draftwise.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one) on a quiet machine. Each method runs
in an engine and process of its own: it warms up, then decodes the same texts with 1, 4 and 16 requests in
flight. Plain vLLM runs first and last: their difference is the noise of the machine.
"""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from draftwise.errors import UserError
from studies.common import vllm
from studies.common.command import command, listed, numbers, start
from studies.common.tables import heading, row
from studies.common.texts import spread

PAGE = "docs/how-to/vllm.md"


def methods(model: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Names, and what vLLM is told of each; `drafters` marks ours."""
    yield "plain", None
    yield "plain, no asynchronous scheduling", {"async_scheduling": False}
    for length in (3, 5):
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
        yield f"vllm ngram {length}", {"method": "ngram", "num_speculative_tokens": length} | lookup
    yield "vllm suffix 16", {"method": "suffix", "num_speculative_tokens": 16}
    for length in (1, 3):
        draft = {"method": "draft_model", "num_speculative_tokens": length, "model": model}
        yield f"vllm draft model {length}", draft
    for policy in ("metasd-ucb", "hedgespec", "auto"):
        yield f"draftwise {policy}", {"drafters": listed(vllm.DRAFTERS), "policy": policy}
    yield "draftwise auto, vLLM's model", {"drafters": [f"vllm:draft_model:{model}", "ngram", "suffix"]}
    yield "plain, again", None


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--prompts", type=int, default=26)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default="1,4,16", help="with commas between them")
    parser.add_argument("--cores", default="0-1", help="cores that vLLM's threads are bound to")
    parser.add_argument("--one", help=SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        settings = json.loads(options.one)
        Path(settings["out"]).write_text(json.dumps(measure(options, settings["speculative"])))
        return
    print(table(engines(options)))


def engines(options: Namespace) -> list[dict[str, Any]]:
    """One engine after the other; those that do not start say why."""
    from draftwise.models.load import resolve

    chosen = list(methods(resolve("zoo:general")))
    results: list[dict[str, Any]] = []
    start = perf_counter()
    for k, (name, speculative) in enumerate(chosen):
        left = (perf_counter() - start) / k * (len(chosen) - k) if k else 0.0
        about = f", about {left / 60:.1f} min left" if k else ""
        print(f"{name} ({k + 1} of {len(chosen)}{about})", file=sys.stderr, flush=True)
        try:
            told = vllm.apart({"speculative": speculative}, cores=options.cores)
        except UserError as error:
            told = {"absent": str(error)}
        plain = next((r["texts"] for r in results if r["name"] == "plain"), told.get("texts"))
        same = sum(a == b for a, b in zip(plain or (), told.get("texts", ()), strict=False))
        results.append({"name": name, "identical": same} | told)
    for result in results:
        result.pop("texts", None)
    return results


def measure(options: Namespace, speculative: dict[str, Any] | None) -> dict[str, Any]:
    """Seconds and tokens of one engine at every concurrency."""
    from draftwise.hosts.vllm import totals, vllm_arguments

    told, levels = speculative or {}, options.concurrency
    more: dict[str, Any] = {"disable_log_stats": False}
    if ours := "drafters" in told:
        more |= vllm_arguments(**told)
    else:
        more |= {"speculative_config": told} if "method" in told else told
    config = more.pop("speculative_config", None)
    llm = vllm.engine(options.target, config, batch=max(levels), **more)
    ids = vllm.prompts(llm, spread(options.prompts), options.max_new_tokens)
    warm = vllm.prompts(llm, spread(8, start=7), options.max_new_tokens)
    for level in levels:
        vllm.write(llm, warm, level, options.max_new_tokens)
    result: dict[str, Any] = {"levels": {}}
    for level in levels:
        before, start = counts(llm), perf_counter()
        texts = vllm.write(llm, ids, level, options.max_new_tokens)
        seconds = perf_counter() - start
        drafted = {k: v - before[k] for k, v in counts(llm).items()}
        result["levels"][str(level)] = {"seconds": seconds, "tokens": sum(map(len, texts))} | drafted
        result.setdefault("texts", texts)
    if ours:
        result["totals"] = totals(llm)
    return result


def counts(llm: Any) -> dict[str, int]:
    """vLLM's own counts of drafted and accepted tokens so far."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    totals = dict.fromkeys(names.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in names:
            totals[names[metric.name]] += int(metric.value)
    return totals


def table(results: Sequence[dict[str, Any]]) -> str:
    """Tokens per second and speed-up over the mean of the two plain runs, as Markdown."""
    plain = [r for r in results if r["name"].startswith("plain") and "levels" in r]
    levels = list(plain[0]["levels"])
    base = {level: sum(rate(r, level) for r in plain) / len(plain) for level in levels}
    lines = [heading("method", *(f"{level} in flight" for level in levels), "identical")]
    for r in results:
        if "levels" not in r:
            lines.append(row(r["name"], r["absent"][:80]))
            continue
        cells = [f"{rate(r, level):.0f} tok/s ({rate(r, level) / base[level]:.2f}x)" for level in levels]
        lines.append(row(r["name"], *cells, r["identical"]))
    return "\n".join(lines)


def rate(result: dict[str, Any], level: str) -> float:
    """Tokens per second."""
    figures = result["levels"][level]
    return float(figures["tokens"] / figures["seconds"])


if __name__ == "__main__":
    start(main)
