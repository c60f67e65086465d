"""`draftwise suggest`: drafters that fit a target, what each costs in memory, and how to use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from draftwise.errors import UserError
from draftwise.models.zoo import PREFIX, list_parts, list_zoo
from draftwise.registry.entries import describe

from . import show
from .lists import PROMPT
from .options import AsJson, complete, drafters_of
from .progress import waiting
from .show import line

if TYPE_CHECKING:
    from draftwise.models.memory import Footprint

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
    as_json: AsJson = False,
) -> None:
    """List drafters that fit a target: lookups, models with its tokenizer, heads and smaller relatives.

    Memory is read from configurations and headers of weights; no model is loaded. Where there is a network,
    the hub is asked once for each published name; otherwise such names are marked as not checked.

    Examples:
    draftwise suggest zoo:target
    draftwise suggest Qwen/Qwen3-8B --json
    """
    with waiting("looking for drafters"):
        name, folder = locate_target(model)
        found = [*without_weights(model), *own_layer(model, folder)]
        found += [*local(model, folder), *published(model, name, model if folder is None else "")]
    if as_json:
        show.dump({"target": model, "name": name, "drafters": [asdict(one) for one in found]})
        return
    _print(found)
    print()
    if folder is None:
        line(f"{model} is not downloaded, so its tokenizer is not compared with that of local models.")
    elif not name and not model.startswith(PREFIX):
        line("The folder does not name its model; give its Hugging Face id for published drafters.")
    start = drafters_of(model, None)
    mine = next((one.drafter for one in found if one.status == HERE and one.weight_bytes), "")
    if mine and not any(one.drafter in start and one.weight_bytes for one in found):
        start = [mine, *start]
    line(f"Start with: --drafters {','.join(start)}")


def _print(found: Sequence[Suggestion]) -> None:
    """One block for each drafter; names that could not be checked on a line each."""
    for one in found:
        if one.status != UNCHECKED:
            line(f"{one.drafter} ({one.status})")
            line(f"    {one.why}; {memory(one)}", indent="    ")
            print(f"    {one.command}")
    unchecked = [one for one in found if one.status == UNCHECKED]
    if unchecked:
        print()
        line("Names that publishers may have used, not checked because there is no network:")
        for one in unchecked:
            print(f"    {one.drafter}")


def locate_target(model: str) -> tuple[str, Path | None]:
    """The name that publishers know the target by, and its folder if its files are here.

    Raises:
        UserError: nothing can have this name, or the folder holds no model.
    """
    from draftwise.models.hub import cached_models
    from draftwise.models.load import resolve
    from draftwise.models.memory import read_config

    place = resolve(model)
    if not Path(place).is_dir():
        if (downloaded := cached_models().get(model)) is None:
            look_up(model)
        return model, downloaded
    folder = Path(place)
    if not (folder / "config.json").is_file():
        raise UserError(f"model {model!r} has no config.json: name a model's folder or its Hugging Face id")
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"model {model!r}: config.json cannot be read ({error}); download it again") from None
    return ("" if model.startswith(PREFIX) else str(config.get("_name_or_path") or "")), folder


def look_up(model: str) -> None:
    """Check that the hub has the target; where it cannot be asked, a publisher in the name is enough.

    Raises:
        UserError: it has none, or nothing is known of a name without a publisher.
    """
    from draftwise.models.hub import ask, list_heads

    there, _ = ask(model)
    if there is False:
        raise UserError(
            f"no folder {model!r} here, and no model of that name on the hub: name a folder, a Hugging Face "
            "id or zoo:target"
        )
    if there is None and not list_heads(model):
        raise UserError(
            f"no folder {model!r} here, and the hub cannot be asked: check the name and the network, or name "
            "a folder or zoo:target"
        )


def without_weights(target: str) -> Iterator[Suggestion]:
    """The registered drafters that load nothing."""
    for one in describe("drafters"):
        if one.name not in ("none", "mtp") and not one.argument:
            yield _suggestion(target, one.name, one.help.rstrip("."), HERE, 0, 0)
    build = ["draftwise", "datastore", "build", "TEXTS", "--tokenizer", target, "--out", "my-datastore"]
    why = "Looks text up in a datastore built from texts like those to write"
    yield Suggestion("retrieval:my-datastore", why, BUILD, 0, 0, shlex.join(build))


def own_layer(target: str, folder: Path | None) -> Iterator[Suggestion]:
    """The layer of multi-token prediction in the target's own files, if there is one."""
    from draftwise.models.memory import footprint, is_mtp_tensor, read_config

    if folder is None:
        return
    config = read_config(folder)
    depth = config.get("text_config", config).get("num_hidden_layers")
    if isinstance(depth, int):
        cost = footprint(folder, lambda name: is_mtp_tensor(name, depth))
        if cost.weight_bytes:
            why = "Drafts with the layer of multi-token prediction in the target's own files"
            yield _suggestion(target, "mtp", why, HERE, cost.weight_bytes, None)


