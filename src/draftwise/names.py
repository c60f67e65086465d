"""Whether names mean anything: asked before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import registry
from .errors import UserError
from .models.gguf.library import check
from .models.gguf.names import gguf_spec
from .models.load import locate
from .models.zoo import list_zoo
from .policies.catalogue import spec_of


def check_names(drafters: Any, policy: str = "") -> None:
    """See that every name means something, before anything is loaded.

    Raises:
        UserError: one does not; says which was meant, if one is near.
    """
    if policy:
        spec_of(policy)
    known = registry.names("drafters")
    everyone = [*known, *(model.name for model in list_zoo())]
    for asked in registry.listed(drafters, "drafters"):
        if not isinstance(asked, str) or not asked.strip():
            continue  # a loaded model, or refused where it is its turn
        if (file := gguf_spec(asked)) is not None:
            check(file.path)
            continue
        spec, name = registry.parse(asked), asked.strip().partition("?")[0]
        path = spec.path if spec.name == "lm" else name
        if (spec.name in known and spec.name != "lm") or Path(path).expanduser().is_dir():
            continue
        mistyped = spec.name not in ("lm", "zoo") and "/" not in spec.name
        if mistyped and (hint := registry.meant(spec.name, everyone)):
            raise UserError(f"unknown drafter {asked!r}: {hint}name a model as lm:{name}")
        try:
            locate(path)
        except UserError as error:
            if ":" in path or "/" in path or "\\" in path:
                raise
            choices = ", ".join(known)
            raise UserError(
                f"unknown drafter {asked!r}: choose from {choices}, or name a model ({error})"
            ) from None
