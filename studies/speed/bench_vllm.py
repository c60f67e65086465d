"""Throughput inside vLLM: plain decoding, vLLM's own drafting methods, and Draftwise.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one) on a quiet machine. Each method runs
in an engine and process of its own: it warms up, then decodes the same texts with 1, 4 and 16 requests in
flight. Plain vLLM runs first and last: their difference is the noise of the machine. With `--runs` all
methods take turns so often, each run beginning with another one, and ratios are to plain vLLM of that run.
"""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from draftwise.errors import UserError
from draftwise.hosts.vllm.options import own_model
from studies.common import vllm
from studies.common.command import command, listed, numbers, start
from studies.common.tables import heading, row
from studies.common.texts import spread

PAGE = "docs/how-to/vllm.md"
PLAIN = ("plain", "plain, again")


def methods(own: str, beside: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Names, and what vLLM is told of each; `drafters` marks ours.

    `own` is vLLM's proposer with a model, as `vllm:eagle3:PATH`; `beside` are the drafters beside the engine.

    Raises:
        UserError: `own` is none.
    """
    from draftwise.models.load import resolve

    if (model := own_model([own])) is None:
        raise UserError(f"--own {own}: give a model that vLLM drafts with, such as vllm:eagle3:PATH")
    weights = {"model": resolve(model.path)} if model.path else {}
    noun = model.method.replace("_", " ")
    yield "plain", None
    yield "plain, no asynchronous scheduling", {"async_scheduling": False}
    for length in (3, 5):
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
        yield f"vllm ngram {length}", {"method": "ngram", "num_speculative_tokens": length} | lookup
    yield "vllm suffix 16", {"method": "suffix", "num_speculative_tokens": 16}
    for length in (1, 3):
        yield f"vllm {noun} {length}", {"method": model.method, "num_speculative_tokens": length} | weights
    for policy in ("metasd-ucb", "hedgespec", "auto"):
        yield f"draftwise {policy}", {"drafters": listed(beside), "policy": policy}
    yield f"draftwise auto, vLLM's {noun}", {"drafters": [own, "ngram", "suffix"]}
    yield "plain, again", None


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--own", default="vllm:draft_model:zoo:general", help="vLLM's drafter with a model")
    parser.add_argument("--beside", default=vllm.DRAFTERS, help="our drafters beside the engine")
    parser.add_argument("--prompts", type=int, default=26)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=numbers, default="1,4,16", help="with commas between them")
    parser.add_argument("--cores", default="0-1", help="cores that vLLM's threads are bound to")
    parser.add_argument("--runs", type=int, default=1, help="times that the methods take turns")
    parser.add_argument("--only", type=listed, default="", help="methods whose names have one of these parts")
    parser.add_argument("--one", help=SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        settings = json.loads(options.one)
        Path(settings["out"]).write_text(json.dumps(measure(options, settings["speculative"])))
        return
    print(table(engines(options)))


def engines(options: Namespace) -> list[dict[str, Any]]:
    """One engine after the other; those that do not start say why.

    Raises:
        UserError: an option that names nothing, before any engine starts.
    """
    from draftwise.models.load import resolve

    resolve(options.target)
    every = list(methods(options.own, options.beside))
    chosen = [one for one in every if not options.only or any(part in one[0] for part in options.only)]
    if not chosen:
        listing = "; ".join(name for name, _ in every)
        raise UserError(f"--only {','.join(options.only)}: no method has such a name; choose from {listing}")
    turns = [k % len(chosen) for k in range(options.runs)]
    work = [(run, *one) for run, at in enumerate(turns) for one in (*chosen[at:], *chosen[:at])]
    results: list[dict[str, Any]] = []
    start = perf_counter()
    for k, (run, name, speculative) in enumerate(work):
        left = (perf_counter() - start) / k * (len(work) - k) if k else 0.0
        about = f", about {left / 60:.1f} min left" if k else ""
        print(f"{name} ({k + 1} of {len(work)}{about})", file=sys.stderr, flush=True)
        try:
            told = vllm.apart({"speculative": speculative}, cores=options.cores)
        except UserError as error:
            told = {"absent": str(error)}
        results.append({"name": name, "run": run} | told)
    plain: Sequence[Any] = next((r["texts"] for r in results if r["name"] in PLAIN and "texts" in r), ())
    for result in results:
        pairs = zip(plain, result.pop("texts", ()), strict=False)
        result["identical"] = sum(a == b for a, b in pairs)
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
    """Tokens per second and speed-up over plain vLLM of the same run, as Markdown: means, and the range of
    several runs."""
    if not (ran := [r for r in results if "levels" in r]):
        raise UserError(f"no engine of vLLM ran: {results[0]['absent']}")
    levels = list(ran[0]["levels"])
    lines = [heading("method", *(f"{level} in flight" for level in levels), "identical")]
    for name in dict.fromkeys(r["name"] for r in results):
        own = [r for r in ran if r["name"] == name]
        if not own:
            lines.append(row(name, next(r["absent"] for r in results if r["name"] == name)[:80]))
            continue
        cells = []
        for level in levels:
            ratios = [rate(r, level) / base(ran, r["run"], level) for r in own]
            between = f", {min(ratios):.2f}-{max(ratios):.2f}" if len(ratios) > 1 else ""
            cells.append(f"{fmean(rate(r, level) for r in own):.0f} tok/s ({fmean(ratios):.2f}x{between})")
        lines.append(row(name, *cells, min(r["identical"] for r in own)))
    return "\n".join(lines)


def base(ran: Sequence[dict[str, Any]], run: int, level: str) -> float:
    """Tokens per second of plain vLLM in one run."""
    return fmean(rate(r, level) for r in ran if r["run"] == run and r["name"] in PLAIN)


def rate(result: dict[str, Any], level: str) -> float:
    """Tokens per second."""
    figures = result["levels"][level]
    return float(figures["tokens"] / figures["seconds"])


if __name__ == "__main__":
    start(main)
