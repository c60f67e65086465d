"""Names under which drafters for a target are published: by family and size, or by publisher."""

from __future__ import annotations

import re
from collections.abc import Iterator

SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![\w])")
SIZES = (0.135, 0.36, 0.5, 0.6, 1.0, 1.5, 1.7, 3.0, 4.0, 7.0, 8.0)  # billions of parameters in use today
LARGEST = 0.25  # of the target's size: a larger drafter rarely pays
LLAMA = re.compile(r"(?:Meta-)?Llama-(\d(?:\.\d)?)-(\d+[Bb])(?:-(.+))?", re.IGNORECASE)


def size_of(name: str) -> float | None:
    """Billions of parameters by a model's name; None if the name has no size."""
    found = SIZE.search(name.rpartition("/")[2])
    return None if found is None else float(found[1]) * (1.0 if found[2] in "Bb" else 1e-3)


def smaller(name: str) -> list[str]:
    """Ids of smaller models of the same family: the same name with another size, the smallest first."""
    owner, _, model = name.rpartition("/")
    size, found = size_of(name), SIZE.search(model)
    if size is None or found is None or not owner:
        return []
    unit = found[2]
    sizes = [s for s in SIZES if s <= LARGEST * size]
    return [f"{owner}/{model[: found.start()]}{_written(s, unit)}{model[found.end() :]}" for s in sizes]


def heads(name: str) -> list[tuple[str, str]]:
    """(kind, id) of EAGLE and Medusa heads for this target, as their publishers name them."""
    owner, _, model = name.rpartition("/")
    if not owner:
        return []
    found = [("eagle", f"yuhuili/{kind}-{form}") for form in _forms(model) for kind in ("EAGLE3", "EAGLE")]
    found.append(("eagle", f"AngelSlim/{model}_eagle3"))
    found.append(("medusa", f"FasterDecoding/medusa-{model.lower()}"))
    return found


def _forms(model: str) -> Iterator[str]:
    """A model's name as EAGLE's authors write it: `Llama-3.1-8B-Instruct` is `LLaMA3.1-Instruct-8B`."""
    if match := LLAMA.fullmatch(model):
        version, size, variant = match.groups()
        yield "-".join(part for part in (f"LLaMA{version}", variant, size.upper()) if part)
    elif model.lower().startswith("vicuna-"):
        family, size, version = (*model.split("-"), "")[:3]
        yield "-".join(part for part in (family.title(), size.upper(), version) if part)
    else:
        yield model


def _written(size: float, unit: str) -> str:
    """A size as written in names: 0.5B, 7B, 135M."""
    if size < 0.5:
        return f"{1000 * size:g}{'M' if unit.isupper() else 'm'}"
    return f"{size:g}{'B' if unit in 'BM' else 'b'}"
