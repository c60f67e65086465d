"""One case: a shape in one precision and mode. Its passes and drafts are timed and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from draftwise.core.roles import Drafter, Target
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.inputs import parse_json
from draftwise.measure.machine import Meter, describe, load_average
from draftwise.measure.trace.costs import MEASURED, Costs, DrafterCosts, as_json, rising
from draftwise.measure.trace.files import write_json
from draftwise.measure.trace.measure import fit
from draftwise.models.compiled import compile_rows, states
from draftwise.models.weights.packed import arrange
from draftwise.targets.hf import HFTarget
from studies.speed.shapes.limits import Limits, limits
from studies.speed.shapes.models import SHAPES, model, weights
from studies.speed.shapes.passes import WIDTHS, Drafted, time_drafts, time_passes

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOOKUPS = ("ngram", "suffix")


class Pair(NamedTuple):
    """A target and a drafter, ready to run; numbers and bytes of the weights of each."""

    target: Target
    drafter: Drafter
    weights: tuple[int, int]
    drafter_weights: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Case:
    """A shape, the precision of its weights, and how passes run."""

    shape: str
    precision: str
    mode: str

    @property
    def name(self) -> str:
        """As on the command line, and the name of its files."""
        return f"{self.shape}.{self.precision}.{self.mode}"

    @classmethod
    def of(cls, name: str) -> Case:
        """The case of this name.

        Raises:
            UserError: no such shape, precision or mode.
        """
        shape, _, rest = name.rpartition(".")[0].rpartition(".")
        case = cls(shape, rest, name.rpartition(".")[2])
        known = list(SHAPES), list(PRECISIONS), list(MODES)
        for given, names in zip((case.shape, case.precision, case.mode), known, strict=True):
            if given not in names:
                raise UserError(f"case {name!r}: {given!r} is none of {', '.join(names)}")
        return case


def eager(case: Case) -> Pair:
    """Both models in Transformers as a user loads them, with weights packed where that is faster."""
    dtype, shape = PRECISIONS[case.precision], SHAPES[case.shape]
    large, small = model(shape, dtype), model(shape, dtype, drafter=True)
    sizes = weights(large), weights(small)
    for one in (large, small):
        arrange(one, "auto")
    target = HFTarget(large, probe=False)
    return Pair(target, LMDrafter(small, target.vocab_size, probe=False), *sizes)


def compiled(case: Case) -> Pair:
    """The same models, their passes compiled.

    Raises:
        UserError: a model stays eager.
    """
    pair = eager(case)
    parts: tuple[Any, ...] = (pair.target, pair.drafter)
    for part in parts:
        compile_rows(part.rows, "on")
        if part.rows.graph is None:
            raise UserError(f"case {case.name}: {states({case.shape: part})[case.shape]}")
    return pair


MODES: dict[str, Callable[[Case], Pair]] = {"eager": eager, "compiled": compiled}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: widths in tokens, length of the context, repeats at most, seconds for each of
    passes and drafts, and the bytes and side of the machine's limits."""

    widths: Sequence[int] = WIDTHS
    context: int = 384
    repeats: int = 7
    budget: float = 20.0
    read: int = 1 << 30
    side: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured of one case, as its file has it; seconds throughout."""

    case: Case
    weights: tuple[int, int]
    drafter_weights: tuple[int, int]
    context: int
    passes: dict[int, list[float]]
    drafts: list[Drafted]
    limits: Limits
    machine: dict[str, Any] = field(default_factory=dict)
    load: list[dict[str, Any]] = field(default_factory=list)

    def median(self, width: int) -> float:
        """The median seconds of a pass."""
        return median(self.passes[width])

    @property
    def spread(self) -> float:
        """The largest median absolute deviation of any width, as a share of its median."""
        return max(
            median(abs(x - self.median(width)) for x in times) / self.median(width)
            for width, times in self.passes.items()
        )

    def limit(self, width: int) -> float:
        """What a pass could cost: the time to read its weights, or to multiply by them, whichever is more."""
        count, size = self.weights
        return float(max(size / self.limits["all"], 2 * count * width / self.limits["flops"]))

    @property
    def drafter(self) -> DrafterCosts:
        """The drafter's costs by draft and by token."""
        return fit(self.drafts, grade=self._grade(), reads=True)

    def _grade(self) -> float:
        """Grading reads three tokens in a pass: like a draft of one token after three."""
        return median(seconds for drafted, behind, seconds in self.drafts if (drafted, behind) == (1, 3))

    def costs(self, drafter: str, most: int, lookups: dict[str, DrafterCosts]) -> Costs:
        """A table for replay, with passes over 1 to `most` tokens."""
        widths = sorted(self.passes)
        times = rising([self.median(width) for width in widths])
        return Costs(
            passes=[float(x) for x in np.interp(np.arange(1, most + 1), widths, times)],
            drafters={drafter: self.drafter, **lookups},
            others=None,
            name=self.case.name,
            source=MEASURED,
            machine=self.machine,
            load=self.load,
        )