def local(target: str, folder: Path | None) -> Iterator[Suggestion]:
    """Models and heads on this machine that fit: the zoo, the hub's cache, and folders beside the target."""
    from draftwise.models.memory import footprint

    if folder is None:
        return
    mine, size = vocabulary(folder), footprint(folder).parameters
    for name, place in candidates(folder).items():
        if place.resolve() == folder.resolve():
            continue
        if (head := kind_of_head(place, folder)) is not None:
            cost, why = footprint(place), f"{head} head with the target's hidden size and vocabulary"
            yield _suggestion(target, f"{head}:{name}", why, HERE, cost.weight_bytes, cost.cache_bytes)
        elif mine is not None and vocabulary(place) == mine:
            cost = footprint(place)
            if size is None or cost.parameters is None or cost.parameters < size:
                yield _suggestion(target, name, _same(cost, size), HERE, cost.weight_bytes, cost.cache_bytes)


def published(target: str, name: str, asked: str = "") -> Iterator[Suggestion]:
    """Heads and smaller models by the names that publishers use; with a network, those that exist.

    If the hub had no answer for the name that was `asked` of it before, it is asked for nothing more.
    """
    from draftwise.models.hub import ask, list_heads, list_smaller

    reached = not asked or ask(asked)[0] is not None
    named = [
        (f"{kind}:{one}", one, f"a published {kind} head by its usual name") for kind, one in list_heads(name)
    ]
    named += [(one, one, "a smaller model of the same family by its name") for one in list_smaller(name)]
    for drafter, one, why in named:
        there, parameters = ask(one) if reached else (None, None)
        reached = reached and there is not None
        if there is not False:
            status = UNCHECKED if there is None else THERE
            stored = None if parameters is None else 2 * parameters
            yield _suggestion(target, drafter, why, status, stored, None)


def candidates(folder: Path) -> dict[str, Path]:
    """Every model on this machine by the name that loads it."""
    from draftwise.models.hub import cached_models

    bundled = {one.name: Path(one.path) for one in (*list_zoo(), *list_parts())}
    inside = {place.resolve() for place in bundled.values()}
    beside = {
        str(place): place
        for place in sorted(folder.resolve().parent.iterdir())
        if (place / "config.json").is_file() and place.resolve() not in inside
    }
    return bundled | cached_models() | beside


def vocabulary(folder: Path) -> str | None:
    """The fingerprint of a folder's tokenizer; None if it has no tokenizer.json."""
    from tokenizers import Tokenizer

    from draftwise.drafters.lookup.datastore import tokenizer_fingerprint

    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    return tokenizer_fingerprint(Tokenizer.from_file(str(file)).get_vocab())


def kind_of_head(place: Path, target: Path) -> str | None:
    """`eagle` or `medusa` if the folder holds a head for models of the target's sizes."""
    from draftwise.models.memory import read_config

    mine, theirs = read_config(target), read_config(place)
    made = " ".join(map(str, theirs.get("architectures") or ())).lower()
    theirs = {**theirs, **(theirs.get("transformer_layer_config") or {})}
    kinds = {"eagle": "eagle", "medusa": "medusa", "dflash": "eagle"}
    kind = next((name for found, name in kinds.items() if found in made), None)
    fits = all(mine.get(key) == theirs.get(key) for key in ("hidden_size", "vocab_size"))
    return kind if fits else None


def memory(one: Suggestion) -> str:
    """What a drafter needs, in words."""
    if one.weight_bytes == 0:
        return "no weights"
    weights = "weights: unknown" if one.weight_bytes is None else f"weights: {_megabytes(one.weight_bytes)}"
    cache = one.cache_bytes_per_1000_tokens
    return weights + ("" if cache is None else f", KV cache: {_megabytes(cache)} for 1,000 tokens")


def _same(cost: Footprint, size: int | None) -> str:
    if cost.parameters is None or size is None:
        return "the target's tokenizer"
    return f"the target's tokenizer, {100 * cost.parameters / size:.0f} % of its parameters"


def _suggestion(
    target: str, drafter: str, why: str, status: str, weights: int | None, cache: int | None
) -> Suggestion:
    parts = ["draftwise", "generate", PROMPT, "--target", target, "--drafters", drafter]
    return Suggestion(drafter, why, status, weights, cache, shlex.join(parts))


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
