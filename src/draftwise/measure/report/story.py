"""The content of a report: title, warnings, key figures, origin of the results, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import pluralize
from ..machine import split_load, used_by_others
from . import tables
from .pictures import PICTURES, SIMULATED, Missing, Picture
from .records import Results
from .style import save, styled

OPTIMUM = (
    "The least possible time over all choices of drafter and draft length at every position, the time of the "
    "fixed arm that is best in hindsight, and of DISCO's oracle, the best single drafter that drafts exactly "
    "the tokens that will be accepted. In brackets: the optimum divided by this time."
)
EXTRA = 'pip install "draftwise[report]"'

GLOSSARY: Mapping[str, str] = {
    "target": "The model that is made faster. Every token of the answer is one that it would have written.",
    "drafter": "A small model or a lookup that proposes the next tokens.",
    "draft length": "The number of tokens that a drafter proposes in a round.",
    "round": "One step of speculative decoding: a drafter proposes tokens, the target verifies them in one "
    "pass, and the accepted ones and one token of the target's own are added to the text.",
    "arm": "One choice of a policy: a drafter with a draft length or a stop rule, written "
    "`drafter:length~rule`, with a width (tokens beside each other) `drafter:lengthxwidth`, or `none`.",
    "policy": "What chooses the arm of each round. `auto` is the default policy.",
    "fixed arm": "A method with the same arm in every round.",
    "stop rule": "Ends a draft early, for example when the drafter is unsure of its next token.",
    "accepted": "Drafted tokens that the target confirmed.",
    "acceptance rate": "Accepted tokens divided by drafted tokens.",
    "block efficiency": "Tokens added to the text per round: the accepted ones and the target's own.",
    "plain decoding": "The target alone, one token per pass; the method `none`.",
    "speed-up": "Total time of plain decoding divided by that of the method, on the same prompts.",
    "95 % interval": "The middle 95 % of the speed-up over resampled prompts (bootstrap).",
    "mean of ratios": "The mean over prompts of tokens per second, divided by that of plain decoding.",
    "TTFT": "Time to first token: the mean over prompts, of texts that were decoded alone.",
    "TPOT": "Time per output token after the first ones, over all prompts.",
    "peer": "Another engine, measured on the same prompts.",
    "regret": "Rounds or time in excess of the best fixed arm in hindsight.",
    "optimum": "The least possible time over all choices of drafter and draft length at every position.",
    "oracle": "The method that takes the optimum; it knows the whole text in advance.",
}
UNSIMULATED = {
    "peer",
    "plain decoding",
    "speed-up",
    "95 % interval",
    "mean of ratios",
    "optimum",
    "oracle",
    "TTFT",
    "TPOT",
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as SVG, or the data that it lacks and the command that provides it."""

    picture: Picture
    svg: str = ""
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section, or of a part of one at level 3."""

    title: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Fold:
    """A table that the page shows on request."""

    title: str
    content: tables.Table


Block: TypeAlias = "Heading | Fold | Drawing | tables.Table | str | dict[str, str]"
"""A part of the report: a text is a paragraph, a dictionary has terms and their texts."""


@dataclass(frozen=True, slots=True)
class Story:
    """The text around the tables, and the pictures.

    Notes are (is good, text), facts (what, value, of what); `origin` has date, command, machine, versions.
    """

    title: str
    subtitle: str
    origin: dict[str, str]
    notes: Sequence[tuple[bool, str]]
    facts: Sequence[tuple[str, str, str]]
    drawings: Sequence[Drawing]

    def picture_blocks(self) -> list[Block]:
        """Return the pictures that have data, with the headings of their sections."""
        blocks = list[Block]()
        drawings = [one for one in self.drawings if one.svg]
        for section, group in groupby(drawings, lambda one: one.picture.section):
            blocks += [Heading(section), *group]
        return blocks


def result_blocks(results: Results) -> Iterator[Block]:
    """Yield the numbers of the results."""
    yield Heading("Results")
    if results.simulation:
        yield tables.policies(results.simulation)
        yield Heading("Each arm alone", 3)
        yield tables.simulated_arms(results.simulation)
    if results.rows:
        yield tables.methods(results.of())
        if len(results.categories) > 1:  # one alone has the same table
            yield from (Fold(name, tables.methods(results.of(name))) for name in results.categories)
    if results.optimum:
        yield from (Heading("The optimum", 3), OPTIMUM, tables.optimum(results.optimum))
    for size in results.larger:
        yield from (Heading(f"Batch size {size}", 3), tables.methods(results.of(batch=size)))
    if results.peers:
        yield from (Heading("Peers", 3), "Other engines, with the settings that each ran with.")
        yield tables.texts(("peer", "settings"), results.peers)
    if results.absent:
        yield from (Heading("Absent", 3), "Not measured, and therefore in no table or picture.")
        yield tables.texts(("method", "reason"), results.absent)


def closing_blocks(results: Results, story: Story) -> Iterator[Block]:
    """Yield what stands at the end: terms, settings, and the pictures without data."""
    yield Heading("Glossary")
    yield {term: text for term, text in GLOSSARY.items() if results.rows or term not in UNSIMULATED}
    yield Heading("Setting")
    titles = {"Settings": results.own_settings, "Machine": results.machine, "Load": _load(results)}
    for title, settings in titles.items():
        if settings:
            nested = {name: inner for name, inner in settings.items() if isinstance(inner, Mapping)}
            yield Heading(title, 3)
            yield tables.pairs({name: value for name, value in settings.items() if name not in nested})
            yield from (Fold(name, tables.pairs(inner)) for name, inner in nested.items())
    if missing := [(d.picture.title, d.missing, d.remedy) for d in story.drawings if not d.svg]:
        yield Heading("Pictures without data", 3)
        yield tables.texts(("picture", "missing data", "provided by"), missing)


def tell_story(results: Results, pictures: Path) -> Story:
    """Return the content of the report; writes the PNG files into the folder `pictures`."""
    drawings = _draw(results, pictures)
    return Story(
        title=_title(results),
        subtitle=_subtitle(results),
        origin=_origin(results),
        notes=_notes(results, drawings),
        facts=_facts(results),
        drawings=drawings,
    )


def _origin(results: Results) -> dict[str, str]:
    """When, how and where the results were made; what the folder does not say is left out."""
    machine, run = results.machine, results.run
    counts = [f"{key} {machine[key]}" for key in ("cores", "threads") if machine.get(key)]
    memory = f"{machine['memory_gb']} GB" if machine.get("memory_gb") else ""
    parts = (machine.get("cpu"), *counts, memory, machine.get("gpu"))
    versions = machine.get("versions") or {}
    origin = {
        "Date": str(run.get("date", "")),
        "Command": f"`{run['command']}`" if run.get("command") else "",
        "Machine of the costs" if results.is_replay else "Machine": ", ".join(
            str(part) for part in parts if part
        ),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: text for name, text in origin.items() if text}


def _load(results: Results) -> dict[str, Any]:
    """The machine's load in two lines."""
    starts, samples = split_load(results.load)
    averages = [start for start in starts if start is not None]
    load: dict[str, Any] = {"load at the start": averages} if averages else {}
    if used := used_by_others(samples):
        mean, peak = used
        load["cores used by others"] = f"{mean:.2f} on average, {peak:.2f} at most"
    return load


