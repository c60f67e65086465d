"""The one error that is the user's to mend."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: the message names the value and the remedy, in one line."""
