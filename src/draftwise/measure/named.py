"""Policies as they are named on the command line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .. import registry
from ..errors import UserError
from ..specs import parse_policy


def once(what: str, names: Sequence[str]) -> None:
    """Check that no name is there twice.

    Raises:
        UserError: one is.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{what}: {twice[0]} is repeated: give each once")


def policy_names(text: str) -> tuple[str, ...]:
    """Policies separated by commas; or by blanks, and then commas do not separate.

    A comma inside an option (`lengths=2,8`) does not separate: no policy's name follows it.

    Raises:
        UserError: there is none, or an unknown, empty or repeated name.
    """
    text = re.sub(r",\s+", ",", text.strip())
    if len(parts := text.split()) > 1:
        return _checked(parts)
    names: list[str] = []
    for part in text.split(","):
        name = part.partition("?")[0].partition(":")[0]
        is_policy = name in registry.names("policies") or name.rpartition("-")[0] == "static"
        if names and "?" in names[-1] and not is_policy:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not any(names):
        raise UserError("no policy is named: give names of `draftwise policies`, such as auto,static-5")
    if not all(names):
        raise UserError(f"policies {text!r} has an empty name: give A,B")
    return _checked(names)


def _checked(policies: Sequence[str]) -> tuple[str, ...]:
    for policy in policies:
        parse_policy(policy)
    once("policies", policies)
    return tuple(policies)