def _draw(results: Results, folder: Path) -> list[Drawing]:
    """Every picture whose data exists; none without matplotlib, which the report mentions."""
    pictures = [*(PICTURES if results.rows else ()), *(SIMULATED if results.simulation else ())]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [
            Drawing(picture, missing="matplotlib is not installed", remedy=f"`{EXTRA}`")
            for picture in pictures
        ]
    drawings = []
    with styled():
        for picture in pictures:
            try:
                drawings.append(Drawing(picture, save(picture.draw(results), folder, picture.name)))
            except Missing as missing:
                (folder / f"{picture.name}.png").unlink(missing_ok=True)  # of an earlier report
                drawings.append(Drawing(picture, missing=missing.what, remedy=missing.remedy))
    return drawings


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
        size = f"{pluralize(tokens, 'token')} per text, {pluralize(seeds, 'seed')}"
        return f"{size}. Simulated: no model was run."
    parts = [f"Target `{settings['target']}`"] if "target" in settings else []
    if drafters := settings.get("drafters"):
        parts.append(
            "drafters " + ", ".join(f"`{d}`" for d in ([drafters] if isinstance(drafters, str) else drafters))
        )
    prompts = max((row.prompts for row in results.of()), default=0)
    parts.append(f"{pluralize(prompts, 'prompt')}, {pluralize(len(results.of()), 'method')}")
    if results.batch > 1 or results.larger:
        parts.append(f"batch size {results.batch} unless another is named")
    if results.is_replay:
        parts.append(f"replayed from a trace, with times computed from {_costs(settings)}")
    return "; ".join(parts) + "."


