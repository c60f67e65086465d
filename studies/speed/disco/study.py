"""DISCO against tuned lengths: both are tuned on a quarter of the prompts.

    python -m studies.speed.disco.study --out OUT --costs c=0.06 --costs llama-8b-eagle
    python -m studies.speed.disco.study --out OUT --temperature 1 --classifier chance=FOLDER --costs c=0.06

The target decodes a text for each prompt, and the inputs of the classifier are recorded along it (OUT/0 or
OUT/1; after an interruption the same command continues). Then every threshold and length is replayed:
exactly, at temperature 1 in distribution. Times come from a table of costs, not from a clock. The tables go
to standard output.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftwise import Decoder
from draftwise.core.roles import window_of
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.measure.trace import Costs, read_costs
from draftwise.measure.workloads import choose, load, validation
from draftwise.models.load import load_model, load_tokenizer, weights_of
from draftwise.policies.classifiers.stopping import Disco
from draftwise.policies.classifiers.stopping import load as load_scorer
from draftwise.train.examples import scores
from studies.common.command import command, start
from studies.common.paired import cell, ratio
from studies.speed.disco.record import Recorded, record
from studies.speed.disco.rounds import (
    Real,
    Rounds,
    Scored,
    by_index,
    heuristic,
    oracle,
    predicted,
    scored,
    stopping,
    walk,
)

PAGE = "docs/explanation/findings.md"

THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 40)
UNTUNED = (0.5, 40)  # what `disco` has by default
GROUP, PARTS = 16, 5
HEAD = """| method | accepted a round | accepted / drafted | improvement factor | against that length |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Job:
    """A prompt to record; its file and its seed follow from its text."""

    prompt: Any
    ids: list[int]
    folder: Path
    digest: str

    @property
    def file(self) -> Path:
        """Where its recording is."""
        return self.folder / f"{self.digest[:16]}.npz"

    @property
    def seed(self) -> int:
        """For its text and its drafts."""
        return int(self.digest[:8], 16)


def gather(args: Namespace, folder: Path) -> list[Path]:
    """Texts and what is read along them, a file for each prompt; what is there is left."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, target = load_tokenizer(args.target), load_model(args.target)
    drafter = load_model(args.drafter)
    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, policy="none")
    window = window_of(decoder.loop.target) - args.max_new_tokens
    prompts = choose(load(args.workload), limit=args.limit, per_category=args.per_category)
    jobs = [Job(p, decoder.encode(p.text), folder, sha256(p.text.encode()).hexdigest()) for p in prompts]
    jobs = [job for job in jobs if len(job.ids) <= window]
    waiting = [job for job in jobs if not job.file.exists()]
    for at in range(0, len(waiting), GROUP):
        group = waiting[at : at + GROUP]
        for job, text in zip(group, written(decoder, group, args), strict=True):
            rng = torch.Generator().manual_seed(job.seed) if args.temperature else None
            how = {"longest": max(LENGTHS), "budget": args.max_new_tokens, "rng": rng}
            about = {"category": job.prompt.category, "validation": validation(job.prompt)}
            record(target, drafter, job.ids, text, **how, **about).save(job.file)
        print(f"  {at + len(group)} of {len(waiting)} texts", file=sys.stderr, flush=True)
    return [job.file for job in jobs]


def written(decoder: Decoder, group: Sequence[Job], args: Namespace) -> list[list[int]]:
    """The target's texts, decoded together; each is drawn with a seed of its own."""
    places, out = {}, [list[int]() for _ in group]
    for place, job in enumerate(group):
        seed = job.seed if args.temperature else None
        sampling = Sampling(
            max_new_tokens=args.max_new_tokens, temperature=args.temperature, eos=decoder.eos, seed=seed
        )
        places[decoder.loop.add(job.ids, sampling).id] = place
    while places:
        for round in decoder.loop.step():
            out[places[round.request]] += round.tokens
            if round.done:
                del places[round.request]
    return out


@dataclass
class Study:
    """Texts scored by one classifier, split as `draftwise tune` splits prompts."""

    name: str
    tuning: list[Scored]
    testing: list[Scored]
    drafter: str

    def __post_init__(self) -> None:
        self.known: dict[tuple[float, int, bool], list[Rounds]] = {}

    def rounds(self, threshold: float, longest: int, *, tuning: bool = False) -> list[Rounds]:
        """The rounds of all texts of one half."""
        key = threshold, longest, tuning
        if key not in self.known:
            rule = stopping(threshold, longest)
            self.known[key] = [walk(text, rule) for text in (self.tuning if tuning else self.testing)]
        return self.known[key]

    def best(self, costs: Costs, thresholds: Sequence[float], *, tuning: bool = True) -> tuple[float, int]:
        """The pair of least total time on the tuning half; threshold 0 is a fixed length."""
        pairs = [(t, n) for t in thresholds for n in LENGTHS]
        return min(pairs, key=lambda pair: self.seconds(self.rounds(*pair, tuning=tuning), costs).sum())

    def seconds(self, found: Sequence[Rounds], costs: Costs) -> Real:
        """Of each text."""
        return np.array([one.seconds(costs, self.drafter) for one in found])

    def plain(self, costs: Costs) -> Real:
        """Without drafts."""
        return np.array([len(text.accepted) * costs.target(1) for text in self.testing])


