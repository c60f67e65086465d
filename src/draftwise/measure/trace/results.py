"""Replays and oracles as files: the same rows, rounds and prompts as in a live benchmark."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ...core.drafts import Draft
from ...core.round import Round, Stats
from ...errors import UserError
from ...generation.text import TARGET
from ...policies.catalogue import method
from ...writing import replacing_all, write_json, write_text
from .. import machine
from ..results import BASELINE, Progress, Row, arm_values, round_row, summarize, work_row
from ..writing import make_folder, refuse_benchmark
from .costs import MEASURED, Costs, busy, costs_json
from .files import FIELDS, Trace, read_samples
from .oracle import NONE, Arm, Best, best, best_composite, exactly, fixed
from .replay import Replay
from .state import ReplayState

FILES = ("results.json", "prompts.jsonl", "pieces.jsonl", "rounds.jsonl")
NO_LOAD = "the trace does not say how busy its machine was: measure again for times to quote"
DIGITS = 4  # digits of numbers that only plots use
CLOSELY, EVERY = 4, 8  # values of arms: after each round of the first texts, then after every 8th


def replayed(
    trace: Trace,
    policies: Sequence[str],
    costs: Costs,
    out: Path,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Row:
    """Replay policies, including `none`, and write all of `FILES`, or none of them."""
    refuse_benchmark(out)
    make_folder(out)
    names = list(dict.fromkeys([BASELINE, *policies]))
    replays: dict[str, Replay] = {}
    for name in names:
        with _naming(name):
            replays[name] = Replay(trace, method(name, trace.team(name)), costs, seed=seed)
    rows: list[Row] = []
    optimum: dict[int, float] = {}
    samples, pieces = read_samples(trace.folder), list[Row]()
    with (
        replacing_all(*(out / name for name in FILES)) as parts,
        parts[-1].open("w", encoding="utf-8") as file,
    ):
        for i, recording in enumerate(trace):
            state = ReplayState(recording)
            if trace.header.greedy:
                optimum[i] = best(state, costs).seconds
            for name, replay in replays.items():
                about = {"method": name, "category": recording.category, "prompt": i}
                with _naming(name):
                    rounds = list(_write_rounds(replay, state, about, file))
                stats, key = Stats.of(rounds), {"key": f"{name} @1 #{i}", "engine": "replay", "batch": 1}
                rows.append(key | about | work_row(stats, stats.tokens) | {"identical": True})
                if str(i) in samples:
                    prompt, words = samples[str(i)]
                    pieces.append(about | {"prompt_text": prompt, "pieces": split_pieces(words, rounds)})
            if progress:
                progress(i + 1, len(trace))
        results = _results(trace, names, rows, optimum, costs, seed)
        for part, lines in zip(parts[1:3], (rows, pieces), strict=True):
            write_text(part, "".join(json.dumps(row) + "\n" for row in lines))
        write_json(parts[0], results)
    return results


@contextmanager
def _naming(policy: str) -> Iterator[None]:
    """Name the policy in an error: the stop rules of an adaptive threshold are known only in its rounds."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{policy}: {error}") from None


def _write_rounds(replay: Replay, state: ReplayState, about: Row, file: TextIO) -> Iterator[Round]:
    for number, round in enumerate(replay.replay(state)):
        seconds = {phase: s for phase, s in asdict(round.seconds).items() if s}
        row = about | {"round": number} | round_row(round, seconds)
        row |= _draft_row(replay.pool.last_draft, round.accepted)
        if (about["prompt"] < CLOSELY or not number % EVERY) and (values := arm_values(replay.policy)):
            row["values"] = values
        file.write(json.dumps(row, separators=(",", ":")) + "\n")
        yield round


def _draft_row(draft: Draft, accepted: int) -> Row:
    """Return recorded data of a chain: entropies up to the first rejection, and the mean overlap."""
    if not draft.tokens or draft.rows is None:
        return {}
    drafter, first = draft.rows
    n = len(draft.tokens)
    entropy = drafter.drafts.signals[first : first + min(n, accepted + 1), FIELDS.index("entropy")]
    row: Row = {"entropy": [round(float(x), DIGITS) for x in entropy]}
    if drafter.overlap:
        row["overlap"] = round(sum(drafter.overlap[first : first + n]) / n, DIGITS)
    return row


