"""What the hub has: whether a model exists, and the names under which drafters for a target are published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..errors import UserError

SECONDS = 10.0  # timeout of the request
REMEDY = "check the name and your access to it, or name a local folder or zoo:target"


@cache
def look_up(name: str) -> None:
    """Check that the hub has this model; a downloaded model, or offline mode, needs no request.

    Raises:
        UserError: the hub cannot be reached, or has no such model.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or cached_folder(name):
        return
    is_there, _, reason = _request(name)
    if is_there is False:
        raise UserError(f"no folder {name!r} here, and no model of that name on the hub: {REMEDY}")
    if reason:
        raise UserError(
            f"no folder {name!r} here, and the hub cannot be asked ({reason}): check the name and the network"
        )


@cache
def ask(name: str) -> tuple[bool | None, int | None]:
    """Whether the hub has this model, and its stated number of parameters; None if unknown."""
    from huggingface_hub import constants

    return (None, None) if constants.HF_HUB_OFFLINE else _request(name)[:2]


def _request(name: str) -> tuple[bool | None, int | None, str]:
    """What `ask` returns, and why the hub cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, timeout=SECONDS)
    except RepositoryNotFoundError:
        return False, None, ""
    except HfHubHTTPError:
        return None, None, ""  # the hub answers; loading will report other errors
    except Exception as error:  # of whatever library makes its requests
        return None, None, str(error) or type(error).__name__
    return True, getattr(getattr(info, "safetensors", None), "total", None), ""


def cached_folder(name: str) -> Path | None:
    """The folder of a model that was downloaded before; None if it was not."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def cached_models() -> dict[str, Path]:
    """The models downloaded before: for each id, the folder of its newest files."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = [r for r in scan_cache_dir().repos if r.repo_type == "model" and r.revisions]
    except CacheNotFound:
        return {}
    newest = {r.repo_id: max(r.revisions, key=lambda one: one.last_modified) for r in repos}
    return {name: one.snapshot_path for name, one in sorted(newest.items())}


SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![\w])")
SIZES = (0.135, 0.36, 0.5, 0.6, 1.0, 1.5, 1.7, 3.0, 4.0, 7.0, 8.0)  # billions of parameters in use today
LARGEST = 0.25  # of the target's size: a larger drafter rarely pays
LLAMA = re.compile(r"(?:Meta-)?Llama-(\d(?:\.\d)?)-(\d+[Bb])(?:-(.+))?", re.IGNORECASE)


def size_of(name: str) -> float | None:
    match = SIZE.search(name.rpartition("/")[2])
    return None if match is None else float(match[1]) * (1.0 if match[2] in "Bb" else 1e-3)


def list_smaller(name: str) -> list[str]:
    """Return ids of smaller models of the family: the same name with another size, smallest first."""
    owner, _, model = name.rpartition("/")
    size, match = size_of(name), SIZE.search(model)
    if size is None or match is None or not owner:
        return []
    unit = match[2]
    sizes = [s for s in SIZES if s <= LARGEST * size]
    return [f"{owner}/{model[: match.start()]}{_written(s, unit)}{model[match.end() :]}" for s in sizes]


def list_heads(name: str) -> list[tuple[str, str]]:
    """Return (kind, id) of EAGLE and Medusa heads for this target, as their publishers name them."""
    owner, _, model = name.rpartition("/")
    if not owner:
        return []
    names = [("eagle", f"yuhuili/{kind}-{form}") for form in _forms(model) for kind in ("EAGLE3", "EAGLE")]
    names.append(("eagle", f"AngelSlim/{model}_eagle3"))
    names.append(("medusa", f"FasterDecoding/medusa-{model.lower()}"))
    return names


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
