"""Does a policy adapt? Every policy against every fixed drafter, per category, in one interleaved run.

    python -m studies.speed.adapt [--per-category 3] [--new-tokens 64] [--temperature 0] [--json FILE]
        [--pictures docs/pictures]

All bundled drafters and both lookups; drafts of at most 5 tokens where the policy leaves that open; defaults
throughout. Prompts come in shuffled order, so that a policy that keeps what it learns meets one category
after another, and the methods take turns on each prompt in shuffled order. The first round, which reads the
prompt, is not timed; a model drafter reads it when it is first asked, and that is. Mean accepted and time are
two results: grading on a small target can cost more than it wins.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from draftwise import Sampling
from draftwise.build import build_drafters, build_target, complete, eos_ids
from draftwise.core.loop import Loop
from draftwise.data import spec_bench
from draftwise.policies.catalogue import method

LMS = ["general", "code", "math", "qa", "sql", "summarization", "translation"]
DRAFTERS = [*(f"zoo:{name}" for name in LMS), "ngram", "suffix"]
FIXED = [f"static?length=5&drafter={name}" for name in DRAFTERS]
POLICIES = [
    "auto",
    "random",
    "ucb1",
    "metasd-ucb",
    "metasd-ucb?beta=1",
    "metasd-ucb?reward=block-efficiency",
    "metasd-exp3",
    "metasd-sh",
    "metasd-petc",
    "metasd-ducb",
    "metasd-swucb",
    "ucbspec",
    "exp3spec",
    "hedgespec",
    "hedgespec?every=16",
    "hedgespec?per_query=false&memory=0.99",
    "hedgespec?windows=all",
    "hedgespec-hedge",
    "linucb",
    "draft-all",
    "tapout-seq-ucb1",
    "tapout-seq-ucbtuned",
    "tapout-seq-ts",
    "tapout-token-ucb1",
    "tapout-token-ts",
    "max-confidence",
    "svip",
    "svip-difference",
    "logit-margin",
    "adaedl",
    "hf-heuristic",
    "hf-threshold",
]


@dataclass
class Tally:
    """What one method did in one category."""

    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    seconds: float = 0.0
    grading: float = 0.0
    pulls: Counter[str] = field(default_factory=Counter)

    @property
    def mean_accepted(self) -> float:
        return self.accepted / self.rounds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def main() -> int:
    options = parse()
    target, model, tokenizer = build_target("zoo:target", None, **LOAD)
    prompts = chosen(tokenizer, options.per_category, options.new_tokens)
    load = {k: v for k, v in LOAD.items() if k != "device_map"}
    team = build_drafters(DRAFTERS, target, tokenizer, "zoo:target", **load)
    loops = {}
    for name in ["none", *FIXED, *POLICIES]:
        made = method(name, DRAFTERS)
        loops[name] = Loop(target, complete(team, made), made.policy, made.recorder)
    tallies: dict[str, dict[str, Tally]] = {name: defaultdict(Tally) for name in loops}
    settings = {"max_new_tokens": options.new_tokens, "temperature": options.temperature}
    eos = eos_ids(model, tokenizer)
    shuffle = random.Random(0)
    for loop in loops.values():  # warm up every path, and count nothing
        list(loop.run([prompts[0][1][:100]], Sampling(max_new_tokens=8, eos=eos)))
    wrong = Counter[str]()
    for at, (category, ids) in enumerate(track(prompts, "prompts", console=Console(stderr=True))):
        texts = {}
        for name in shuffle.sample(list(loops), len(loops)):
            sampling = Sampling(**settings, eos=eos, seed=at)
            texts[name] = play(loops[name], ids, sampling, tallies[name][category])
        wrong.update(n for n in texts if options.temperature == 0 and texts[n] != texts["none"])
    report = summary(tallies)
    print(json.dumps(report["all"], indent=1) if options.json == "-" else table(report))
    print(f"{len(prompts)} prompts; texts that differ from plain decoding's: {dict(wrong) or 'none'}")
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps({"settings": vars(options), "results": report}, indent=1))
    if options.pictures:
        draw(report, Path(options.pictures))
    return 1 if wrong else 0


LOAD: dict[str, Any] = {
    "dtype": "float32",
    "device": "auto",
    "trust_remote_code": False,
    "pack": True,
    "device_map": None,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", default="")
    parser.add_argument("--pictures", default="")
    return parser.parse_args()


def chosen(tokenizer: Any, per_category: int, new_tokens: int) -> list[tuple[str, list[int]]]:
    """The first prompts of every category that fit the window, in shuffled order."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for question in spec_bench():
        message = [{"role": "user", "content": question.text}]
        encoded = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
        ids = list(encoded["input_ids"])
        if len(ids) + new_tokens <= 2048 and len(found[question.category]) < per_category:
            found[question.category].append(ids)
    prompts = [(category, ids) for category, mine in found.items() for ids in mine]
    random.Random(1).shuffle(prompts)
    return prompts


