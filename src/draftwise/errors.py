"""The errors that a caller meets, and how they and their numbers are said in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class UserError(ValueError):
    """Bad input: the message names the value and the remedy, in one line."""


class DraftwiseWarning(UserWarning):
    """Something a user should know, though the text is right without it; one line."""


class GenerationError(RuntimeError):
    """Some of several texts could not be written; nothing of the others is lost.

    `outputs` has one output for each text, in order: those that failed hold what was written of them and have
    the finish reason "error". `errors` has what each of these raised, by its place.
    """

    def __init__(self, outputs: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        super().__init__(outputs, errors)  # what a copy in another process is made from
        self.outputs, self.errors = outputs, errors

    def __str__(self) -> str:
        place, first = next(iter(self.errors.items()))
        return (
            f"{len(self.errors)} of {len(self.outputs)} texts failed, the first of them number {place}: "
            f"{one_line(first)} (the others are in .outputs)"
        )


def one_line(error: Exception) -> str:
    """An exception's kind and the first line of what it says, if it can say anything."""
    try:
        said = str(error)
    except Exception:  # another's class, whose faults must not become ours
        said = "it cannot be shown"
    return f"{type(error).__name__}: {said}".splitlines()[0][:200]


def pluralize(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
