"""A folder of made-up results: every file that a run may leave, with numbers that are easy to check."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from draftwise.measure.results import summarize

CATEGORIES = ("coding", "translation", "qa")
PROMPTS = 4  # of each category
DRAFTERS = ("zoo:general", "zoo:code", "ngram")
RIGHT = {"zoo:general": (0.6, 0.6, 0.6), "zoo:code": (0.9, 0.3, 0.4), "ngram": (0.4, 0.2, 0.8)}
LENGTH = 5
METHODS = (
    "none",
    "static-5?drafter=zoo:general",
    "static-5?drafter=zoo:code",
    "static-5?drafter=ngram",
    "metasd-ucb",
    "tapout-seq-ucb1",
    "tapout-seq-ucb1?reward=simple",
)
RULES = ("svip(0.6)", "adaedl(0.2)", "logit-margin(0.2)")
TOKENS = 48


def write(folder: Path, workload: str = "mixed") -> Path:
    """All files of a run, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [(m, at, text(m, at)) for at in range(PROMPTS * len(CATEGORIES)) for m in METHODS]
    finished = [prompt_line(*one) for one in texts]
    records(folder / "rounds.jsonl", [line for _, _, rounds in texts for line in rounds])
    records(folder / "prompts.jsonl", finished)
    records(folder / "pieces.jsonl", [pieces()])
    path = [[t, "zoo:code", n] for t, n in ((0, 4), (5, 0), (6, 6), (13, 2), (16, 8), (25, 5))]
    save(folder / "oracle.json", {"lengths": {"0": path, "1": path[:4]}})
    save(folder / "results.json", results(finished, workload))
    return folder


def results(finished: Sequence[dict[str, Any]], workload: str) -> dict[str, Any]:
    rows = summarize(finished, methods=METHODS, greedy=True)
    rows = [row | {"fraction_of_optimum": min(0.95, row["speedup"] / 3)} for row in rows]
    peers = [
        peer("assisted", 0.87, "all"),
        peer("prompt-lookup", 1.21, "all"),
        *(peer("assisted", 0.8 + 0.1 * i, c) for i, c in enumerate(CATEGORIES)),
    ]
    return {
        "run": {"date": "2026-03-01 12:00+00:00", "command": "draftwise bench --workload mixed"},
        "machine": {"cpu": "a laptop", "cores": 8, "versions": {"draftwise": "0.1.0", "torch": "2.13.0"}},
        "settings": {"workload": workload, "target": "zoo:target", "drafters": list(DRAFTERS), "seed": 0},
        "clean": False,
        "busy": ["load 2.70 on 8 cores at the start"],
        "load": [{"start": 2.7}, {"load": 2.1, "others": 0.4, "over": 3.0}],
        "absent": [{"method": "vllm ngram", "reason": "vllm is not installed"}],
        "results": [*rows, *peers, *batches()],
    }


def batches() -> list[dict[str, Any]]:
    """Throughput at larger batches."""
    return [
        {"method": m, "category": "all", "batch": b, "tokens_per_s": 80 * b**0.6 + n, "speedup": 1 + n / 100}
        for b in (2, 4, 8)
        for n, m in ((0, "none"), (9, "static-5?drafter=ngram"), (13, "metasd-ucb"))
    ]


def text(method: str, at: int) -> list[dict[str, Any]]:
    """The rounds of one prompt."""
    rng, category, written = Random(f"{method} {at}"), at % len(CATEGORIES), 0
    found: list[dict[str, Any]] = []
    while written < TOKENS:
        drafter, arm, length = chosen(method, category, len(found), rng)
        drafted = length if "tapout" not in method else rng.randint(1, 12 if "simple" in method else 7)
        chance = RIGHT[drafter][category] if length else 0.0
        accepted = next((n for n in range(drafted) if rng.random() > chance), drafted)
        tokens = list(range(min(accepted + 1, TOKENS - written)))
        found.append(
            {
                "method": method,
                "category": CATEGORIES[category],
                "prompt": at,
                "round": len(found),
                "arm": arm,
                "drafter": drafter,
                "length": length,
                "drafted": drafted,
                "accepted": accepted,
                "tokens": tokens,
                "seconds": {"draft": 0.001 * drafted, "verify": 0.010, "accept": 0.0002},
                **extras(method, chance, drafted, rng),
            }
        )
        written += len(tokens)
    return found


def chosen(method: str, category: int, number: int, rng: Random) -> tuple[str, str, int]:
    """Drafter, arm and length of a round; `metasd-ucb` finds the best drafter with time."""
    if method == "none":
        return "none", "none", 0
    if method.startswith("static"):
        drafter = method.partition("=")[2]
        return drafter, f"{drafter}:{LENGTH}", LENGTH
    if method == "metasd-ucb":
        best = max(DRAFTERS, key=lambda d: RIGHT[d][category])
        drafter = best if rng.random() < 1 - 1 / (number + 1) else rng.choice(DRAFTERS)
        return drafter, f"{drafter}:{LENGTH}", LENGTH
    return "zoo:general", f"zoo:general:16~{rng.choice(RULES)}", 16


def extras(method: str, chance: float, drafted: int, rng: Random) -> dict[str, Any]:
    """Fields that only some policies record."""
    if method == "metasd-ucb":
        return {"overlap": min(1.0, chance + rng.uniform(-0.1, 0.1))}
    if method == "tapout-seq-ucb1":
        entropy = [rng.expovariate(0.5 + 2 * chance) for _ in range(drafted)]
        return {
            "entropy": entropy,
            "values": {
                f"zoo:general:16~{r}": 0.3 + 0.1 * i + rng.uniform(-0.05, 0.05) for i, r in enumerate(RULES)
            },
        }
    return {}


def prompt_line(method: str, at: int, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    phases = {p: sum(r["seconds"][p] for r in rounds) for p in ("draft", "verify", "accept")}
    return {
        "method": method,
        "engine": "draftwise",
        "category": CATEGORIES[at % len(CATEGORIES)],
        "batch": 1,
        "prompt": at,
        "new_tokens": TOKENS,
        "ttft_s": sum(rounds[0]["seconds"].values()),
        "first_tokens": 1,
        "rounds": len(rounds),
        "accepted": sum(r["accepted"] for r in rounds),
        "drafted": sum(r["drafted"] for r in rounds),
        "identical": True,
        "seconds": 1.05 * sum(phases.values()),
        "seconds_by_phase": phases,
        "pulls": Counter(r["arm"] for r in rounds),
    }


def peer(method: str, speedup: float, category: str) -> dict[str, Any]:
    prompts = PROMPTS * (len(CATEGORIES) if category == "all" else 1)
    return {
        "method": method,
        "engine": "transformers",
        "category": category,
        "prompts": prompts,
        "new_tokens": TOKENS * prompts,
        "seconds": 0.01 * TOKENS * prompts / speedup,
        "tokens_per_s": 100 * speedup,
        "speedup": speedup,
        "interval": [speedup - 0.1, speedup + 0.08],
        "identical": None,
    }


def pieces() -> dict[str, Any]:
    parts = [
        ["def ", "target"],
        ["add(a, b):\n", "zoo:code"],
        ["    return ", "ngram"],
        ["a < b & c", "target"],
    ]
    return {
        "method": "metasd-ucb",
        "category": "coding",
        "prompt": 0,
        "prompt_text": "Add <a> and b.",
        "pieces": parts,
    }


def records(path: Path, found: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in found))


def save(path: Path, found: Any) -> None:
    path.write_text(json.dumps(found))
