"""The router against policies that learn: prompts as in training, reworded, out of domain, and long.

    draftwise train router --out R --data ... --routes ...
    python -m studies.speed.router --router R --data DATA --limit 10 --out OUT

`--data` is a folder with one `DOMAIN/test.jsonl` each. Four workloads are written to OUT, recorded once each
(`draftwise trace`) and replayed under every policy. Accepted tokens per round are exact; tokens per second
come from the costs measured with the trace, so run nothing else while it records.

    as asked       test prompts of every domain
    other words    the same requests in other words (draftwise/data/rewordings.json)
    elsewhere      Spec-Bench's conversations: no domain that the router knows
    long           the same prompts after a page of another domain
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from draftwise.cli import main as draftwise
from draftwise.data import load_prompts, spec_bench
from draftwise.data.rewording import reword
from draftwise.policies.classifiers.routing import load
from studies.common.command import command, start

PAGE = "docs/explanation/toys.md"

NOTES = 1200  # characters
CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def main() -> None:
    """Record, replay and print one line for each workload and policy."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--router", type=Path, required=True, help="what draftwise train router made")
    parser.add_argument("--data", type=Path, required=True, help="a folder of DOMAIN/test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--policies", default="metasd-ucb hedgespec auto random")
    parser.add_argument("--limit", type=int, default=10, help="prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    args = parser.parse_args()
    drafters = load(args.router).drafters
    names = [*args.policies.split(), f"router:{args.router}"]
    names += [f"static-5?drafter={drafter}" for drafter in drafters]
    print("| workload | policy | accepted a round | tokens/s | of the optimum |\n|---|---|---|---|---|")
    for name, prompts in workloads(args.data, args.limit).items():
        folder = args.out / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps(row) + "\n" for row in prompts]
        (folder / "prompts.jsonl").write_text("".join(rows), encoding="utf-8")
        for row in measured(args, folder, drafters, names):
            optimum = row.get("fraction_of_optimum")
            share = "" if optimum is None else f"{100 * optimum:.0f} %"
            policy = row["method"].replace(str(args.router), args.router.name)
            speed = f"{row['tokens_per_s']:.0f}"
            print(f"| {name} | {policy} | {row['mean_accepted']:.2f} | {speed} | {share} |", flush=True)


def measured(
    args: Namespace, folder: Path, drafters: tuple[str, ...], names: list[str]
) -> list[dict[str, Any]]:
    """A trace of one workload, and every policy on it."""
    words = ["trace", "--workload", str(folder / "prompts.jsonl"), "--target", args.target]
    words += ["--drafters", ",".join(drafters), "--length", "16", "--overlap"]
    words += ["--max-new-tokens", str(args.max_new_tokens), "--out", str(folder / "trace")]
    run(words)
    words = ["replay", str(folder / "trace"), "--policies", " ".join(names)]
    found = run([*words, "--out", str(folder / "replay"), "--json"])
    return [row for row in json.loads(found)["results"] if row["category"] == "all"]


def run(words: list[str]) -> str:
    """The output of a command; its own error message is shown."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = draftwise(words)
    if status:
        sys.exit(status)
    return said.getvalue()


def workloads(data: Path, limit: int) -> dict[str, list[dict[str, Any]]]:
    """Prompts by workload, as lines of JSONL."""
    domains: dict[str, list[str]] = {}
    for file in sorted(data.glob("*/test.jsonl")):
        texts = [p.text for p in load_prompts(file)]
        Random(0).shuffle(texts)
        domains[file.parent.name] = texts[:limit]
    chats = [p for p in spec_bench() if p.category in CHAT]
    Random(0).shuffle(chats)
    return {
        "as asked": [line(name, text) for name, texts in domains.items() for text in texts],
        "other words": list(in_other_words(domains)),
        "elsewhere": [line(p.category, p.text) for p in chats[: limit * max(len(domains), 1)]],
        "long": list(after_a_page(domains)),
    }


def in_other_words(domains: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Each prompt in one other wording, in turns."""
    for name, texts in domains.items():
        for i, text in enumerate(texts):
            if others := reword(text):
                yield line(name, others[i % len(others)])


def after_a_page(domains: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Each prompt after some irrelevant text of the next domain."""
    names = list(domains)
    for i, (name, texts) in enumerate(domains.items()):
        page = "\n\n".join(domains[names[(i + 1) % len(names)]])[:NOTES]
        for text in texts:
            yield line(name, f"These are my notes from yesterday.\n\n{page}\n\nNow something else.\n\n{text}")


def line(category: str, text: str) -> dict[str, Any]:
    """One prompt of a workload."""
    return {"prompt": text, "category": category}


if __name__ == "__main__":
    start(main)
