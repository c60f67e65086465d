"""Files of classifiers: tensors and what they say of themselves, in Safetensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...errors import UserError
from ...inputs import expanded
from ...writing import replacing

Classifier = TypeVar("Classifier")


def save(path: Path, tensors: Mapping[str, Any], said: Mapping[str, str]) -> None:
    """Write a file, under another name first, so that it is never half there."""
    from safetensors.numpy import save as packed

    with replacing(path) as part:
        part.write_bytes(packed(dict(tensors), metadata=dict(said)))


def load(
    path: str | os.PathLike[str],
    make: Callable[[Mapping[str, str], Mapping[str, Any]], Classifier],
    said: Mapping[str, str],
    what: str,
    remedy: str,
) -> Classifier:
    """Return what `make` makes of a file that says this of itself.

    Raises:
        UserError: no such file, one that says something else, or a damaged one; the message names `what`, the
            file and the `remedy`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if not (file := expanded(path)).is_file():
            raise UserError("there is no such file")
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
            if (words := [metadata.get(key, "") for key in said]) != [*said.values()]:
                raise UserError(f"it says {' '.join(words).strip() or 'nothing'} of itself")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return make(metadata, tensors)
    except (UserError, SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0].rstrip(".")
        raise UserError(f"cannot use the {what} {os.fspath(path)!r}: {reason}; {remedy}") from None
