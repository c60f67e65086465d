"""`draftwise doctor`: machine, versions, what is missing, and what is broken."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from draftwise.models.zoo import INSTALL

from .progress import waiting
from .show import Result, line, table


def doctor() -> Result:
    """Check the machine and the installation. The exit status is 1 if something is broken.

    Examples:
    draftwise doctor
    draftwise doctor --json
    """
    with waiting("checking"):
        from draftwise.measure.checkup import checkup

        facts = checkup()
    return Result(facts, partial(_print, facts), status=1 if facts["broken"] else 0)


def _print(facts: dict[str, Any]) -> None:
    table(None, [[name, text] for name, text in rows(facts)], prose=True)
    print()
    for broken in facts["broken"]:
        line(f"BROKEN: {broken}")
    if not facts["broken"]:
        line("Nothing is broken.")


def some(names: list[str]) -> str:
    """Three names at most, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def threads(number: int | None, load: dict[str, Any]) -> str:
    """How many there are, why, and what to do where others are in their way."""
    text = f"{number or 'unknown'} by {load['fixed'] or 'PyTorch'}"
    if not number or load["room"] is None or load["room"] >= number:
        return text
    why = f"while others use {load['others']:.1f} cores"
    if load["fixed"]:
        return f"{text}, too many {why}: unset it, or set it to {load['room']}"
    return f"{text}, of which models get {load['room']} {why}"


def remedy(extra: str) -> str:
    """Return the command that installs what an extra lacks; the bundled models are in no registry."""
    return INSTALL if extra == "zoo" else f"pip install 'draftwise[{extra}]'"


def rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    machine, load = facts["machine"], facts["load"]
    yield "CPU", machine["cpu"]
    limit = machine["cpu_limit"]
    yield (
        "cores",
        f"{machine['cores']} usable" + (f", limited to {limit:g} by a control group" if limit else ""),
    )
    yield "threads", threads(machine["threads"], load)
    yield "instructions", ", ".join([machine["instructions"] or "unknown", *machine["features"]])
    yield "memory", f"{machine['memory_gb']} GiB"
    yield "compiler", machine["compiler"] or "none: TorchInductor cannot compile; install g++ or clang"
    yield "our kernels", ", ".join(machine["kernels"]) or "none: PyTorch computes everything"
    slower = "Python: slower; a compiler or Python's header files (python3-dev) are missing"
    yield "lookups", "indices in " + ("C++" if machine["lookups"] == "C++" else slower)
    yield "GPU", machine["gpu"] or "none"
    yield "system", machine["system"]
    others = "" if load["others"] is None else f", others use {load['others']:.2f} cores"
    yield "load", f"{load['average']}{others}: {'quiet' if load['quiet'] else 'busy, so timings mean little'}"
    yield from facts["versions"].items()
    if engine := facts["llamacpp"]:
        yield "llama.cpp", f"llama-cpp-python {engine['version']}: {', '.join(engine['features'])}"
        if engine["repacked"]:
            yield "", f"without repacked weights: {engine['repacked']}"
    for extra, missing in facts["extras"].items():
        yield (
            f"[{extra}]",
            f"missing {some(missing)}: {remedy(extra)}" if missing else "complete",
        )
    for name, place in facts["caches"].items():
        yield f"cache of {name}", place
    zoo = facts["zoo"]
    yield "bundled models", f"{len(zoo['models'])} in {zoo['folder']}" if zoo["installed"] else zoo["remedy"]
