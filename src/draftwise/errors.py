"""The one error that is the user's to mend, and what they should know."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: the message names the value and the remedy, in one line."""


class DraftwiseWarning(UserWarning):
    """Something a user should know, though the text is right without it; one line."""
