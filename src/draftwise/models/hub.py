"""Checks a model's name with one request to the hub: loading a name that does not exist would retry for a
minute."""

from __future__ import annotations

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
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        HfApi().model_info(name, timeout=SECONDS)
    except RepositoryNotFoundError:
        raise UserError(f"no folder {name!r} here, and no model of that name on the hub: {REMEDY}") from None
    except HfHubHTTPError:
        return  # the hub answers; loading will report other errors
    except Exception as error:  # of whatever library makes its requests
        raise UserError(
            f"no folder {name!r} here, and the hub cannot be asked ({error}): check the name and the network"
        ) from None  # its trace is a hundred lines of connections


@cache
def ask(name: str) -> tuple[bool | None, int | None]:
    """Whether the hub has this model, and its stated number of parameters; None if unknown."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None, None
    try:
        found = HfApi().model_info(name, timeout=SECONDS)
    except RepositoryNotFoundError:
        return False, None
    except HfHubHTTPError:
        return None, None  # the hub answers with another error
    except Exception:  # of whatever library makes its requests
        return None, None
    stated = getattr(found.safetensors, "total", None)
    return True, stated


def cached_models() -> dict[str, Path]:
    """The models downloaded before: for each id, the folder of its newest files."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return {}
    newest = {r.repo_id: max(r.revisions, key=lambda one: one.last_modified) for r in repos if r.revisions}
    kinds = {r.repo_id: r.repo_type for r in repos}
    return {name: one.snapshot_path for name, one in sorted(newest.items()) if kinds[name] == "model"}
