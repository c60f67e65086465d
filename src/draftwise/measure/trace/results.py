"""Replays and oracles as files: the same rows, rounds and prompts as in a live benchmark."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ...core.drafts import Draft
from ...core.round import Round
from ...core.stats import Stats
from ...errors import UserError
from ...policies.catalogue import method
from .. import machine
from ..learnt import learnt
from ..results import BASELINE, summarize
from ..writing import folder, no_benchmark, replacing, write_text
from .composite import best_composite
from .costs import MEASURED, Costs, as_json, busy
from .files import FIELDS, Trace, write_json
from .fixed import NONE, Arm, exactly, fixed
from .oracle import Best, best
from .replay import Replay
from .samples import pieces, read_samples
from .stage import Stage

Row = dict[str, Any]
Tell = Callable[[int, int], None]
"""Called with the number of finished prompts, and their total."""
UNKNOWN = "the trace does not say how busy its machine was: measure again for times to quote"
DIGITS = 4  # digits of numbers that only plots use
CLOSELY, EVERY = 4, 8  # values of arms: after each round of the first texts, then after every 8th


def replayed(
    trace: Trace, policies: Sequence[str], costs: Costs, out: Path, *, seed: int = 0, tell: Tell | None = None
) -> Row:
    """Replay policies, including `none`, and write `results.json`, prompts, rounds and pieces.

    Raises:
        UserError: an unknown policy, one that the trace does not support, or a folder that cannot be written.
    """
    vacant(out)
    names = list(dict.fromkeys([BASELINE, *policies]))
    loops = {name: _loop(trace, name, costs, seed) for name in names}
    rows: list[Row] = []
    optimum: dict[int, float] = {}
    samples, shown = read_samples(trace.folder), []
    with replacing(out / "rounds.jsonl") as part, part.open("w", encoding="utf-8") as file:
        for i, recording in enumerate(trace):
            stage = Stage(recording)
            if trace.header.greedy:
                optimum[i] = best(stage, costs).seconds
            for name, loop in loops.items():
                about = {"method": name, "category": recording.category, "prompt": i}
                rounds = list(_played(loop, stage, about, file))
                rows.append(_prompt(name, i, recording.category, rounds))
                if sample := samples.get(str(i)):
                    said = {"prompt_text": sample.prompt, "pieces": pieces(sample.words, rounds)}
                    shown.append(about | said)
            if tell:
                tell(i + 1, len(trace))
    found = _results(trace, names, rows, optimum, costs, seed)
    for name, lines in (("prompts", rows), ("pieces", shown)):
        write_text(out / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in lines))
    write_json(out / "results.json", found)
    return found


def _loop(trace: Trace, name: str, costs: Costs, seed: int) -> Replay:
    try:
        return Replay(trace, method(name, trace.team(name)), costs, seed=seed)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _played(loop: Replay, stage: Stage, about: Row, file: TextIO) -> Iterator[Round]:
    """The rounds of one text, each written as it comes.

    Raises:
        UserError: a round's stop rules, known only now for an adaptive threshold, read a signal that is not
            recorded.
    """
    for number, round in enumerate(_named(about["method"], loop.play(stage))):
        line = about | {"round": number} | _line(round) | _seen(loop.pool.draft_now, round.accepted)
        if (about["prompt"] < CLOSELY or not number % EVERY) and (values := learnt(loop.policy)):
            line["values"] = values
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
        yield round


def _named(name: str, rounds: Iterator[Round]) -> Iterator[Round]:
    try:
        yield from rounds
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def vacant(out: Path) -> None:
    """Make the folder for a replay's results, which does not replace those of a benchmark.

    Raises:
        UserError: it holds a benchmark, or nothing can be written there.
    """
    no_benchmark(out)
    folder(out)


def _line(round: Round) -> Row:
    seconds = {phase: s for phase, s in asdict(round.seconds).items() if s}
    return {
        "arm": round.arm.name,
        "drafter": round.arm.drafter,
        "length": round.arm.length,
        "drafted": round.drafted,
        "accepted": round.accepted,
        "tokens": list(round.tokens),
        "seconds": seconds,
    }


def _seen(draft: Draft, accepted: int) -> Row:
    """Recorded data of a chain: entropies up to the first rejection, and the mean overlap."""
    if not draft.tokens or draft.rows is None:
        return {}
    lines, first = draft.rows
    n = len(draft.tokens)
    entropy = lines.answers.signals[first : first + min(n, accepted + 1), FIELDS.index("entropy")]
    found: Row = {"entropy": [round(float(x), DIGITS) for x in entropy]}
    if lines.overlap:
        found["overlap"] = round(sum(lines.overlap[first : first + n]) / n, DIGITS)
    return found


def _prompt(name: str, index: int, category: str, rounds: Sequence[Round]) -> Row:
    stats = Stats.of(rounds)
    return {
        "key": f"{name} @1 #{index}",
        "method": name,
        "engine": "replay",
        "category": category,
        "prompt": index,
        "batch": 1,
        "new_tokens": stats.tokens,
        "seconds": stats.seconds,
        "rounds": stats.rounds,
        "accepted": stats.accepted,
        "drafted": stats.drafted,
        "identical": True,
        "seconds_by_phase": stats.seconds_by_phase,
        "pulls": stats.pulls,
    }


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
    by_category: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["method"] == BASELINE and greedy:
            for key in ("all", row["category"]):
                by_category[key] += optimum[row["prompt"]]
    for result in results:
        if greedy:
            result["fraction_of_optimum"] = by_category[result["category"]] / result["seconds"]
    header = trace.header
    settings: Row = {"target": header.target, "drafters": trace.drafters, "workload": header.workload}
    settings |= {"max_new_tokens": header.max_new_tokens, "temperature": header.temperature, "seed": seed}
    priced = {key: value for key, value in as_json(costs).items() if key not in ("machine", "load")}
    settings |= {"trace": str(trace.folder), "costs": priced}
    settings["speedup"] = "ratio of total times" if greedy else "ratio of total times per token"
    return {"run": machine.run(), "settings": settings} | trust(costs) | {"absent": [], "results": results}


def trust(costs: Costs) -> Row:
    """Where the costs were measured, and whether that machine was quiet: `clean` is None if unknown."""
    why = busy(costs)
    clean = None if why is None else not why
    if why is None and costs.source == MEASURED:
        why = [UNKNOWN]
    return {"machine": dict(costs.machine), "clean": clean, "busy": why or [], "load": list(costs.load)}


def foreseen(trace: Trace, costs: Costs, *, tell: Tell | None = None) -> Row:
    """The minimum time for every text, without and with composite drafts, and fixed arms and DISCO's oracle.

    Raises:
        UserError: the text was sampled, so that acceptance would be random.
    """
    if not trace.header.greedy:
        raise UserError("the trace's text was drawn: record it at --temperature 0 for an oracle")
    sums: dict[str, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    paths: dict[int, Best] = {}
    for i, recording in enumerate(trace):
        stage = Stage(recording)
        paths[i] = best(stage, costs)
        arms, just = fixed(stage, costs), exactly(stage, costs)
        composite = best_composite(stage, costs)
        for key in ("all", recording.category):
            mine = sums[key]
            mine["prompts"] += 1
            mine["tokens"] += recording.committed
            mine["optimum"] += paths[i].seconds
            mine["composite"] += composite
            for arm, seconds in arms.items():
                mine[arm] += seconds
            for name, seconds in just.items():
                mine["exactly", name, 0] += seconds
        if tell:
            tell(i + 1, len(trace))
    return trust(costs) | {
        "costs": as_json(costs),
        "results": [_foreseen(key, mine) for key, mine in sums.items()],
        "lengths": {str(i): [[s.position, s.drafter, s.drafted] for s in b.steps] for i, b in paths.items()},
    }


def _foreseen(category: str, sums: Mapping[Any, float]) -> Row:
    """One category: the optimum, the best fixed arm in hindsight, plain decoding, DISCO's oracle."""
    arms: dict[Arm, float] = {key: s for key, s in sums.items() if isinstance(key, tuple) and len(key) == 2}
    just = {key[1]: s for key, s in sums.items() if isinstance(key, tuple) and len(key) == 3}
    least = min(arms, key=arms.__getitem__)
    return {
        "category": category,
        "prompts": int(sums["prompts"]),
        "new_tokens": int(sums["tokens"]),
        "optimum": sums["optimum"],
        "optimum_composite": sums["composite"],
        "none": arms[NONE],
        "best_fixed": {"drafter": least[0], "length": least[1], "seconds": arms[least]},
        "best_length": {name: _best_length(name, arms) for name in just},
        "exactly": just,
    }


def _best_length(name: str, arms: Mapping[Arm, float]) -> Row:
    mine = {length: s for (who, length), s in arms.items() if who == name}
    length = min(mine, key=mine.__getitem__)
    return {"length": length, "seconds": mine[length]}