def play(loop: Loop, ids: list[int], sampling: Sampling, tally: Tally) -> list[int]:
    """Decode one prompt; its reading, the same for all, is not timed."""
    text: list[int] = []
    loop.add(ids, sampling)
    first = True
    while loop.open:
        start = perf_counter()
        (round,) = loop.step()
        seconds = perf_counter() - start
        text += round.tokens
        tally.rounds += 1
        tally.accepted += round.accepted
        tally.pulls[round.arm.drafter if round.arm.length else "none"] += 1
        if not first:
            tally.tokens += len(round.tokens)
            tally.seconds += seconds
            tally.grading += round.seconds.grade
        first = False
    if any(loop.faults.values()):
        raise RuntimeError(f"a drafter failed: {loop.faults}")
    return text


def summary(tallies: dict[str, dict[str, Tally]]) -> dict[str, dict[str, Any]]:
    """Per category and for all of them: each method's numbers."""
    categories = sorted({c for mine in tallies.values() for c in mine})
    report: dict[str, dict[str, Any]] = {}
    for category in ["all", *categories]:
        report[category] = {}
        for name, mine in tallies.items():
            parts = list(mine.values()) if category == "all" else [mine[category]]
            sums = Tally()
            for part in parts:
                for key in ("tokens", "rounds", "accepted", "seconds", "grading"):
                    setattr(sums, key, getattr(sums, key) + getattr(part, key))
                sums.pulls.update(part.pulls)
            report[category][name] = {
                "mean_accepted": round(sums.mean_accepted, 3),
                "tokens_per_s": round(sums.tokens_per_s, 1),
                "grading_share": round(sums.grading / sums.seconds, 3),
                "rounds": sums.rounds,
                "pulls": dict(sums.pulls.most_common()),
            }
    return report


def table(report: dict[str, dict[str, Any]]) -> str:
    """Markdown: every method over all prompts, then mean accepted by category."""
    everything = report["all"]
    lines = ["| method | mean accepted | tokens/s | grading | most played |", "|---|---|---|---|---|"]
    for name, row in everything.items():
        pulls = ", ".join(f"{d} {n}" for d, n in list(row["pulls"].items())[:3])
        lines.append(
            f"| `{name}` | {row['mean_accepted']:.2f} | {row['tokens_per_s']:.1f} "
            f"| {100 * row['grading_share']:.0f} % | {pulls} |"
        )
    categories = [c for c in report if c != "all"]
    for key, digits in (("mean_accepted", 2), ("tokens_per_s", 0)):
        lines += ["", f"{key} by category", "", "| method | " + " | ".join(categories) + " |"]
        lines.append("|---|" + "---|" * len(categories))
        for label, pick in (("best fixed", max), ("worst fixed", min)):
            cells = [f"{pick(report[c][n][key] for n in FIXED):.{digits}f}" for c in categories]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        for name in ["none", *POLICIES]:
            cells = [f"{report[c][name][key]:.{digits}f}" for c in categories]
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(report: dict[str, dict[str, Any]], folder: Path) -> None:
    """Two maps of policies by categories: 0 is the worst fixed drafter there, 1 the best."""
    from studies.common.plot import panels, save

    categories = [c for c in report if c != "all"]
    figure, axes = panels(2, width=6.4, height=7.2)
    for axis, key, title in zip(
        axes, ("mean_accepted", "tokens_per_s"), ("mean accepted", "tokens per second"), strict=True
    ):
        grid = np.array([place(report, categories, name, key) for name in POLICIES])
        mesh = axis.pcolormesh(grid, cmap="RdYlGn", vmin=0.0, vmax=1.0)
        axis.invert_yaxis()
        axis.set_xticks(np.arange(len(categories)) + 0.5, categories, rotation=60, ha="right")
        axis.set_yticks(np.arange(len(POLICIES)) + 0.5, POLICIES)
        axis.set_title(f"{title}: worst fixed drafter 0, best 1")
        axis.grid(False)
        figure.colorbar(mesh, ax=axis, shrink=0.6).solids.set_rasterized(False)  # lines, no bitmap
    save(figure, folder / "adapt.svg")


def place(report: dict[str, dict[str, Any]], categories: Sequence[str], name: str, key: str) -> list[float]:
    places = []
    for category in categories:
        fixed = [report[category][n][key] for n in FIXED]
        low, high = min(fixed), max(fixed)
        places.append((report[category][name][key] - low) / (high - low) if high > low else 1.0)
    return places


if __name__ == "__main__":
    sys.exit(main())
