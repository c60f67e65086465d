"""The tuned baselines of the papers: a grid of options, measured on separate prompts, not on those of the
results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any
from urllib.parse import quote

from ... import registry
from ...errors import UserError

Grid = Mapping[str, Sequence[str]]

# The length of a static draft, and the threshold of every stop rule, in that rule's units.
GRIDS: Mapping[str, Grid] = {
    "static": {"length": ("1", "2", "3", "4", "5", "6", "8", "10", "12")},
    "max-confidence": {"threshold": ("0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")},
    "svip": {"threshold": ("0.2", "0.3", "0.4", "0.6", "0.8", "1.0", "1.2", "1.5")},
    "svip-difference": {"threshold": ("0.05", "0.1", "0.2", "0.3", "0.4", "0.6")},
    "logit-margin": {"threshold": ("0.05", "0.1", "0.2", "0.3", "0.5", "0.7", "0.9")},
    "adaedl": {"start": ("0.4", "0.6", "0.8"), "target": ("0.7", "0.8", "0.9", "0.95")},
    "hf-heuristic": {"start": ("2", "5", "10", "20")},
    "hf-threshold": {
        "refit": ("false",),
        "threshold": ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9"),
    },
    "disco": {"threshold": ("0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")},
    "specdecpp": {"threshold": ("0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")},
}


def candidates(policy: str, grid: Grid | None = None) -> list[str]:
    """The policy with every combination of its own grid and the given one, which comes first.

    Options already set in the policy's name stay unchanged.
    """
    spec = registry.parse(policy)
    fixed = dict(spec.options)
    merged = {**GRIDS.get(spec.name, {}), **(grid or {})}
    free = {name: values for name, values in merged.items() if name not in fixed}
    if not free:
        tunable = ", ".join(GRIDS)
        raise UserError(
            f"nothing to tune in {policy!r}: give --grid option=A,B; there are grids for {tunable}"
        )
    return [
        _text(spec.name, fixed | dict(zip(free, values, strict=True))) for values in product(*free.values())
    ]


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """A grid from texts of the form `option=A,B`, one per option."""
    grid = {}
    for text in texts:
        name, _, values = text.partition("=")
        grid[name.strip()] = [value.strip() for value in values.split(",")]
        if not name.strip() or not all(grid[name.strip()]):
            raise UserError(f"--grid {text!r}: write option=A,B")
    return grid


def best(tried: Sequence[str], results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of the fastest candidate: highest speedup over all prompts, at the smallest batch size."""
    rows = [row for row in results if row["category"] == "all" and row["method"] in tried]
    return max((row for row in rows if row["batch"] == rows[0]["batch"]), key=lambda row: row["speedup"])


def _text(name: str, options: Mapping[str, str]) -> str:
    return f"{name}?" + "&".join(f"{key}={quote(value, safe=':/,*.-')}" for key, value in options.items())
