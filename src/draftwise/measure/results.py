"""From finished prompts to rows of results: ratios with intervals, and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ..core.roles import Policy
from ..core.round import Round
from ..errors import UserError
from ..inputs import parse_json

Row = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with the number of finished prompts (or seeds), and their total."""
FEWEST = 5  # prompts; bootstrap intervals over fewer prompts mean nothing
DRAWS = 2000  # resamples of the bootstrap
BASELINE = "none"


def summarize(rows: Sequence[Row], *, methods: Sequence[str], greedy: bool, seed: int = 0) -> list[Row]:
    """One row for each batch size, method and category ("all" first), in the order of `methods`.

    Only prompts that every one of `methods` has finished count. `speedup` is the ratio of total times
    against `none` on the same prompts at the same batch size; where texts are drawn, and so differ in length,
    of times per token. `interval` is its 95 % bootstrap interval over prompts, or over batches of them (None
    for fewer than five), and `mean_of_ratios` Spec-Bench's figure: the mean over prompts of tokens per
    second, against that of `none`. `ttft_s` is the mean time to the first tokens, and `tpot_s` the time per
    token after them over all prompts; None in batches and replays.
    """
    table: dict[int, dict[str, dict[int, Row]]] = {}
    for row in rows:
        table.setdefault(row["batch"], {}).setdefault(row["method"], {})[row["prompt"]] = row
    results = []
    for batch, by_method in table.items():
        here = [m for m in methods if m in by_method]
        shared = sorted(set.intersection(*(set(by_method[m]) for m in here)) if here else set())
        category = {i: by_method[BASELINE][i]["category"] for i in shared}
        unit = {i: place // batch for place, i in enumerate(shared)}
        for name in dict.fromkeys(["all", *category.values()]):
            which = [i for i in shared if name in ("all", category[i])]
            plain, units = [by_method[BASELINE][i] for i in which], [unit[i] for i in which]
            for m in here:
                own = [by_method[m][i] for i in which]
                results.append(_row(m, name, batch, own, plain, units, greedy=greedy, seed=seed))
    return sorted(results, key=lambda r: (r["batch"], r["category"] != "all"))


def _row(
    method: str,
    category: str,
    batch: int,
    rows: Sequence[Row],
    plain: Sequence[Row],
    units: Sequence[int],
    *,
    greedy: bool,
    seed: int,
) -> Row:
    seconds, tokens, rounds = _total(rows, "seconds"), _total(rows, "new_tokens"), _total(rows, "rounds")
    drafted, accepted = _total(rows, "drafted"), _total(rows, "accepted")
    ttft_s, tpot_s = first_and_later(rows)
    phases: Counter[str] = Counter()
    pulls: Counter[str] = Counter()
    has_interval = len(set(units)) >= FEWEST
    for row in rows:
        phases.update(row["seconds_by_phase"])
        pulls.update(row["pulls"])
    return {
        "method": method,
        "engine": rows[0]["engine"] if rows else "",
        "category": category,
        "batch": batch,
        "prompts": len(rows),
        "new_tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "speedup": speedup(rows, plain, per_token=not greedy),
        "interval": interval(rows, plain, units, per_token=not greedy, seed=seed) if has_interval else None,
        "mean_of_ratios": mean_rate(rows) / mean_rate(plain),
        "mean_accepted": accepted / rounds,
        "tokens_per_round": tokens / rounds,
        "acceptance_rate": accepted / drafted if drafted else None,
        "rounds": rounds,
        "seconds_by_phase": dict(phases),
        "identical": sum(bool(r["identical"]) for r in rows) if greedy else None,
        "pulls": dict(pulls.most_common()),
    }


def identical(rows: Iterable[Row]) -> list[Row]:
    """The rows with `identical` filled in: whether a prompt's tokens are those of plain decoding."""
    rows = list(rows)
    plain = {(r["batch"], r["prompt"]): r["text_sha"] for r in rows if r["method"] == BASELINE}
    return [
        r | {"identical": r["text_sha"] == plain[r["batch"], r["prompt"]]}
        if (r["batch"], r["prompt"]) in plain
        else r
        for r in rows
    ]


def speedup(rows: Sequence[Row], plain: Sequence[Row], *, per_token: bool = False) -> float:
    """Total time of plain decoding over that of a method; `per_token` divides each by its tokens."""
    ratio = _total(plain, "seconds") / _total(rows, "seconds")
    if per_token:
        ratio *= _total(rows, "new_tokens") / _total(plain, "new_tokens")
    return float(ratio)


def interval(
    own: Sequence[Row],
    plain: Sequence[Row],
    units: Sequence[int] = (),
    *,
    per_token: bool = False,
    seed: int = 0,
) -> list[float]:
    """The middle 95 % of the speedup over resampled `units`, which are prompts unless batches are named.

    Prompts that were decoded together share the time of their passes, and all that disturbed it.
    """
    kinds, place = np.unique(units or range(len(own)), return_inverse=True)
    picks = np.random.default_rng(seed).integers(0, len(kinds), (DRAWS, len(kinds)))
    sums = {
        (who, key): np.bincount(place, [row[key] for row in rows])[picks].sum(1)
        for who, rows in (("mine", own), ("plain", plain))
        for key in ("seconds", "new_tokens")
    }
    ratios = sums["plain", "seconds"] / sums["mine", "seconds"]
    if per_token:
        ratios *= sums["mine", "new_tokens"] / sums["plain", "new_tokens"]
    return [float(x) for x in np.quantile(ratios, [0.025, 0.975])]


def first_and_later(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """Return the mean seconds to the first tokens, and the seconds per token after them; None if unknown."""
    firsts = [row["ttft_s"] for row in rows if row.get("ttft_s") is not None]
    if not firsts or len(firsts) < len(rows):
        return None, None
    later = _total(rows, "new_tokens") - _total(rows, "first_tokens")
    seconds = _total(rows, "seconds") - sum(firsts)
    return sum(firsts) / len(rows), seconds / later if later > 0 else None


def mean_rate(rows: Sequence[Row]) -> float:
    """The mean over prompts of tokens per second."""
    return float(np.mean([row["new_tokens"] / row["seconds"] for row in rows]))


def _total(rows: Sequence[Row], key: str) -> Any:
    return sum(row[key] for row in rows)


def read_lines(path: Path, remedy: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON Lines file with their line numbers; a last line that was cut is left out.

    Raises:
        UserError: another line is no JSON; names file and line, and ends with `remedy`.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                value = parse_json(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise UserError(f"{path}, line {number}: not JSON ({error}); {remedy}") from None
            yield number, value


def work_row(work: Any, tokens: int) -> Row:
    """Return what decoding one prompt took, as a line of `prompts.jsonl` has it."""
    names = (
        "seconds",
        "rounds",
        "accepted",
        "drafted",
        "seconds_by_phase",
        "pulls",
        "ttft_s",
        "first_tokens",
    )
    return {"new_tokens": tokens} | {name: getattr(work, name) for name in names if hasattr(work, name)}


def round_row(round: Round, seconds: Row) -> Row:
    """Return a round as a line of `rounds.jsonl` has it."""
    return {
        "arm": round.arm.name,
        "drafter": round.arm.drafter,
        "length": round.arm.length,
        "drafted": round.drafted,
        "accepted": round.accepted,
        "tokens": list(round.tokens),
        "seconds": seconds,
    }


def arm_values(policy: Policy) -> dict[str, float]:
    """Return a policy's value of each arm that has one by name, if one learner serves all texts."""
    learner: Any = getattr(policy, "shared", None) or getattr(policy, "learner", None)
    if len(policy.arms) < 2 or not hasattr(learner, "estimates"):
        return {}
    values = zip(policy.arms, learner.estimates(), strict=True)
    return {arm.name: round(float(value), 4) for arm, value in values if isfinite(value)}


def describe_peer(record: Row) -> str:
    """Return one line: a peer's settings, the seconds that it prepared, and its drafts on a text to copy."""
    parts = [f"{name} {_in_words(value)}" for name, value in record.get("settings", {}).items()]
    if (seconds := record.get("prepared_seconds") or 0.0) >= 1.0:
        parts.append(f"compiled in {seconds:.0f} s")
    copied = record.get("copied")
    if copied and record.get("drafts"):
        accepted = f"{copied['accepted']} of {copied['drafted']} drafted tokens accepted"
        parts.append(f"of a text to copy, {accepted}")
    return "; ".join(parts)


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items())
    return str(value)
