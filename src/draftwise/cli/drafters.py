"""`draftwise drafters`: the drafters there are."""

from __future__ import annotations

from .catalogue import show_group
from .options import AsJson


def drafters(as_json: AsJson = False) -> None:
    """List the drafters and their options; write them as NAME?key=value. A model's name is a drafter too."""
    show_group("drafters", as_json=as_json)
