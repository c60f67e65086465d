"""Merges several state files into one: what replicas have learned, as if one of them had seen all texts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.roles import Policy
from ..errors import UserError
from .file import StateFile, StateWarning, parse
from .learned import combine

NewPolicy = Callable[[str, Sequence[str]], Policy]
"""Builds a policy by its name, for drafters of these names."""


def merge(files: Sequence[str | Path], out: str | Path, *, new_policy: NewPolicy) -> dict[str, Any]:
    """Merge the state files of one policy, target and drafters, and write the result to `out`.

    What `out` holds is replaced; it may be one of the files. Each learned field is merged by the rule that it
    declares (see `learned`). Returns the policy's name and the files.

    Raises:
        UserError: fewer than two files, files of different policies, targets, drafters or arms, a policy
            with a learned field that declares no rule (a window, a race), or a file that cannot be read or
            written.
    """
    if len(files) < 2:
        raise UserError(f"merge needs at least two state files, and got {len(files)}: name all of them")
    places = [Path(file).resolve() for file in files]
    if twice := [file for file, place in zip(files, places, strict=True) if places.count(place) > 1]:
        raise UserError(f"{twice[0]} is named twice, and would count twice: name each file once")
    first = Path(files[0])
    header = _header(first)
    origin = {"name": header["policy"], "target": header["target"], "drafters": header["drafters"]}

    def state_file(path: str | Path) -> StateFile:
        try:
            policy = new_policy(header["policy"], list(header["drafters"]))
        except UserError as error:
            raise UserError(f"{first}: {error}") from None
        return StateFile(path, policy, **origin)

    parts = [_load(state_file(file)) for file in files]
    fresh = state_file(out)
    combine(fresh.policy, parts)
    fresh.overwrite()
    return {"policy": header["policy"], "files": [str(file) for file in files], "out": str(out)}


def _header(path: Path) -> dict[str, Any]:
    """Return a file's policy, target and drafters.

    Raises:
        UserError: it cannot be read, is damaged, or is no state file.
    """
    try:
        body = parse(path.read_bytes())
        drafters = body["drafters"]
        named = isinstance(drafters, dict) and all(isinstance(one, str) for one in drafters.values())
        if not named or not all(isinstance(body[key], str) for key in ("policy", "target")):
            raise UserError("it is damaged")
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name files that draftwise has written"
        ) from None
    except UserError as error:
        raise UserError(f"{path}: {error}; name files that draftwise has written") from None
    return body


def _load(file: StateFile) -> Any:
    """Return the policy of a state file, which must be of the same kind as the first one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", StateWarning)
        try:
            if file.load(restarts=False):
                return file.policy
        except StateWarning as warning:
            raise UserError(str(warning)) from None
    raise UserError(f"no state file {file.path}")