def measured(case: Case, effort: Effort, out: Path, *, load: float | None = None) -> None:
    """Measure one case and write `passes/CASE.json`.

    `load` is the load average before the first case: later, it is that of the cases before.
    """
    began, meter = load_average() if load is None else load, Meter()
    dtype = PRECISIONS[case.precision]
    before = limits(dtype, size=effort.read, side=effort.side)
    pair = MODES[case.mode](case)
    with torch.inference_mode():
        timed = time_passes(pair.target, effort.widths, effort.context, effort.repeats, budget=effort.budget)
        drafted = time_drafts(
            pair.drafter, pair.target.vocab_size, effort.context, effort.repeats, budget=effort.budget / 4
        )
    sizes = pair.weights, pair.drafter_weights
    del pair
    after = limits(dtype, size=effort.read, side=effort.side)
    found = {
        "case": case.name,
        "weights": sizes[0],
        "drafter_weights": sizes[1],
        "context": effort.context,
        "passes": {str(width): times for width, times in timed.items()},
        "drafts": drafted,
        "limits": {key: max(value, after[key]) for key, value in before.items()},
        "machine": describe(),
        "load": [{"start": began}, meter.sample()],
    }
    write_json(place(out, case), found)


def place(out: Path, case: Case) -> Path:
    """The file of a case."""
    folder = out / "passes"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{case.name}.json"


def read(out: Path) -> list[Found]:
    """All measured cases of a folder, in the order of shapes, precisions and modes.

    Raises:
        UserError: there is none, or a file is damaged.
    """
    found = []
    for path in sorted((out / "passes").glob("*.json")):
        try:
            known = parse_json(path.read_text(encoding="utf-8"))
            known["case"] = Case.of(known["case"])
            known["passes"] = {int(width): times for width, times in known["passes"].items()}
            known["drafts"] = [tuple(draft) for draft in known["drafts"]]
            found.append(Found(**known))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"cannot read {str(path)!r}: {error}; delete it and measure again") from None
    if not found:
        raise UserError(f"{str(out)!r} holds no measured case: run `measure` with this --out first")
    order = [list(names) for names in (SHAPES, PRECISIONS, MODES)]

    def rank(one: Found) -> tuple[int, ...]:
        parts = (one.case.shape, one.case.precision, one.case.mode)
        return tuple(names.index(part) for names, part in zip(order, parts, strict=True))

    return sorted(found, key=rank)


def tables(out: Path, found: Sequence[Found], drafter: str, most: int, like: Costs) -> dict[str, Costs]:
    """Write `costs/CASE.json` for each case, and return the tables; lookups cost as much as in `like`."""
    lookups = {name: costs for name, costs in like.drafters.items() if name.partition("?")[0] in LOOKUPS}
    (out / "costs").mkdir(parents=True, exist_ok=True)
    made = {}
    for one in found:
        made[one.case.name] = costs = one.costs(drafter, most, lookups)
        write_json(out / "costs" / f"{one.case.name}.json", as_json(costs))
    return made
