"""The file that stores what a policy has learned between runs."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from threading import Thread
from typing import Any

from filelock import FileLock

from ..core.roles import Policy
from ..errors import DraftwiseWarning, UserError
from ..inputs import expanded
from ..models.fingerprints import drafter_fingerprint, model_fingerprint
from .learned import apply, combine, dump, fit, restart

FORMAT, VERSION = "draftwise-state", 1
Numbers = dict[str, Any]
Found = tuple[Any, Any]  # what a policy had learned, and the same with what others had
PARTS = {"format", "version", "policy", "target", "drafters", "arms", "numbers"}
LOG = getLogger(__name__)
WAIT = 10.0  # seconds to wait for another process's lock, which lasts milliseconds


class StateWarning(DraftwiseWarning):
    """A state file is left unchanged, and the run continues without it."""


def usable(path: str | Path) -> Path:
    """Return a state file's path, without links; a `UserError` says why none can be used or created."""
    if "\0" in str(path):
        raise UserError(f"state file {str(path)!r} has a null byte: name a file without")
    full = Path(os.path.realpath(expanded(path)))
    if (full.exists() and not full.is_file()) or not full.parent.is_dir():
        reason = "is no plain file" if full.exists() else f"would be in {full.parent}, which is no folder"
        raise UserError(f"state file {path} {reason}: name a file in a folder that exists")
    try:
        with _locked(full):
            if full.exists():
                full.open("r+b").close()
            _swap(full).touch()
            _swap(full).unlink()
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"state file {path} cannot be written: {why}; name another place") from error
    return full