def _costs(settings: Mapping[str, Any]) -> str:
    """The cost table behind the times of a replay."""
    costs = settings.get("costs")
    table = costs if isinstance(costs, Mapping) else {}
    if table.get("source") == "measured":
        return "the costs measured with the trace"
    return f"the cost profile `{table['name']}`, not measured" if table.get("name") else "its cost table"


def _notes(results: Results, drawings: Sequence[Drawing]) -> list[tuple[bool, str]]:
    notes = []
    if results.clean is True:
        when = "when the costs were measured" if results.is_replay else "before and during the run"
        notes.append((True, f"Clean run: the machine was idle {when}."))
    if results.clean is not True and (results.busy or results.clean is False):
        why = "; ".join(results.busy) or "the machine was busy"
        when = "when the costs were measured, " if results.is_replay and results.clean is False else ""
        whether = "Not" if results.clean is False else "Not known to be"
        notes.append((False, f"{whether} a clean run: {when}{why}. Do not quote these times."))
    same, compared = tables.share_identical(results)
    if compared and same < compared:
        notes.append((False, f"{compared - same} of {compared} texts differ from plain decoding's."))
    if results.absent:
        names = ", ".join(f"`{method}`" for method, _ in results.absent)
        notes.append((False, f"Absent from this run: {names}. The reasons are listed below."))
    notes += [(False, f"A doubt about {doubt}.") for doubt in results.doubts]
    if results.left_out:
        left_out = pluralize(len(results.left_out), "prompt")
        notes.append((False, f"Left out: {left_out}, such as {results.left_out[0]}."))
    if drawings and not any(d.svg for d in drawings) and "matplotlib" in drawings[0].missing:
        notes.append((False, f"No pictures: matplotlib is not installed. Install it with `{EXTRA}`."))
    return notes


def _facts(results: Results) -> list[tuple[str, str, str]]:
    facts = []
    measured = [row for row in results.kinds("adaptive", "fixed", "peer") if row.speedup == row.speedup]
    kinds = {"fastest adaptive policy": "adaptive", "fastest fixed arm": "fixed", "fastest peer": "peer"}
    for what, kind in kinds.items():
        if row := next((row for row in measured if row.kind == kind), None):
            facts.append((what, f"{row.speedup:.2f} \N{MULTIPLICATION SIGN}", row.name))
    if results.rows:
        slow = sum(row.speedup < 1.0 for row in measured)
        facts.append(
            ("slower than plain decoding", f"{slow} of {len(measured)}", "methods, over all prompts")
        )
    same, compared = tables.share_identical(results)
    if compared:
        facts.append(("identical to plain decoding", f"{same} of {compared}", "texts of Draftwise's methods"))
    if results.simulation:
        table = tables.policies(results.simulation)
        facts.append(("least regret (seconds)", table.rows[0][3].text, table.rows[0][0].text))
    return facts
