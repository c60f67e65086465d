"""`draftwise policies`: the policies there are."""

from __future__ import annotations

from .catalogue import show_group
from .options import AsJson


def policies(as_json: AsJson = False) -> None:
    """List the policies and their options; write them as NAME?key=value."""
    show_group("policies", as_json=as_json)