class StateFile:
    """One policy's learned numbers on disk, and the models and arms they belong to.

    A file for something else, or a damaged one, is rejected and never overwritten. A new file is written
    beside the old one and replaces it atomically, so that neither a reader nor a crash sees half a file.

    Processes that share a file learn together: each save adds what this one has learned since its last save
    to what the others have written, and the policy continues with the sum. Where a learned field cannot be
    merged, the last to save wins. A save in three steps needs the policy's thread for the first and last
    only: `taken`, `exchange`, `adopt`.

    A policy that keeps nothing between texts needs no file, and a warning says so. `policy` must be newly
    built; `target` and `drafters` are fingerprints.
    """

    def __init__(
        self, path: str | Path, policy: Policy, *, name: str, target: str, drafters: Mapping[str, str]
    ) -> None:
        self.path, self.policy = usable(path), policy
        self.header = {
            "format": FORMAT,
            "version": VERSION,
            "policy": name,
            "target": target,
            "drafters": dict(drafters),
            "arms": [arm.name for arm in policy.arms],
        }
        self.name, self.blank, self.complaint = name, dump(policy), ""
        self._new, self._merges = _copy(policy)
        self._common = self._written = self.blank  # what all had at the last exchange; what the file then had

    @classmethod
    def of(
        cls, path: str | Path, policy: Policy, *, name: str, target: Any, drafters: Mapping[str, Any]
    ) -> StateFile:
        """Return the state file for a target and drafters, as specs or as `Decoder` takes them."""
        fingerprints = {key: drafter_fingerprint(spec) for key, spec in drafters.items()}
        return cls(path, policy, name=name, target=model_fingerprint(target), drafters=fingerprints)

    def load(self, *, restarts: bool = True) -> bool:
        """Load the saved numbers into the policy; False, with nothing changed, if there are none for it.

        If texts begin from them (`restarts`), parts of the policy with a method `restart` may let them weigh
        less. A file that is rejected or useless causes a `StateWarning`.
        """
        try:
            exists = self.restore()
        except UserError as error:
            self.complain(error)
            return False
        if exists and restarts:
            restart(self.policy)
            self._common = dump(self.policy)
        LOG.info("state of %s %s %s", self.name, "read from" if exists else "will be saved to", self.path)
        return exists

    def restore(self) -> bool:
        """Load the saved numbers as they are; a `UserError` says why a file cannot be used."""
        with self._explained("read"):
            if not self.path.exists():
                return False
            self._written = self._read()
            apply(fit(self.policy, self.blank, self._written))
            self._common = dump(self.policy)
            return True

    def save(self) -> None:
        """Write what the policy has learned, with what others have written meanwhile.

        A `UserError` says that it cannot be written, `load` would reject the file, or nothing is to save.
        """
        self.adopt(self.exchange(self.taken()))

    def overwrite(self) -> None:
        """Write what the policy has learned in place of what the file holds; errors are those of `save`."""
        with self._explained("written"):
            if self.path.exists():
                self._written = self._read()
        self.save()

    def keep(self) -> bool:
        """Save; return False after an error, which is a `StateWarning` issued once and costs no text."""
        try:
            self.save()
        except UserError as error:
            self.complain(error)
            return False
        return True

    def taken(self) -> Numbers:
        """Return what the policy has learned so far; a `UserError` says that it cannot be saved."""
        try:
            return dump(self.policy)
        except (UserError, TypeError) as error:  # another's policy may hold anything
            raise UserError(f"state file {self.path} is not written: {error}") from error

    def exchange(self, taken: Numbers) -> Found | None:
        """Write these numbers with what others have written since the last exchange; return it, if any.

        Errors are those of `save`.
        """
        numbers, found = taken, None
        try:
            fit(self._new, self.blank, numbers)  # a written file must be readable
        except UserError as error:
            raise UserError(f"state file {self.path} is not written: {error}") from error
        with self._explained("written"):
            theirs = self._read() if self.path.exists() else self._written
            if theirs != self._written:
                together, own = self._part(self._common), self._part(taken)
                if self._combine(together, [self._part(theirs), own], self._part(self._common)):
                    numbers, found = dump(together), (own, together)
            body = self.header | {"numbers": numbers}
            _replace(self.path, json.dumps(body | {"sha256": _seal(body)}, allow_nan=False))
            self._written = self._common = numbers
        self.complaint = ""
        return found

    def adopt(self, found: Found | None) -> None:
        """Add what an exchange has found to the policy; what that has learned meanwhile stays."""
        if found is not None:
            own, together = found
            self._combine(self.policy, [together, self.policy], own)

    def _combine(self, into: Any, parts: Sequence[Any], base: Any) -> bool:
        """Merge, and return True; from an error on the last to save wins, as a rule may be a plug-in's."""
        try:
            if self._merges:
                combine(into, parts, base)
        except Exception as error:
            self._merges = False
            self.complain(f"state file {self.path}: what others have learned cannot be merged ({error!r})")
        return self._merges

    def _part(self, numbers: Numbers) -> Any:
        """Return a policy of the same shape that has learned these numbers."""
        part = deepcopy(self._new)
        apply(fit(part, self.blank, numbers))
        return part

    def close(self) -> None:
        """Save what is not saved yet: nothing here, where every call of `keep` saves."""

    def complain(self, error: object) -> None:
        """Warn that the file is not used as it should be, once for each reason."""
        if (complaint := str(error)) != self.complaint:
            warnings.warn(complaint, StateWarning, stacklevel=3)
        self.complaint = complaint

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Hold the file's lock; errors name the file."""
        if all(value is None for value in self.blank.values()):
            raise UserError(
                f"state file {self.path} is not used: the policy {self.name!r} keeps nothing from text to "
                "text; name one that does, or leave the file out"
            )
        try:
            with _locked(self.path):
                yield
        except OSError as error:
            raise UserError(f"state file {self.path} cannot be {verb}: {error.strerror or error}") from error

    def _read(self) -> Numbers:
        """Return the file's numbers, completely checked."""
        try:
            body = parse(self.path.read_bytes())
            for key, expected in self.header.items():
                if body[key] != expected:
                    raise UserError(_difference(key, body[key], expected))
            numbers: Numbers = body["numbers"]
            fit(self._new, self.blank, numbers)
            return numbers
        except UserError as error:
            raise UserError(
                f"state file {self.path} is not used: {error}; it stays as it is and nothing is saved to it: "
                "remove it or name another"
            ) from error


def _copy(policy: Any) -> tuple[Any, bool]:
    """Return a copy of a new policy, and whether what it learns can be merged."""
    try:
        copy = deepcopy(policy)
        combine(copy, [policy])
    except Exception:  # another's policy may hold anything
        return policy, False
    return copy, True


def parse(raw: bytes) -> dict[str, Any]:
    """Return the content of a whole state file of this version; a `UserError` says that it is none."""
    try:
        body = json.loads(raw)
        json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise UserError("it is damaged, or no state file")
    if body.get("version") != VERSION:
        raise UserError(f"it has version {body.get('version')!r:.20}, and this release reads {VERSION}")
    if body.pop("sha256", None) != _seal(body) or body.keys() != PARTS:
        raise UserError("it is damaged")
    return body


