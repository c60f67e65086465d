"""A policy live against fixed settings: runs of `draftwise bench` with the same methods, read together.

    python -m studies.speed.live RUN ... [--policy auto]

All time but the target's own prefill counts, and to it the same prefill for each token is added: the mean of
all methods. So drawn texts of other lengths count alike, and reading the prompt in a pass of its own, which
no policy changes, is not left to chance. Ratios are seconds a token of the other method over those of the
policy, with the middle 95 % over resampled prompts (a prompt of one run is one case); above 1 the policy is
faster. The second table has each method's own work a round, in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.errors import UserError
from draftwise.measure.results import FEWEST
from studies.common.command import command, start
from studies.common.tables import Real, cell, heading, middle, resampled
from studies.common.tables import row as table_row

PAGE = "docs/explanation/toys.md"
PHASES = ("choose", "grade", "learn")


@dataclass(slots=True)
class Text:
    """Seconds and rounds of one method for one prompt."""

    category: str
    tokens: int = 0
    prefill: float = 0.0
    seconds: float = 0.0
    rounds: int = 0
    drafting: int = 0
    own: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


Texts = dict[str, dict[tuple[int, int], Text]]
"""By method, then by the numbers of the run and of the prompt."""


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSONL file."""
    try:
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no {path.name} there; name a folder of `draftwise bench`") from None


def read(runs: Sequence[Path]) -> Texts:
    """All texts of these runs that every method wrote one request at a time."""
    texts: Texts = {}
    for number, run in enumerate(runs):
        for row in records(run / "prompts.jsonl"):
            if row["batch"] == 1:
                text = Text(row["category"], row["new_tokens"], seconds=row["seconds"])
                texts.setdefault(row["method"], {})[number, row["prompt"]] = text
        for row in records(run / "rounds.jsonl"):
            at = number, row["prompt"]
            if row["batch"] == 1 and at in texts.get(row["method"], {}):
                _add(texts[row["method"]][at], row)  # else the run is not over yet
    if not texts:
        names = ", ".join(map(str, runs))
        raise UserError(
            f"{names}: no prompt was finished one request at a time; run `draftwise bench --batch 1`"
        )
    shared = set.intersection(*(set(mine) for mine in texts.values()))
    return {method: {at: mine[at] for at in sorted(shared)} for method, mine in texts.items()}


def _add(text: Text, row: dict[str, Any]) -> None:
    """Count one round; the first one's pass is the prefill."""
    if not row["round"]:
        text.prefill = row["seconds"]["verify"]
        text.seconds -= text.prefill
    text.rounds += 1
    text.drafting += row["drafted"] > 0
    for phase in PHASES:
        text.own[phase] += row["seconds"][phase]


def ratios(texts: Texts, policy: str, other: str) -> tuple[float, float, float]:
    """Seconds a token of `other` over those of `policy`, and the middle 95 % over resampled cases."""
    every = [list(mine.values()) for mine in texts.values()]
    cases = len(every[0])
    weights = np.vstack([np.ones(cases), resampled(cases)])  # the first row: each case once

    def total(key: str, of: Sequence[list[Text]]) -> Real:
        return sum((weights @ np.array([getattr(text, key) for text in mine]) for mine in of), np.zeros(1))

    prefill = total("prefill", every) / total("tokens", every)
    mine, its = (
        prefill + total("seconds", [found]) / total("tokens", [found])
        for found in (list(texts[policy].values()), list(texts[other].values()))
    )
    found = its / mine
    return float(found[0]), *(middle(found[1:]) if cases >= FEWEST else (np.nan, np.nan))


def comparison(texts: Texts, policy: str) -> Iterator[str]:
    """One row a category, then all of them: against each other method, the fastest of all texts first."""
    others = [method for method in texts if method != policy]
    others.sort(key=lambda other: ratios(texts, policy, other)[0])
    yield from heading("category (texts)", *(f"against `{other}`" for other in others)).splitlines()
    categories = dict.fromkeys(text.category for text in texts[policy].values())
    for name in [*categories, "all"]:
        of = {
            method: {at: text for at, text in mine.items() if name in (text.category, "all")}
            for method, mine in texts.items()
        }
        cells = [cell(*ratios(of, policy, other)) for other in others]
        yield table_row(f"{name} ({len(of[policy])})", *cells)


def own_time(texts: Texts) -> Iterator[str]:
    """Return each method's own time in a round, on average, and how often it drafts."""
    yield from heading("method", "rounds", "drafting", "tokens a round", *PHASES).splitlines()
    for method, mine in texts.items():
        rounds = sum(text.rounds for text in mine.values())
        drafting = sum(text.drafting for text in mine.values()) / rounds
        tokens = sum(text.tokens for text in mine.values()) / rounds
        spent = [1e6 * sum(text.own[phase] for text in mine.values()) / rounds for phase in PHASES]
        cells = f"{drafting:.2f}", f"{tokens:.2f}", *(f"{each:.0f}" for each in spent)
        yield table_row(f"`{method}`", rounds, *cells)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--policy", default="auto")
    args = parser.parse_args()
    texts = read(args.runs)
    if args.policy not in texts:
        parser.error(f"--policy {args.policy}: choose from {', '.join(texts)}")
    for lines in (comparison(texts, args.policy), [""], own_time(texts)):
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    start(main)
