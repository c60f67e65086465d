"""`draftwise models`: the bundled models."""

from __future__ import annotations

from dataclasses import asdict

from draftwise.models import list_zoo

from . import show
from .options import AsJson


def models(as_json: AsJson = False) -> None:
    """List the bundled models; any folder or Hugging Face id of a causal language model works too."""
    zoo = list_zoo()
    if as_json:
        show.dump([asdict(model) for model in zoo])
        return
    rows = [[m.name, f"{m.parameters / 1e6:.1f}M", f"{m.layers} x {m.width}", m.description] for m in zoo]
    show.table(["model", "parameters", "layers x width", "what it is"], rows)