def _seal(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _difference(key: str, saved: Any, expected: Any) -> str:
    if key == "target":
        return "it was made with another target"
    if key == "drafters" and isinstance(saved, dict):
        names = sorted(name for name in {*saved, *expected} if saved.get(name) != expected.get(name))
        return f"it was made with other drafters ({', '.join(names)[:80]})"
    if key == "arms" and isinstance(saved, list):
        new = [arm for arm in expected if arm not in saved]
        old = [arm for arm in saved if arm not in expected]
        change = f"{', '.join(map(str, old)) or 'none'} in place of {', '.join(new) or 'none'}"
        return f"it has other arms ({change[:120]})" if new or old else "it has the arms in another order"
    return f"it was made with the {key} {saved!r:.60}, not {expected!r:.60}"


def _locked(path: Path) -> AbstractContextManager[Any]:
    return FileLock(f"{path}.lock").acquire(timeout=WAIT, poll_interval=0.005)


def _swap(path: Path) -> Path:
    return path.with_name(f"{path.name}.saving")


def _replace(path: Path, text: str) -> None:
    """Replace a file's content atomically; the caller holds the lock."""
    swap = _swap(path)
    swap.unlink(missing_ok=True)  # left by a killed process
    try:
        with swap.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, swap)
        os.replace(swap, path)
    finally:
        swap.unlink(missing_ok=True)


class Saver:
    """Saves a policy's state from a thread of its own, and adds what others have saved to the policy.

    Call `start` and `finish` from the thread in which the policy learns.
    """

    def __init__(self, state: StateFile) -> None:
        self.state = state
        self.failed = False  # the last save; the state file has said why
        self._thread: Thread | None = None
        self._found: Found | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save has begun and `finish` has not seen its end."""
        return self._thread is not None

    def start(self) -> bool:
        """Begin to save; False while the last save has not finished."""
        if self._thread is not None:
            return False
        try:
            taken = self.state.taken()
        except UserError as error:
            self._fail(error)
            return True
        self._thread = Thread(target=self._exchange, args=(taken,), daemon=True, name="draftwise-state")
        self._thread.start()
        return True

    def finish(self) -> None:
        """Add what others have saved to the policy, if a save has ended."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self.state.adopt(self._found)

    def wait(self) -> None:
        """Finish a save that has begun, however long it takes."""
        if self._thread is not None:
            self._thread.join()
            self.finish()

    def end(self) -> None:
        """Save once more and wait for it."""
        self.wait()
        self.state.keep()

    def _exchange(self, taken: Numbers) -> None:
        self._found, self.failed = None, False
        try:
            self._found = self.state.exchange(taken)
        except UserError as error:
            self._fail(error)

    def _fail(self, error: UserError) -> None:
        self.failed = True
        self.state.complain(error)


# -- the files of several replicas -----------------------------------------------------------------------


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
    header, *_ = [_header(Path(file)) for file in files]
    origin = {"name": header["policy"], "target": header["target"], "drafters": header["drafters"]}

    def state_file(path: str | Path) -> StateFile:
        try:
            policy = new_policy(header["policy"], list(header["drafters"]))
        except UserError as error:
            raise UserError(f"{first}: {error}") from None
        return StateFile(path, policy, **origin)

    parts = [state_file(file) for file in files]
    for part in parts:
        if not part.restore():
            raise UserError(f"no state file {part.path}")
    fresh = state_file(out)
    combine(fresh.policy, [part.policy for part in parts])
    fresh.overwrite()
    return {"policy": header["policy"], "files": [str(file) for file in files], "out": str(out)}


def _header(path: Path) -> dict[str, Any]:
    """Return the content of a file that has a policy, a target and drafters."""
    try:
        body = parse(path.read_bytes())
        drafters = body["drafters"]
        named = isinstance(drafters, dict) and all(isinstance(one, str) for one in drafters.values())
        if not named or not all(isinstance(body[key], str) for key in ("policy", "target")):
            raise UserError("it is damaged")
        return body
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except UserError as error:
        message = f"{path}: {error}"
    raise UserError(f"{message}; name files that draftwise has written")