def split_pieces(words: Sequence[str], rounds: Sequence[Round]) -> list[tuple[str, str]]:
    """Split a text into pieces of (text, drafter that proposed it, or "target")."""
    pieces, at = [], 0
    for round in rounds:
        rest = len(round.tokens) - round.sources
        for source, tokens in ((round.arm.drafter, round.sources), (TARGET, rest)):
            if piece := "".join(words[at : at + tokens]):
                pieces.append((piece, source))
            at += tokens
    return pieces


def _results(
    trace: Trace,
    names: Sequence[str],
    rows: Sequence[Row],
    optimum: Mapping[int, float],
    costs: Costs,
    seed: int,
) -> Row:
    greedy = trace.header.greedy
    results = summarize(rows, methods=names, greedy=greedy, seed=seed)
    if greedy:
        by_category: dict[str, float] = defaultdict(float)
        for row in (row for row in rows if row["method"] == BASELINE):
            for key in {"all", row["category"]}:
                by_category[key] += optimum[row["prompt"]]
        for result in results:
            result["fraction_of_optimum"] = by_category[result["category"]] / result["seconds"]
    header = trace.header
    settings: Row = {"target": header.target, "drafters": trace.drafters, "workload": header.workload}
    settings |= {"max_new_tokens": header.max_new_tokens, "temperature": header.temperature, "seed": seed}
    priced = {key: value for key, value in costs_json(costs).items() if key not in ("machine", "load")}
    settings |= {"trace": str(trace.folder), "costs": priced}
    settings["speedup"] = "ratio of total times" if greedy else "ratio of total times per token"
    return {"run": machine.run(), "settings": settings} | trust(costs) | {"absent": [], "results": results}


def trust(costs: Costs) -> Row:
    """Return where the costs were measured, and if that machine was quiet: `clean` is None if unknown."""
    reasons = busy(costs)
    clean = None if reasons is None else not reasons
    if reasons is None and costs.source == MEASURED:
        reasons = [NO_LOAD]
    return {"machine": dict(costs.machine), "clean": clean, "busy": reasons or [], "load": list(costs.load)}


def compute_oracle(trace: Trace, costs: Costs, *, progress: Progress | None = None) -> Row:
    """Return the minimum time for every text, without and with composite drafts, and that of simple rules."""
    if not trace.header.greedy:
        raise UserError("the trace's text was sampled: record it at --temperature 0 for an oracle")
    sums = defaultdict[str, _Sums](_Sums)
    paths: dict[int, Best] = {}
    for i, recording in enumerate(trace):
        state = ReplayState(recording)
        paths[i] = best(state, costs)
        totals: dict[str, float] = {
            "prompts": 1,
            "new_tokens": recording.committed,
            "optimum": paths[i].seconds,
        }
        totals |= {"optimum_composite": best_composite(state, costs)}
        arms, just = fixed(state, costs), exactly(state, costs)
        for category in dict.fromkeys(("all", recording.category)):
            _add(totals, sums[category].totals)
            _add(arms, sums[category].arms)
            _add(just, sums[category].exactly)
        if progress:
            progress(i + 1, len(trace))
    return trust(costs) | {
        "costs": costs_json(costs),
        "results": [{"category": category} | own.row() for category, own in sums.items()],
        "lengths": {str(i): [[s.position, s.drafter, s.drafted] for s in b.steps] for i, b in paths.items()},
    }


@dataclass(slots=True)
class _Sums:
    """Sums over the texts of a category: of the optimum, of each fixed arm, and of DISCO's oracle."""

    totals: dict[str, float] = field(default_factory=dict)
    arms: dict[Arm, float] = field(default_factory=dict)
    exactly: dict[str, float] = field(default_factory=dict)

    def row(self) -> Row:
        """Return the optimum beside the best fixed arms in hindsight and plain decoding."""
        return dict(self.totals) | {
            "none": self.arms[NONE],
            "best_fixed": self._best(self.arms),
            "best_length": {name: self._best_length(name) for name in self.exactly},
            "exactly": dict(self.exactly),
        }

    def _best(self, arms: Iterable[Arm]) -> Row:
        least = min(arms, key=self.arms.__getitem__)
        return {"drafter": least[0], "length": least[1], "seconds": self.arms[least]}

    def _best_length(self, name: str) -> Row:
        best = self._best(arm for arm in self.arms if arm[0] == name)
        return {"length": best["length"], "seconds": best["seconds"]}


def _add(numbers: Mapping[Any, float], sums: dict[Any, float]) -> None:
    for key, number in numbers.items():
        sums[key] = sums.get(key, 0) + number
