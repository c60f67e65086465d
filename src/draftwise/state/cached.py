"""The state that `auto` keeps without being told where: a first text begins with what earlier ones taught."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from time import monotonic
from typing import Any

from ..core.roles import Policy
from ..errors import UserError
from ..models.fingerprints import drafter_fingerprint, model_fingerprint
from ..models.verdicts import folder
from .file import Numbers, StateFile, usable

AUTO, OFF = "auto", "off"  # in place of a file's name
VARIABLE = "DRAFTWISE_STATE"  # of the environment: off keeps nothing that was not named
MOST = 64  # files kept, the latest
SECONDS = 10.0  # between two writes
LOG = getLogger(__name__)


def check_state(state: object) -> None:
    """Check what a user gives as `state`, before any model is loaded: a file's name, auto, off or None.

    Raises:
        UserError: it is something else, or a file that cannot be used; or DRAFTWISE_STATE in the environment
            is neither auto nor off.
    """
    if (usual := os.environ.get(VARIABLE, AUTO)) not in (AUTO, OFF):
        raise UserError(f"{VARIABLE}={usual!r}: give auto or off, or name a file as state")
    if state is not None and not isinstance(state, (str, os.PathLike)):
        raise UserError(f"state={state!r}: give the name of a file, auto or off")
    if state not in (None, AUTO, OFF):
        usable(Path(state))


def open_state(
    state: str | os.PathLike[str] | None,
    policy: Policy,
    *,
    name: str,
    target: Any,
    drafters: Mapping[str, Any],
    load: object,
) -> StateFile | None:
    """Return the state file of a run, which `check_state` has checked; None if it keeps nothing.

    `auto` alone has one without its being named: published policies start afresh. `load` is how the models
    are run, on which what they cost depends.
    """
    if state is None or state == OFF:
        return None
    if state != AUTO:
        return StateFile.of(Path(state), policy, name=name, target=target, drafters=drafters)
    if name.partition("?")[0] != AUTO or os.environ.get(VARIABLE, AUTO) == OFF:
        return None
    return CachedState.open(policy, name=name, target=target, drafters=drafters, load=load)


class CachedState(StateFile):
    """A state file in the user's cache, one for each target, set of drafters, and way of loading them.

    It is replaced where it does not fit and lost where it cannot be written, without a warning: it costs no
    more than learning again. It is written every few seconds at most, and by `close`.
    """

    due = False
    saved = -SECONDS

    @classmethod
    def open(
        cls, policy: Policy, *, name: str, target: Any, drafters: Mapping[str, Any], load: object
    ) -> CachedState | None:
        """Return the state of these models, `load` being how they are run; None without a usable cache."""
        place = folder() / "learned"
        try:
            place.mkdir(parents=True, exist_ok=True)
            of_drafters = {one: drafter_fingerprint(spec) for one, spec in drafters.items()}
            of_target = model_fingerprint(target)
            key = json.dumps([name, of_target, of_drafters, [arm.name for arm in policy.arms], repr(load)])
            file = place / f"{sha256(key.encode()).hexdigest()[:24]}.json"
            state = cls(file, policy, name=name, target=of_target, drafters=of_drafters)
            _prune(place)
        except Exception as error:  # a loaded model may be of any class, and loses no more than a start
            LOG.info("nothing is kept of what is learned: %s", error)
            return None
        return state

    def keep(self) -> bool:
        """Save if the last time is long ago; else the next call or `close` will."""
        self.due = monotonic() - self.saved < SECONDS
        if not self.due:
            super().keep()
            self.saved = monotonic()
        return True

    def close(self) -> None:
        if self.due:
            self.saved = -SECONDS
            self.keep()

    def complain(self, error: object) -> None:
        """Log it: what is lost is learned again."""
        LOG.info("%s", error)

    def _read(self) -> Numbers:
        try:
            return super()._read()
        except UserError as error:
            LOG.info("begun afresh: %s", error)
            return self._written


def _prune(place: Path) -> None:
    files = sorted(place.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST:]:
        with suppress(OSError):  # another process may have removed it
            file.unlink()
            Path(f"{file}.lock").unlink(missing_ok=True)