def factors(study: Study, costs: Costs) -> list[str]:
    """Improvement factors against plain decoding, and against the tuned length: rows in Markdown."""
    longest = study.best(costs, [0.0])[1]
    tuned, known = study.best(costs, THRESHOLDS), study.best(costs, [0.0], tuning=False)[1]
    methods = {
        f"length {longest}, tuned": study.rounds(0.0, longest),
        f"DISCO, tau {tuned[0]}, at most {tuned[1]}, tuned": study.rounds(*tuned),
        "DISCO, tau 0.5, at most 40": study.rounds(*UNTUNED),
        f"length {known}, best in hindsight": study.rounds(0.0, known),
        "heuristic, from 5": heuristic(study.testing, 5, max(LENGTHS)),
        "oracle": [walk(text, oracle(max(LENGTHS))) for text in study.testing],
    }
    plain, base = study.plain(costs), study.seconds(study.rounds(0.0, longest), costs)
    lines = []
    for name, found in methods.items():
        seconds = study.seconds(found, costs)
        counts = [sum(map(sum, part)) for part in zip(*((r.drafted, r.accepted) for r in found), strict=True)]
        rounds = sum(len(one.drafted) for one in found)
        shown = f"{counts[1] / rounds:.2f} | {counts[1] / max(counts[0], 1):.2f}"
        lines.append(f"| {name} | {shown} | {cell(*ratio(seconds, plain))} | {cell(*ratio(seconds, base))} |")
    return lines


def agreement(recorded: Sequence[Recorded]) -> float:
    """Leviathan's alpha: the share of tokens accepted where all before them were."""
    return float(np.concatenate([one.accepted for one in recorded]).mean())


def lengths_by_index(study: Study) -> list[str]:
    """The oracle's length along a text: mean and standard deviation in each fifth of its rounds."""
    found = [walk(text, oracle(max(LENGTHS))).accepted for text in study.testing]
    lines = ["| rounds of a text | n | mean | standard deviation | 0 | 1 to 4 | 5 and more |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for i, part in enumerate(by_index([row for row in found if len(row) >= PARTS], PARTS)):
        shares = [np.mean(part == 0), np.mean((part > 0) & (part < 5)), np.mean(part >= 5)]
        shown = " | ".join(f"{100 * share:.0f} %" for share in shares)
        label = f"{100 * i // PARTS} to {100 * (i + 1) // PARTS} %"
        lines.append(f"| {label} | {len(part)} | {part.mean():.2f} | {part.std():.2f} | {shown} |")
    return lines


def f1(study: Study) -> str:
    """How well the classifier tells accepted tokens from refused ones on the test half."""
    chances = np.concatenate([text.on for text in study.testing])
    accepted = np.concatenate([text.accepted for text in study.testing])
    found = scores(torch.tensor(chances), torch.tensor(accepted).float())
    always = 2 * accepted.mean() / (1 + accepted.mean())
    return (
        f"{study.name}: F1 {found['f1']:.3f} (always yes: {always:.3f}), right for "
        f"{100 * found['accuracy']:.0f} % of {len(accepted)} tokens, {100 * accepted.mean():.0f} % accepted"
    )


def show(recorded: Sequence[Recorded], classifiers: Mapping[str, Disco], args: Namespace) -> None:
    """All tables."""
    alpha = agreement([one for one in recorded if not one.validation])
    for name, scorer in classifiers.items():
        tuning = [scored(one, scorer) for one in recorded if one.validation]
        testing = [scored(one, scorer) for one in recorded if not one.validation]
        study = Study(name, tuning, testing, args.drafter)
        print(f"\n## {name}, temperature {args.temperature:g}\n")
        print(f"Tuned on {len(study.tuning)} prompts, measured on {len(study.testing)}. {f1(study)}.")
        for text in args.costs:
            costs = read_costs(text)
            c, length = costs.of(args.drafter).step / costs.target(1), study.best(costs, [0.0])[1]
            guess = predicted(alpha, length, c)
            print(f"\n{text}; Leviathan's factor at alpha {alpha:.2f}, length {length}: {guess:.3f}\n")
            print(HEAD, *factors(study, costs), sep="\n", flush=True)
    print("\n## The oracle's length\n", *lengths_by_index(study), sep="\n")


def classifier(path: str) -> Disco:
    """DISCO's classifier in a folder."""
    found = load_scorer(weights_of(path), "disco")
    if not isinstance(found, Disco):
        raise UserError(f"--classifier {path}: no classifier of DISCO; see `draftwise train classifier`")
    return found


def main() -> None:
    """Record what is missing, then print."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--costs", action="append", required=True, help="may be repeated")
    parser.add_argument("--classifier", action="append", default=[], help="NAME=FOLDER, may be repeated")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafter", default="zoo:general")
    parser.add_argument("--workload", default="spec-bench")
    parser.add_argument("--per-category", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, choices=(0.0, 1.0))
    args = parser.parse_args()
    folder = args.out / f"{args.temperature:g}"
    files = gather(args, folder)
    named = dict(pair.split("=", 1) for pair in args.classifier or ["zoo:disco=zoo:disco"])
    scorers = {name: classifier(path) for name, path in named.items()}
    show([Recorded.load(file) for file in files], scorers, args)


if __name__ == "__main__":
    start(main)
