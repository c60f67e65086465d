"""What a report says: title, verdict, the few numbers that matter, and the pictures that could be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..quiet import split, used_by_others
from . import tables
from .pictures import PICTURES, SIMULATED, Missing, Picture
from .records import Results
from .style import save, styled

OPTIMUM = (
    "The least possible time over all choices of drafter and length at every position, the fixed arm that is "
    "best in hindsight, and drafting exactly what will be accepted with the best single drafter. In brackets "
    "the share of the optimum."
)
EXTRA = 'pip install "draftwise[report]"'


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture as SVG, or what is missing for it and what gives that."""

    picture: Picture
    svg: str = ""
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What stands above the tables, and the pictures. Notes are (good, text), facts (what, value, whose)."""

    title: str
    subtitle: str
    notes: Sequence[tuple[bool, str]]
    facts: Sequence[tuple[str, str, str]]
    drawn: Sequence[Drawn]
    load: Mapping[str, Any]


def tell(results: Results, pictures: Path) -> Story:
    """The story of the results; draws the PNGs into the folder `pictures`."""
    drawn = draw(results, pictures)
    notes, facts = _notes(results, drawn), _facts(results)
    return Story(_title(results), _subtitle(results), notes, facts, drawn, _load(results))


def _load(results: Results) -> dict[str, Any]:
    """The samples of the machine's load in two lines: a run has as many as units of work."""
    starts, samples = split(results.load)
    known = [start for start in starts if start is not None]
    found: dict[str, Any] = {"load at the start": known} if known else {}
    if used := used_by_others(samples):
        mean, peak = used
        found["cores used by others"] = f"{mean:.2f} on average, {peak:.2f} at most"
    return found


def draw(results: Results, folder: Path) -> list[Drawn]:
    """Every picture whose data is there; without matplotlib none, and the report says so."""
    wanted = [*(PICTURES if results.rows else ()), *(SIMULATED if results.simulation else ())]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [
            Drawn(picture, missing="matplotlib is not installed", remedy=f"`{EXTRA}`") for picture in wanted
        ]
    with styled():
        return [_drawn(picture, results, folder) for picture in wanted]


def _drawn(picture: Picture, results: Results, folder: Path) -> Drawn:
    try:
        return Drawn(picture, save(picture.draw(results), folder, picture.name))
    except Missing as missing:
        (folder / f"{picture.name}.png").unlink(missing_ok=True)  # of an earlier report
        return Drawn(picture, missing=missing.what, remedy=missing.remedy)


def _title(results: Results) -> str:
    if not results.rows:
        return "Simulated learning"
    workload = results.settings.get("workload")
    return (
        f"Speculative decoding on {Path(str(workload)).name}"
        if workload
        else "Speculative decoding, measured"
    )


def _subtitle(results: Results) -> str:
    settings = results.settings
    if not results.rows:
        tokens, seeds = settings.get("tokens", "?"), settings.get("seeds", "?")
        return f"{tokens} tokens a text, {seeds} seeds. No model was run."
    parts = [f"Target `{settings['target']}`"] if "target" in settings else []
    if drafters := settings.get("drafters"):
        parts.append(
            "drafters " + ", ".join(f"`{d}`" for d in ([drafters] if isinstance(drafters, str) else drafters))
        )
    prompts = max((row.prompts for row in results.of()), default=0)
    parts.append(f"{prompts} prompts, {len(results.of())} methods")
    if results.batch > 1 or results.larger:
        parts.append(f"batch size {results.batch} unless said otherwise")
    if any(row.engine == "replay" for row in results.rows):
        parts.append(f"replayed from a trace: times are computed from {_costs(settings)}")
    return "; ".join(parts) + "."


def _costs(settings: Mapping[str, Any]) -> str:
    """Which costs a replay's times stand on."""
    costs = settings.get("costs")
    found = costs if isinstance(costs, Mapping) else {}
    if found.get("source") == "measured":
        return "costs that were measured with a trace"
    return f"the costs `{found['name']}`, which were not measured here" if found.get("name") else "its costs"


def _notes(results: Results, drawn: Sequence[Drawn]) -> list[tuple[bool, str]]:
    notes = []
    replayed = any(row.engine == "replay" for row in results.rows)
    if results.clean is True:
        when = "when the costs were measured" if replayed else "at the start and throughout"
        notes.append((True, f"Clean run: the machine was quiet {when}."))
    if results.clean is not True and (results.busy or results.clean is False):
        why = "; ".join(results.busy) or "the machine was busy"
        when = "when the costs were measured, " if replayed and results.clean is False else ""
        whether = "Not" if results.clean is False else "Not known to be"
        notes.append((False, f"{whether} a clean run: {when}{why}. Do not quote these times."))
    same, compared = tables.share_identical(results)
    if compared and same < compared:
        notes.append((False, f"{compared - same} of {compared} texts differ from plain decoding's."))
    if results.absent:
        names = ", ".join(f"`{method}`" for method, _ in results.absent)
        notes.append((False, f"Absent from this run: {names}. The reasons stand below."))
    if results.left_out:
        notes.append((False, f"Left out: {len(results.left_out)} prompts, such as {results.left_out[0]}."))
    if drawn and not any(d.svg for d in drawn) and "matplotlib" in drawn[0].missing:
        notes.append((False, f"No pictures: matplotlib is not installed. `{EXTRA}` gives them."))
    return notes


def _facts(results: Results) -> list[tuple[str, str, str]]:
    facts = []
    kinds = {"best that chooses": "adaptive", "best of one arm": "fixed", "best of other engines": "peer"}
    for what, kind in kinds.items():
        if row := tables.best(results, kind):
            facts.append((what, f"{row.speedup:.2f} \N{MULTIPLICATION SIGN}", row.name))
    slow = [row for row in results.kinds("adaptive", "fixed", "peer") if row.speedup < 1.0]
    if results.rows:
        compared = len([r for r in results.kinds("adaptive", "fixed", "peer") if r.speedup == r.speedup])
        facts.append(
            ("slower than plain decoding", f"{len(slow)} of {compared}", "methods, over all prompts")
        )
    same, compared = tables.share_identical(results)
    if compared:
        facts.append(
            ("same text as plain decoding", f"{same} of {compared}", "texts of Draftwise's own methods")
        )
    if results.simulation:
        table = tables.policies(results.simulation)
        facts.append(("least regret in seconds", table.rows[0][3].text, table.rows[0][0].text))
    return facts
