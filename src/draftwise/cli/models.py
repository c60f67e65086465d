"""`draftwise models`: the bundled models."""

from __future__ import annotations

from dataclasses import asdict

from draftwise.models.load import ZooModel, list_parts, list_zoo

from . import show
from .options import AsJson


def models(as_json: AsJson = False) -> None:
    """List the bundled models; any folder or Hugging Face id of a causal language model works too."""
    zoo = [*list_zoo(), *list_parts()]
    if as_json:
        show.dump([asdict(model) for model in zoo])
        return
    rows = [[m.name, _size(m.parameters), _shape(m), m.description] for m in zoo]
    show.table(["model", "parameters", "layers x width", "what it is"], rows)


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:.1f}M" if parameters >= 1e5 else f"{parameters:,}"


def _shape(model: ZooModel) -> str:
    return f"{model.layers} x {model.width}" if model.layers else ""
