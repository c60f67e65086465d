"""Costs of the parts of a round in seconds: measured, published, or assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...inputs import parse_json
from ..quiet import judge, split

FORMAT, VERSION = "draftwise-costs", 1
MEASURED = "measured"  # the source of costs measured by `draftwise trace`


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCosts:
    """Seconds of one drafter: `first` per draft, plus `step` per drafted token.

    `catch_up` is per token of the text (prompt included) that it had not read before the draft, and `grade`
    per pass that grades committed text, in addition to reading it.
    """

    first: float = 0.0
    step: float = 0.0
    catch_up: float = 0.0
    grade: float = 0.0

    def draft(self, drafted: int) -> float:
        """Seconds for a draft of `tokens` tokens."""
        return self.first + self.step * drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a target pass over 1, 2, ... tokens (`passes`), of every drafter, and of learning.

    Longer passes are extrapolated linearly from the last two. An unlisted drafter costs nothing if it looks
    tokens up (a name of `lookups` before any `?` or `:`), otherwise `others`; if `others` is None it is
    rejected. `learn` is the cost of one update of a policy that learns from all arms. The time of a pass
    never falls with more tokens. For measured costs, `machine` describes the machine, and `load` its use by
    other processes meanwhile, as in a benchmark's results.
    """

    passes: Sequence[float]
    drafters: Mapping[str, DrafterCosts] = field(default_factory=dict)
    others: DrafterCosts | None = field(default_factory=DrafterCosts)
    lookups: Sequence[str] = ("ngram", "suffix", "retrieval", "none")
    learn: float = 0.0
    name: str = ""
    source: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    load: Sequence[Mapping[str, Any]] = ()

    def target(self, tokens: int) -> float:
        """Seconds of a pass over `tokens` tokens, the last committed one included."""
        known = self.passes
        if tokens <= len(known):
            return known[tokens - 1]
        slope = known[-1] - known[-2] if len(known) > 1 else 0.0
        return known[-1] + slope * (tokens - len(known))

    def of(self, drafter: str) -> DrafterCosts:
        """The costs of one drafter.

        Raises:
            UserError: its cost is unknown.
        """
        if drafter in self.drafters:
            return self.drafters[drafter]
        if drafter.partition("?")[0].partition(":")[0] in self.lookups:
            return DrafterCosts()
        if self.others is None:
            raise UserError(
                f"these costs name {', '.join(self.drafters) or 'no drafter'} and not {drafter!r}: "
                "add it under `drafters`, or give `others`"
            )
        return self.others


def profiles() -> list[str]:
    """The names of the cost profiles that come with the package."""
    folder = files(__package__) / "profiles"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))


def read_costs(text: str) -> Costs:
    """Costs by the name of a profile, from a file, or as `c=0.05`.

    `c=0.05` means that a target pass takes 1 second whatever its length, and a model drafter's token 0.05:
    the cost coefficient of Leviathan et al. 2023, for any pair of models with a known ratio.

    Raises:
        UserError: no such profile or file, or a damaged file.
    """
    if text.startswith("c="):
        return Costs(
            passes=(1.0,), others=DrafterCosts(step=_seconds("c", text[2:])), name=text, source="supposed"
        )
    bundled = files(__package__) / "profiles" / f"{text}.json"
    path = bundled if text in profiles() else Path(text).expanduser()
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return _costs(found)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or "not readable"
        raise UserError(
            f"cannot read the costs {text!r}: {reason.splitlines()[0]}; give a costs.json of a trace, "
            f"c=NUMBER, or choose from {', '.join(profiles())}"
        ) from None


def busy(costs: Costs) -> list[str] | None:
    """Why the machine was not quiet while these costs were measured.

    None if that is unknown, or if they were not measured.
    """
    if costs.source != MEASURED or not costs.load:
        return None
    return judge(*split(costs.load), int(costs.machine.get("cores") or 1))


def as_json(costs: Costs) -> dict[str, Any]:
    """Costs as written to a file."""
    return {"format": FORMAT, "version": VERSION, **asdict(costs)}


def rising(values: Sequence[float]) -> list[float]:
    """The closest non-decreasing numbers to `values` in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pool = (value, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1])
        pools.append(pool)
    return [total / n for total, n in pools for _ in range(n)]


def _costs(found: Any) -> Costs:
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"it is no {FORMAT} of version {VERSION}")
    known = {f.name for f in fields(Costs)}
    if unknown := found.keys() - known - {"format", "version"}:
        raise ValueError(f"{sorted(unknown)[0]!r} is not known")
    given = {key: value for key, value in found.items() if key in known}
    passes = [_seconds("passes", x) for x in given.get("passes") or ()]
    if not passes or passes[0] <= 0.0:
        raise ValueError("passes: give the seconds of a target pass over 1, 2, ... tokens")
    if any(a > b for a, b in pairwise(passes)):
        raise ValueError("passes: a pass over more tokens is never shorter")
    drafters = {name: _drafter(costs) for name, costs in given.get("drafters", {}).items()}
    others = given.get("others")
    more = {
        "machine": dict(given.get("machine", {})),
        "load": tuple(map(_load, given.get("load", ()))),
        "others": None if others is None else _drafter(others),
        "learn": _seconds("learn", given.get("learn", 0.0)),
    }
    lists = {"passes": tuple(passes), "lookups": tuple(given.get("lookups", Costs(passes=(1.0,)).lookups))}
    return Costs(**given | lists | {"drafters": drafters} | more)


def _drafter(found: Mapping[str, Any]) -> DrafterCosts:
    return DrafterCosts(**{key: _seconds(key, value) for key, value in found.items()})


def _load(found: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: None if value is None else _seconds(key, value) for key, value in found.items()}


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name}={value!r}: give seconds") from None
    if not (isfinite(seconds) and seconds >= 0.0):
        raise UserError(f"{name}={value!r}: give seconds, 0 or more")
    return seconds
